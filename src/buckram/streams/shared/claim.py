"""What a writer holds: the stream and the epoch under which it may change it."""

from __future__ import annotations

from dataclasses import dataclass

from buckram.client.client import Client
from buckram.core.streams.names import StreamName
from buckram.streams.shared.metadata import StreamStore


@dataclass(frozen=True, slots=True)
class Claim:
    """What the writer holds: the stream, and the epoch under which it may change it."""

    client: Client
    streams: StreamStore
    name: StreamName
    uid: str
    epoch: int
    nonce: str

    def now(self) -> int:
        """What records are stamped with (T1)."""
        return self.client.services.clocks.now()
