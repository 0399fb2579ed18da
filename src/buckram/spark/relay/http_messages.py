"""HTTP/1.1 as the relay reads and writes it: heads as they came, bodies in pieces or kept as a whole.

It uses the standard library alone: the extra `spark` brings no HTTP. Not here: choosing a gateway
(`failover.py`).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO

from buckram.serve.http.limits import KIB, MIB

HEAD_BYTES, PIECE = 64 * KIB, 256 * KIB
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade", "expect"})
"""Hop-by-hop headers, which belong to a connection and not to a message."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class MessageTruncated(ConnectionError):
    """The other side ended in the middle of a message."""

    def __init__(self) -> None:
        super().__init__("the connection ended in the middle of a message")


class NotHttp(ConnectionError):
    """The received bytes are no HTTP message."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line and the headers of a message, letter for letter; bytes that are not ASCII as in Latin-1."""

    first: str
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """Return the first header of this name, which is in lower case; empty if there is none."""
        return next((value for key, value in self.fields if key.lower() == name), "")

    @property
    def words(self) -> list[str]:
        """Return the three parts of the first line."""
        return self.first.split(" ", 2)

    @property
    def status(self) -> int:
        """Return the status code of an answer."""
        return int(self.words[1])

    @property
    def ends_connection(self) -> bool:
        """Return whether the connection ends after this message."""
        return "close" in self.get("connection").lower() or "HTTP/1.0" in self.first

    def written(self, size: int, *more: tuple[str, str]) -> bytes:
        """Return the bytes of this head for a body of this size, with more headers."""
        fields = [one for one in self.fields if one[0].lower() not in _HOP]
        lines = [f"{name}: {value}" for name, value in (*fields, *more, ("Content-Length", str(size)))]
        return "\r\n".join((self.first, *lines, "", "")).encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Return the head of the next message; None: the connection ended before it. Raises Cut, NotHttp."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise MessageTruncated from None
        return None
    except asyncio.LimitOverrunError:
        raise NotHttp(f"a head of more than {HEAD_BYTES} bytes") from None
    first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    if first.count(" ") < 2 or "HTTP/1." not in first:
        raise NotHttp(f"{first[:60]!r} begins no message of HTTP/1.1")
    return Head(first, tuple((name.strip(), value.strip()) for name, _, value in (one.partition(":") for one in lines)))


async def body_pieces(reader: asyncio.StreamReader, head: Head) -> AsyncIterator[bytes]:
    """Yield the body that follows a head. Raises Cut, NotHttp."""
    try:
        if "chunked" in head.get("transfer-encoding").lower():
            while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                async for piece in _exactly(reader, size):
                    yield piece
                await reader.readexactly(2)
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
        else:
            async for piece in _exactly(reader, int(head.get("content-length") or 0)):
                yield piece
    except asyncio.IncompleteReadError:
        raise MessageTruncated from None
    except (ValueError, asyncio.LimitOverrunError):
        raise NotHttp("the size of the body is no number") from None


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, PIECE))
        if not piece:
            raise MessageTruncated
        size -= len(piece)
        yield piece


class BodyMemory:
    """Budget of memory, bytes, for all bodies together; bodies beyond it go to files, as large ones do."""

    def __init__(self, total: int = 64 * MIB, each: int = 4 * MIB) -> None:
        self.left, self.each = total, each


class Body:
    """All bytes of a message, to be sent as often as needed: in memory, or in a file that has no name. Use `with`.

    Such a file is written and read on the loop: it is the system's memory that takes and gives its bytes.
    """

    def __init__(self, room: BodyMemory) -> None:
        self.size = 0
        self._room = room
        self._pieces: list[bytes] = []
        self._held = 0
        self._file: IO[bytes] | None = None

    def add(self, piece: bytes) -> None:
        """Append a piece to the body. Raises OSError if the disk is full."""
        self.size += len(piece)
        if self._file is None and self.size <= self._room.each and len(piece) <= self._room.left:
            self._pieces.append(piece)
            self._held += len(piece)
            self._room.left -= len(piece)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="buckram-relay-")  # noqa: SIM115 - close() closes it
            self._file.writelines(self._pieces)
            self._let_go()
        self._file.write(piece)

    def pieces(self) -> Iterator[bytes]:
        """Yield the whole body from its beginning; only one reader at a time."""
        if self._file is None:
            yield from self._pieces
            return
        self._file.seek(0)
        while piece := self._file.read(PIECE):
            yield piece

    def _let_go(self) -> None:
        self._room.left += self._held
        self._held = 0
        self._pieces.clear()

    def close(self) -> None:
        """Release its memory and file. Idempotent."""
        self._let_go()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
