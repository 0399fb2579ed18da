"""Claim: a writer's right to change a stream, valid until a writer with a higher epoch claims it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from buckram.client.ledger_client import LedgerClient
from buckram.core.cluster.believed_time import Moment
from buckram.core.streams.names import StreamName
from buckram.streams.shared.metadata import StreamStore

AppendClock = Callable[[], int]
"""Returns the wall time in microseconds UTC that records are stamped with (T1 in docs/reference/protocol.md)."""


@dataclass(frozen=True, slots=True)
class WriterClaim:
    """The stream that a writer opened and the epoch under which it may change the head.

    `uid` tells the stream from others of the same name, `nonce` this writer from others of the same epoch.
    """

    client: LedgerClient
    streams: StreamStore
    name: StreamName
    uid: str
    epoch: int
    nonce: str

    def now(self) -> int:
        """Return the time that records are stamped with; an AppendClock."""
        return self.client.services.clocks.now()

    def moment(self) -> Moment:
        """Return what may be the time now."""
        return self.client.services.clocks.moment()
