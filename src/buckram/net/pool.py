"""BookiePool: the only way a client reaches bookies. Being filled in; the signatures stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from buckram.config import NetConfig
from buckram.core.messages import Reply, Request
from buckram.errors import BuckramError
from buckram.seams import Runtime
from buckram.types import BookieAddress, BookieId, EntryId


class AckSink(Protocol):
    """Whoever sends adds on a lane. For each run sent, every entry is reported exactly once, in ranges.

    Called on the loop, never from inside `send`.
    """

    def acked(self, position: int, bookie_id: BookieId, first: EntryId, last: EntryId) -> None: ...
    def add_failed(
        self, position: int, bookie_id: BookieId, first: EntryId, last: EntryId, error: BuckramError
    ) -> None: ...


AddRuns = Sequence[tuple[AckSink, int, EntryId, EntryId]]
"""(sink, position, first, last) in the order of the frames; all of one ledger per run."""


class AddLane(Protocol):
    """Adds to one bookie. Keep it as long as you like; it connects by itself."""

    bookie_id: BookieId

    def send(self, frames: bytes, acks: bytes, runs: AddRuns, *, deferred_sync: bool = False) -> None:
        """Queue v2 ADD frames; `acks` are the OK answers expected, 28 bytes each (core.adds.ack_frames), in order."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes handed to send and not yet taken by the operating system."""
        ...


class BookiePool:
    def __init__(
        self,
        runtime: Runtime,
        config: NetConfig,
        resolve: Callable[[BookieId], BookieAddress | None],
        *,
        wire_protocol: int = 2,
    ) -> None:
        raise NotImplementedError

    def lane(self, bookie_id: BookieId) -> AddLane:
        raise NotImplementedError

    async def call(
        self, bookie_id: BookieId, request: Request, *, timeout_s: float | None = None, protocol: int | None = None
    ) -> Reply:
        raise NotImplementedError

    def pending_bytes(self, bookie_id: BookieId) -> int:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
