"""Runs of adds as a writer keeps and sends them: framed bytes with their ids.

Not here: acknowledgements (`core/ledgers/append.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buckram.core.wire.adds import ACK_BYTES
from buckram.errors import check
from buckram.types import EntryId, Position, Slot


class Run:
    """Entries first..last as frames, with the expected replies (`acks`) and the number of payload bytes (`size`).

    `data` is all frames joined (each begins with its 4-byte length), or the frames one by one, for striping.
    """

    __slots__ = ("_frames", "acks", "data", "first", "last", "size")

    def __init__(self, first: EntryId, last: EntryId, data: bytes | list[bytes], acks: bytes, size: int) -> None:
        self.first, self.last, self.acks, self.size = first, last, acks, size
        self.data: bytes | None = data if isinstance(data, bytes) else None
        self._frames: list[bytes] | None = data if isinstance(data, list) else None

    def cut(self, rows: Sequence[tuple[EntryId, EntryId]]) -> tuple[bytes, bytes]:
        """Return frames and expected replies of some ranges of its entries."""
        if self.data is not None and rows[0] == (self.first, self.last):
            return self.data, self.acks
        frames, acks, base = self._all_frames(), self.acks, self.first
        data: list[bytes] = []
        for first, last in rows:
            data += frames[first - base : last - base + 1]
        answers = [acks[(first - base) * ACK_BYTES : (last - base + 1) * ACK_BYTES] for first, last in rows]
        return b"".join(data), b"".join(answers)

    def size_through(self, last: EntryId) -> int:
        """Return the payload bytes of its entries up to and including `last`."""
        sizes = [len(frame) for frame in self._all_frames()]
        overhead = (sum(sizes) - self.size) // len(sizes)  # the same for every frame of a writer
        through = last - self.first + 1
        return sum(sizes[:through]) - through * overhead

    def _all_frames(self) -> list[bytes]:
        if self._frames is None:
            data, offset, frames = self.data or b"", 0, []
            while offset < len(data):
                end = offset + 4 + int.from_bytes(data[offset : offset + 4], "big")
                frames.append(data[offset:end])
                offset = end
            count = self.last - self.first + 1
            check(len(frames) == count, "run", f"{len(frames)} frames in {self.first}..{self.last}")
            return frames  # not kept, because only a resend or close in the middle of a run needs them
        return self._frames


@dataclass(frozen=True, slots=True)
class Send:
    """Message to the bookie at `position`: frames, the expected replies, and their ranges of ids."""

    position: Position
    slot: Slot
    data: bytes
    acks: bytes
    rows: tuple[tuple[EntryId, EntryId], ...]
