"""Readiness probe of a server: it begins a session as a client does, and finds it in the log of the server's directory.

That proves that a quorum answered, and that this server did and no other one on the same port. Four-letter words, which
any peer may send, can stay off.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import struct
from pathlib import Path

_REQUEST = struct.pack(">iqiqi16s?", 0, 0, 1, 0, 16, bytes(16), False)
"""Version, last zxid, a timeout that the server raises to its least, no session yet, its password, read-only."""
_RESPONSE = struct.Struct(">iiq")
_CLOSE = struct.pack(">iii", 8, 1, -11)
_LONGEST = 1024
_LOGS = 2


def begin_session(connection: socket.socket) -> bytes:
    """Begin a session and end it; return its id, eight bytes. Empty if the server does not serve. Raises OSError."""
    connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    if not _RESPONSE.size <= length <= _LONGEST:
        return b""
    _, timeout_ms, session = _RESPONSE.unpack_from(_exactly(connection, length))
    with contextlib.suppress(OSError):  # where a login is asked for, the session ends by its timeout
        connection.sendall(_CLOSE)
        connection.recv(_LONGEST)
    return struct.pack(">q", session) if timeout_ms > 0 and session else b""


def is_logged(session: bytes, data: Path) -> bool:
    """Return whether a session is in the newest transactions of a server's data."""
    with contextlib.suppress(OSError):
        logs = sorted((data / "version-2").glob("log.*"), key=lambda path: path.stat().st_mtime_ns)
        return any(_holds(path, session) for path in logs[-_LOGS:])
    return False


def _holds(path: Path, found: bytes) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(found) >= 0


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionError("the server closed the connection")
        found += piece
    return found


__all__ = ["begin_session", "is_logged"]
