"""The entries of a snapshot's ledger: a header, the session table, the state in chunks, and a footer with the digest.

Not here: where the ledger is named (`core/streams/metadata/snapshots.py`), writing and reading it
(`state/machine/snapshots.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from buckram.types import Offset

FORMAT = 1
CHUNK_BYTES = 512 * 1024
_HEADER, _SESSIONS, _STATE, _FOOTER = b"H", b"S", b"D", b"E"


class SnapshotHeader(NamedTuple):
    """State of a replica beside the machine's state and the sessions. `Fold` describes the fields."""

    offset: Offset
    commands: int
    log_bytes: int
    time_us: int
    mark_commands: int
    chain: str


class BadSnapshot(Exception):
    """The entries are not those of a whole snapshot with the requested digest."""


class SnapshotEncoder:
    """Iterate over it for the payloads of the entries; afterwards `digest`, `bytes` and `entries` are known."""

    def __init__(self, header: SnapshotHeader, sessions: bytes, chunks: Iterable[bytes]) -> None:
        self._header, self._sessions, self._chunks = header, sessions, chunks
        self._hash = hashlib.sha256()
        self.digest = ""
        """Hexadecimal SHA-256 of all payloads but the footer's."""
        self.bytes = self.entries = 0

    def __iter__(self) -> Iterator[bytes]:
        yield self._counted(_HEADER + json.dumps({"format": FORMAT, **self._header._asdict()}).encode())
        for piece in _pieces((self._sessions,)):
            yield self._counted(_SESSIONS + piece)
        for piece in _pieces(self._chunks):
            yield self._counted(_STATE + piece)
        self.digest = self._hash.hexdigest()
        footer = _FOOTER + json.dumps({"entries": self.entries, "bytes": self.bytes, "digest": self.digest}).encode()
        self.bytes += len(footer)
        self.entries += 1
        yield footer

    def _counted(self, payload: bytes) -> bytes:
        self._hash.update(payload)
        self.bytes += len(payload)
        self.entries += 1
        return payload


class SnapshotDecoder:
    """Takes the payloads in order with `feed`; `finish` verifies all of it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._header: SnapshotHeader | None = None
        self._sessions: list[bytes] = []
        self._footer: dict[str, object] | None = None
        self._entries = 0
        self.chunks: list[bytes] = []

    def feed(self, payload: bytes) -> None:
        """Take the next payload. Raises BadSnapshot if it does not fit."""
        kind, body = payload[:1], payload[1:]
        if self._footer is not None:
            raise BadSnapshot("entries follow its footer")
        if kind == _FOOTER:
            self._footer = _object(body)
            return
        self._hash.update(payload)
        self._entries += 1
        if kind == _HEADER and self._header is None:
            raw = _object(body)
            if raw.pop("format", None) != FORMAT or set(raw) != set(SnapshotHeader._fields):
                raise BadSnapshot(f"its header is not of format {FORMAT}")
            self._header = SnapshotHeader(**raw)  # type: ignore[arg-type]
        elif kind == _SESSIONS and self._header is not None:
            self._sessions.append(body)
        elif kind == _STATE and self._header is not None:
            self.chunks.append(body)
        else:
            raise BadSnapshot(f"entry {self._entries - 1} is of a kind {kind!r} that has no place there")

    def finish(self, offset: Offset, digest: str) -> tuple[SnapshotHeader, bytes, list[bytes]]:
        """Return header, session table and chunks, if the digest and the offset are these. Raises BadSnapshot (R9)."""
        if self._header is None or self._footer is None:
            raise BadSnapshot("it is cut")
        found = self._hash.hexdigest()
        if found != digest or self._footer.get("digest") != digest or self._footer.get("entries") != self._entries:
            raise BadSnapshot(f"its digest is {found}, and {digest} was published")
        if self._header.offset != offset:
            raise BadSnapshot(f"it is of offset {self._header.offset}, and {offset} was published")
        return self._header, b"".join(self._sessions), self.chunks


def _object(body: bytes) -> dict[str, object]:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadSnapshot(f"it has malformed JSON ({error})") from None
    if not isinstance(raw, dict):
        raise BadSnapshot("it has malformed JSON")
    return raw


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of at most CHUNK_BYTES, small ones joined."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        view = memoryview(chunk)
        while size + len(view) >= CHUNK_BYTES:
            cut = CHUNK_BYTES - size
            held.append(bytes(view[:cut]))
            yield b"".join(held)
            held, size, view = [], 0, view[cut:]
        if len(view):
            held.append(bytes(view))
            size += len(view)
    if held:
        yield b"".join(held)
