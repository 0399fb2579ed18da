"""Stored entries that stay in the packet they came in: a batch read costs no object per entry until somebody asks."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import overload

from buckram.core.strides import all_equal

_SIZE = struct.Struct(">i")


class PackedBodies(Sequence[bytes]):
    """A sequence of byte strings inside one; an index or iteration step copies one out. Equal to a list of the same."""

    __slots__ = ("ends", "packet", "starts")

    def __init__(self, packet: bytes, starts: Sequence[int], ends: Sequence[int]) -> None:
        self.packet, self.starts, self.ends = packet, starts, ends

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> PackedBodies:
        """Any bodies in this form."""
        if isinstance(bodies, cls):
            return bodies
        starts, ends, offset = [], [], 0
        for body in bodies:
            starts.append(offset)
            offset += len(body)
            ends.append(offset)
        return cls(b"".join(bodies), starts, ends)

    @classmethod
    def parse(cls, packet: bytes, offset: int, end: int | None = None) -> PackedBodies | None:
        """From i32 size and body, repeated in packet[offset:end]. None when they do not fit it."""
        stop = len(packet) if end is None else end
        total = stop - offset
        if total >= 4:
            stride = 4 + int(_SIZE.unpack_from(packet, offset)[0])
            if stride >= 4 and total % stride == 0:
                count = total // stride
                if all_equal(packet, offset, stride, count, packet[offset:offset + 4]):  # the usual case
                    return cls(packet, range(offset + 4, stop + 1, stride), range(offset + stride, stop + 1, stride))
        return cls._walk(packet, offset, stop)

    @classmethod
    def _walk(cls, packet: bytes, offset: int, stop: int) -> PackedBodies | None:
        starts: list[int] = []
        ends: list[int] = []
        while offset < stop:
            if stop - offset < 4:
                return None
            start = offset + 4
            offset = start + _SIZE.unpack_from(packet, offset)[0]
            if offset < start or offset > stop:
                return None
            starts.append(start)
            ends.append(offset)
        return cls(packet, starts, ends)

    @property
    def total_bytes(self) -> int:
        """Bytes of all bodies."""
        return len(self) * (stride - 4) if (stride := self.stride) else sum(self.ends) - sum(self.starts)

    @property
    def stride(self) -> int:
        """From body to body when all have one size and lie behind their size fields in a row; else 0."""
        starts, ends = self.starts, self.ends
        if (
            isinstance(starts, range) and isinstance(ends, range) and starts and starts[0] >= 4
            and starts.step == ends.step and ends[0] - starts[0] == starts.step - 4
        ):
            return starts.step
        return 0

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> PackedBodies: ...
    def __getitem__(self, index: int | slice) -> bytes | PackedBodies:
        if isinstance(index, slice):
            return PackedBodies(self.packet, self.starts[index], self.ends[index])
        return self.packet[self.starts[index]:self.ends[index]]

    def __iter__(self) -> Iterator[bytes]:
        packet = self.packet
        for start, end in zip(self.starts, self.ends, strict=True):
            yield packet[start:end]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"PackedBodies({len(self)} of {self.total_bytes} bytes)"


def total_bytes(bodies: Sequence[bytes]) -> int:
    """Bytes of all bodies, without copying packed ones."""
    return bodies.total_bytes if isinstance(bodies, PackedBodies) else sum(map(len, bodies))
