"""Stored entries that stay in the packet they came in: a batch read makes no object per entry before it is accessed.

`FrameParts` are a bookie's entries in their frames, on the way out; `PackedBodies` are a client's, on the way in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import overload

from buckram.core.entries.strides import all_equal
from buckram.types import Buffer

_SIZE = struct.Struct(">i")
FRAME_HEAD = 28
"""Bytes before the stored entry in the frame of an add: length, packet header, master key."""


class PackedBodies(Sequence[bytes]):
    """A sequence of byte strings inside one; each access copies one. Equal to a list of the same byte strings."""

    __slots__ = ("ends", "packet", "starts")

    def __init__(self, packet: bytes | bytearray, starts: Sequence[int], ends: Sequence[int]) -> None:
        self.packet, self.starts, self.ends = packet, starts, ends

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> PackedBodies:
        """Return bodies of any form in this one."""
        if isinstance(bodies, cls):
            return bodies
        starts, ends, offset = [], [], 0
        for body in bodies:
            starts.append(offset)
            offset += len(body)
            ends.append(offset)
        return cls(b"".join(bodies), starts, ends)

    @classmethod
    def parse(cls, packet: bytes | bytearray, offset: int, end: int | None = None, gap: int = 4) -> PackedBodies | None:
        """Parse repeated (i32 size, body) in packet[offset:end]. None if they do not fill it exactly.

        The size counts the bytes after it; the body begins `gap` bytes after the beginning of the size.
        """
        stop = len(packet) if end is None else end
        total = stop - offset
        if total >= 4:
            stride = 4 + int(_SIZE.unpack_from(packet, offset)[0])
            if stride >= gap and total % stride == 0:
                count = total // stride
                if all_equal(packet, offset, stride, count, bytes(packet[offset : offset + 4])):  # the usual case
                    ends = range(offset + stride, stop + 1, stride)
                    return cls(packet, range(offset + gap, stop + 1, stride), ends)
        return cls._walk(packet, offset, stop, gap)

    @classmethod
    def parse_frames(cls, packet: bytes | bytearray, offset: int, end: int | None = None) -> PackedBodies | None:
        """Parse frames of adds as `parse` does."""
        return cls.parse(packet, offset, end, FRAME_HEAD)

    @classmethod
    def _walk(cls, packet: bytes | bytearray, offset: int, stop: int, gap: int) -> PackedBodies | None:
        starts: list[int] = []
        ends: list[int] = []
        while offset < stop:
            if stop - offset < gap:
                return None
            start = offset + gap
            offset += 4 + int(_SIZE.unpack_from(packet, offset)[0])
            if offset < start or offset > stop:
                return None
            starts.append(start)
            ends.append(offset)
        return cls(packet, starts, ends)

    def contiguous(self) -> bytes:
        """Return the packet as bytes; b"" if it has no bodies."""
        return bytes(self.packet) if self.ends else b""

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all bodies."""
        if self.stride:
            return len(self) * (self.ends[0] - self.starts[0])
        return sum(self.ends) - sum(self.starts)

    @property
    def stride(self) -> int:
        """Return the distance between bodies if all have one size and the same gap before them; else 0."""
        starts, ends = self.starts, self.ends
        if isinstance(starts, range) and isinstance(ends, range) and starts and starts.step == ends.step:
            gap = starts.step - (ends[0] - starts[0])
            return starts.step if 0 <= gap <= starts[0] else 0
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
        return bytes(self.packet[self.starts[index] : self.ends[index]])

    def __iter__(self) -> Iterator[bytes]:
        packet = self.packet
        for start, end in zip(self.starts, self.ends, strict=True):
            yield bytes(packet[start:end])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"PackedBodies({len(self)} of {self.total_bytes} bytes)"


class FrameParts(Sequence[bytes]):
    """Stored entries in their frames, as pieces of larger buffers, which are sent unchanged."""

    __slots__ = ("parts", "size", "total")

    def __init__(self, parts: Sequence[Buffer], count: int) -> None:
        self.parts, self.total = parts, count
        self.size = sum(map(len, parts))

    def __len__(self) -> int:
        return self.total

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> PackedBodies: ...
    def __getitem__(self, index: int | slice) -> bytes | PackedBodies:
        packed = PackedBodies.parse_frames(b"".join(self.parts), 0)
        assert packed is not None
        return packed[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == other

    def __hash__(self) -> int:
        return hash(self[:])


def total_bytes(bodies: Sequence[bytes]) -> int:
    """Return the bytes of all bodies, without copying packed ones."""
    if isinstance(bodies, FrameParts):
        return bodies.size
    return bodies.total_bytes if isinstance(bodies, PackedBodies) else sum(map(len, bodies))
