"""IndexClient: executes commands on the objects' index from any process, each of them once.

The process that writes leads the index. Another one that wants to write waits a second for the leader to close, and
then takes over; so processes that all write have turns of a second. Not here: what commands do
(`core/objects/index.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from buckram.core.objects.index import ObjectIndex
from buckram.errors import CommandUnknown, MirrorStream, NotLeader, TooStale
from buckram.state.machine.machine import Machine

R = TypeVar("R")
TURN_S = 1.0
"""Time that a leader keeps the index while others want it, seconds."""


class IndexClient:
    """The index of one namespace's objects."""

    def __init__(self, machine: Machine[ObjectIndex], *, patient: bool = False) -> None:
        """`patient`: it waits until no other process leads, and never takes over."""
        self.machine, self._patient = machine, patient
        self._leading: asyncio.Lock = asyncio.Lock()

    @property
    def leads(self) -> bool:
        """Return whether this process leads the index at the moment."""
        return self.machine.role == "leader"

    async def execute(self, command: list[Any]) -> Any:
        """Execute a command, leading the index for it. CommandRefused, MirrorStream, ReplicaStopped, HandleClosed."""
        token: str | None = None
        while True:
            try:
                return await self.machine.execute(command, token=token)
            except CommandUnknown as error:
                token = error.token
            except NotLeader:
                pass  # Nothing was written.
            await self._lead()

    async def _lead(self) -> None:
        async with self._leading:
            if self.leads:
                return
            if self._patient:
                await self.machine.lead()
                return
            try:
                async with asyncio.timeout(TURN_S):
                    await self.machine.lead()
            except TimeoutError:
                await self.machine.lead(takeover=True)

    async def look(self, function: Callable[[ObjectIndex], R], *, proven: bool = True) -> R:
        """Return function(index), which has everything that any process had done before this call.

        Without `proven` a process that leads does not ask whether it still does: a change that follows finds out.
        """
        while True:
            try:
                if self.leads:
                    return await self.machine.read(function, "linearizable" if proven else "leader")
                return await self.machine.read(function, "stale", at_most_s=0)
            except NotLeader:
                continue
            except TooStale:
                # What a leader wrote last before it died is readable once the next one has recovered it.
                try:
                    await self._lead()
                except MirrorStream:  # Only the copying process can lead here; the present state is shown.
                    return await self.machine.read(function, "stale")

    async def check_writable(self) -> None:
        """Raise MirrorStream if the objects are written in another cluster. Raises MetadataError."""
        if not self.leads:
            await self.machine.check_writable()
