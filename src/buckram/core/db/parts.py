"""Parts: a group that is larger than a record of the log, cut into consecutive records and joined again.

A part is part of the state of a replica until the last one has come; parts of a leader that was lost are dropped when
anything else follows. Not here: what a group is (`core/db/group.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from buckram.core.db.group import FORMAT, PART
from buckram.errors import UnknownCommand

_PART = struct.Struct(">BBQQII")


def cut(payload: bytes, leadership: int, sequence: int, limit: int) -> Iterator[bytes]:
    """Yield the group as it is, if it fits into a record of `limit` bytes, or its parts."""
    if len(payload) <= limit:
        yield payload
        return
    room = limit - _PART.size
    count = -(-len(payload) // room)
    for index in range(count):
        head = _PART.pack(FORMAT, PART, leadership, sequence, index, count)
        yield head + payload[index * room : (index + 1) * room]


class Joiner:
    """Joins parts in the order of the log. `held` has the parts of a group that is not complete."""

    def __init__(self, held: list[bytes] | None = None) -> None:
        self.held: list[bytes] = held or []

    def drop(self) -> None:
        """Drop the parts of an incomplete group: another record follows, so the rest never will."""
        self.held = []

    def joined(self, payload: bytes) -> bytes | None:
        """Take the next part; returns the group with its last one. A part that does not fit is dropped with all before.

        Raises UnknownCommand for what `cut` did not make.
        """
        if len(payload) < _PART.size:
            raise UnknownCommand(f"a part of a group has {len(payload)} bytes and is cut")
        _, _, leadership, sequence, index, count = _PART.unpack_from(payload)
        if index == 0:
            self.held = []
        elif len(self.held) != index or _PART.unpack_from(self.held[0])[2:4] != (leadership, sequence):
            self.held = []
            return None
        self.held.append(payload)
        if index + 1 < count:
            return None
        whole = b"".join(part[_PART.size :] for part in self.held)
        self.held = []
        return whole


__all__ = ["Joiner", "cut"]
