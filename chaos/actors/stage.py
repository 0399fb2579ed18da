"""Parameters of an actor: the cluster's URI, a name, a history, random numbers, and the signal to stop."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from buckram.cluster import Client, connect
from buckram.errors import BuckramError
from chaos.history import Recorder

STREAMS = ("one", "two")
MARK = "chaos"
"""Custom metadata of ledgers that actors made; its value is the actor's name."""


@dataclass
class Stage:
    """Parameters of an actor. `stop` is set by SIGTERM: the actor then ends its work in order."""

    uri: str
    name: str
    history: Path
    recorder: Recorder
    rng: random.Random
    listen: str = ""
    """HOST:PORT where a replica serves."""
    replicas: tuple[str, ...] = ()
    """Addresses at which other processes reach the replicas."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stop.wait()

    async def with_clients(self, work: Callable[[Client], Awaitable[None]]) -> None:
        """Do this again and again until the end; each error of the cluster is recorded, and a new client goes on."""
        while not self.stop.is_set():
            try:
                async with connect(self.uri) as client:
                    while not self.stop.is_set():
                        await work(client)
            except BuckramError as error:
                self.recorder.record("error", what=type(error).__name__, text=str(error)[:300])
                await self.pause(0.2 + self.rng.random())


Role: TypeAlias = Callable[[Stage], Coroutine[Any, Any, None]]
"""Coroutine of an actor, from beginning to end."""
