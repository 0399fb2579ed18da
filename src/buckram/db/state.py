"""DatabaseState: a database as what a replica keeps equal. It decides on each record of the log, and tells the engine.

What decides is here, on the loop, and follows from the log alone: the order of groups, their digest, the tokens. The
pages follow in the engine's thread. Not here: the replica (`machine/replica.py`), pages (`db/engine.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from buckram.core.db.digest import EMPTY_DIGEST
from buckram.core.db.group import PART, Group, decode_group, kind_of
from buckram.core.db.outcomes import Outcomes
from buckram.core.db.parts import Joiner
from buckram.core.db.wal_format import PAGE_BYTES
from buckram.core.machine.fold import LogEntry
from buckram.core.streams.codecs import Codec
from buckram.db.engine import Engine, image_chunks
from buckram.db.execution import Pending
from buckram.errors import CommandRefused

FORMAT = 1
_SIZE = struct.Struct(">I")
_CHUNK_PAGES = 128


class DatabaseState:
    """The state of one replica. `engine` is set before the first record comes."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.engine: Engine
        self.pending: Pending | None = None
        """The transaction of this process whose group is on its way into the log."""
        self._codec = Codec()
        self._pristine = True
        """Whether the engine has still the empty database that it began with."""
        self._begin(0, EMPTY_DIGEST, Outcomes(), Joiner())

    def _begin(self, sequence: int, digest: int, outcomes: Outcomes, joiner: Joiner) -> None:
        self.sequence, self._digest = sequence, digest
        """The number of groups, and the digest of all pages after them."""
        self.outcomes, self._joiner = outcomes, joiner

    # -- Replicated ---------------------------------------------------------------------------------------

    def apply_entry(self, entry: LogEntry) -> bytes:
        self.engine.check()
        self._pristine = False
        payload: bytes | None = entry.payload
        if kind_of(entry.payload) == PART:
            payload = self._joiner.joined(entry.payload)
        else:
            self._joiner.drop()
        if payload is None:
            return b""
        group = decode_group(payload, self._codec)
        if group.sequence != self.sequence + 1:
            raise CommandRefused(f"group {group.sequence} was made for another state; {self.sequence} are committed")
        self.sequence, self._digest = group.sequence, group.digest
        self.outcomes.committed(group)
        self._hand_over(entry.offset, group)
        return group.digest.to_bytes(8, "big")

    def _hand_over(self, offset: int, group: Group) -> None:
        pending = self.pending
        own = pending is not None and (pending.leadership, pending.sequence) == (group.leadership, group.sequence)
        if own and pending is not None and not pending.decided.is_set():
            pending.decide(None)
        else:
            self.engine.apply(offset, group)

    def snapshot(self) -> Iterable[bytes]:
        """The pages of this moment. The reader behind them is opened now and closed with the iterator."""
        image = self.engine.image(self.sequence)
        head = {
            "format": FORMAT,
            "sequence": self.sequence,
            "digest": self._digest,
            "pages": image.size,
            "outcomes": self.outcomes.state(),
            "parts": [part.hex() for part in self._joiner.held],
        }
        codec = Codec()

        def pack(data: bytes) -> bytes:
            packed = codec.compress(data)
            return _SIZE.pack(len(packed)) + packed

        text = json.dumps(head).encode()
        packed = codec.compress(text)
        first = _SIZE.pack(8 + len(packed)) + len(text).to_bytes(8, "big") + packed
        return _after(first, image_chunks(image, _CHUNK_PAGES, pack))

    def restore(self, chunks: Iterable[bytes]) -> None:
        pieces = _pieces(chunks)
        first = next(pieces, None)
        pristine, self._pristine = self._pristine, first is None
        if first is None:
            self._begin(0, EMPTY_DIGEST, Outcomes(), Joiner())
            if pristine:
                return
            self.engine.restore(None, 0, EMPTY_DIGEST)
            return
        codec = Codec()
        head = _head(codec, first)
        self._begin(
            head["sequence"],
            head["digest"],
            Outcomes.of(head["outcomes"]),
            Joiner([bytes.fromhex(part) for part in head["parts"]]),
        )
        size = head["pages"]

        def pages() -> Iterator[bytes]:
            for number, piece in enumerate(pieces):
                count = min(_CHUNK_PAGES, size - number * _CHUNK_PAGES)
                yield codec.decompress(piece, count * PAGE_BYTES)

        self.engine.restore(pages, self.sequence, self._digest)

    def digest(self) -> bytes:
        return struct.pack(">QQ", self.sequence, self._digest)


def _after(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _head(codec: Codec, packed: bytes) -> dict[str, Any]:
    size = int.from_bytes(packed[:8], "big")
    raw: dict[str, Any] = json.loads(codec.decompress(packed[8:], size))
    if raw.get("format") != FORMAT:
        raise ValueError(f"a snapshot of a database of format {raw.get('format')}; this version knows {FORMAT}")
    return raw


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """What `snapshot` packed, from chunks of other sizes."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        at = 0
        while len(held) - at >= _SIZE.size:
            size = _SIZE.unpack_from(held, at)[0]
            if len(held) - at - _SIZE.size < size:
                break
            yield bytes(held[at + _SIZE.size : at + _SIZE.size + size])
            at += _SIZE.size + size
        del held[:at]
    if held:
        raise ValueError("a snapshot of a database is cut")


__all__ = ["DatabaseState"]
