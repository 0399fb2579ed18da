"""Cuts a byte stream into length-prefixed packets, in linear time and bounded memory for any content.

A frame is a u32 N followed by N bytes, the packet. The limit applies to N + 4, as in Apache BookKeeper.
"""

from __future__ import annotations

import struct

from buckram.types import Buffer

PREFIX_BYTES = 4
_U32 = struct.Struct(">I")
_LARGE = 128 * 1024
"""Missing bytes of a frame from which on they may be received directly into its buffer."""
_SMALL = 4096
"""Size below which chunks are gathered in one buffer, because an object for each would take more memory than its
bytes.
"""


class FrameTooLarge(Exception):
    """A length prefix exceeds the limit: the connection must be closed without an answer."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes, the limit is {limit}")
        self.size, self.limit = size, limit


class ChunkBuffer:
    """Holds the unfinished frame between chunks.

    `push(chunk)` returns bytes that begin at a frame boundary and hold at least the whole first frame, or b"" while it
    is incomplete; the caller consumes whole frames and gives the rest back with `keep(buffer, offset)`. Parts
    of a large frame are joined once, when it is complete, so a frame costs two copies however small its chunks are.
    """

    __slots__ = ("_need", "_parts", "_whole", "limit", "pending_bytes")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._parts: list[bytes | bytearray] = []
        self.pending_bytes = 0
        """Bytes held of an unfinished frame; they are below limit plus one chunk."""
        self._need = 0
        self._whole: bytearray | None = None

    def room(self) -> memoryview | None:
        """Return where the rest of a large unfinished frame belongs, to receive into it and call `filled`; else None.

        `push` may be called in between as well.
        """
        whole = self._whole
        if whole is None:
            if not self.pending_bytes or self._need - self.pending_bytes < _LARGE:
                return None
            whole = self._whole = bytearray(self._need)
            at = 0
            for part in self._parts:
                whole[at : at + len(part)] = part
                at += len(part)
            self._parts.clear()
        return memoryview(whole)[self.pending_bytes :]

    def filled(self, count: int) -> bytearray | None:
        """Record that `count` bytes were received into `room`. Returns the whole frame once it is complete."""
        self.pending_bytes += count
        whole = self._whole
        if whole is None or self.pending_bytes < self._need:
            return None
        self._whole, self.pending_bytes = None, 0
        return whole

    def push(self, chunk: bytes) -> bytes:
        """Take a chunk. Raises FrameTooLarge as soon as a length prefix exceeds the limit."""
        if not self.pending_bytes:
            return chunk
        if self._whole is not None:
            taken = min(len(chunk), self._need - self.pending_bytes)
            self._whole[self.pending_bytes : self.pending_bytes + taken] = memoryview(chunk)[:taken]
            whole = self.filled(taken)
            return b"" if whole is None else bytes(whole) + chunk[taken:]
        last = self._parts[-1]
        if len(chunk) >= _SMALL:
            self._parts.append(chunk)
        elif type(last) is bytearray:
            last += chunk
        else:
            self._parts.append(bytearray(chunk))
        self.pending_bytes += len(chunk)
        if self.pending_bytes < self._need:
            return b""
        if self._need == PREFIX_BYTES:  # The prefix itself was cut; only now is the frame's size known.
            self._parts = [b"".join(self._parts)]
            self._need = self.frame_bytes(self._parts[0], 0)
            if self.pending_bytes < self._need:
                return b""
        buffer = b"".join(self._parts)
        self._parts.clear()
        self.pending_bytes = 0
        return buffer

    def keep(self, buffer: bytes, offset: int) -> None:
        """Keep buffer[offset:], which must not hold a whole frame, for the next push."""
        rest = len(buffer) - offset
        if rest <= 0:
            return
        self._need = self.frame_bytes(buffer, offset) if rest >= PREFIX_BYTES else PREFIX_BYTES
        self._parts.append(buffer[offset:] if offset else buffer)
        self.pending_bytes = rest

    def frame_bytes(self, buffer: Buffer, offset: int) -> int:
        """Return the size of the frame at `offset`, prefix included. Raises FrameTooLarge."""
        size: int = _U32.unpack_from(buffer, offset)[0] + PREFIX_BYTES
        if size > self.limit:
            raise FrameTooLarge(size, self.limit)
        return size

    def next_frame(self, buffer: bytes, offset: int) -> int:
        """Return the end of the frame at `offset`, or 0 if it is not complete. Raises FrameTooLarge."""
        if len(buffer) - offset < PREFIX_BYTES:
            return 0
        size: int = _U32.unpack_from(buffer, offset)[0] + PREFIX_BYTES
        if size > self.limit:
            raise FrameTooLarge(size, self.limit)
        return offset + size if offset + size <= len(buffer) else 0


def frame(packet: bytes) -> bytes:
    """Return the packet as a frame, with its length in front."""
    return _U32.pack(len(packet)) + packet
