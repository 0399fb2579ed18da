"""DatabaseState: a database as a replicated state. It decides on each record of the log, and hands it to the engine.

The decisions are made here, on the event loop, and follow from the log alone: the order of groups, their digest, the
tokens. The pages follow in the engine's thread. Not here: the replica (`state/machine/replica.py`), pages
(`state/db/table_engine/engine.py`).
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from buckram.core.db.changes import separated
from buckram.core.db.digest import EMPTY_DIGEST, digest_of
from buckram.core.db.group import PART, Group, Joiner, decode_group, kind_of
from buckram.core.db.outcomes import Outcomes
from buckram.core.db.wal_format import PAGE_BYTES
from buckram.core.machine.fold import LogEntry
from buckram.core.streams.records.codecs import Codec
from buckram.errors import CommandRefused, MalformedBatch
from buckram.state.db.table_engine.engine import Engine
from buckram.state.db.table_engine.execution import Pending
from buckram.state.db.table_engine.wal_files import Image

FORMAT = 2
_SIZE = struct.Struct(">I")
_CHUNK_PAGES = 128


class DatabaseState:
    """The state of one replica. `engine` is set before the first record comes."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.engine: Engine
        self.pending: Pending | None = None
        """The transaction of this process whose group is on its way into the log."""
        self.changes = b""
        """Row changes of the last applied group, encoded; empty in a database without change data capture."""
        self._codec = Codec()
        self._pristine = True
        """True while the engine still has the empty database that it began with."""
        self._begin(0, EMPTY_DIGEST, Outcomes(), Joiner())

    def _begin(self, sequence: int, digest: int, outcomes: Outcomes, joiner: Joiner) -> None:
        self.sequence, self._digest = sequence, digest
        """Number of groups, and the digest of all pages after them."""
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
        changes, payload = separated(payload)
        group = decode_group(payload, self._codec)
        if group.sequence != self.sequence + 1:
            raise CommandRefused(f"group {group.sequence} was made for another state; {self.sequence} are committed")
        self.sequence, self._digest = group.sequence, group.digest
        self.outcomes.committed(group, entry.time_us)
        self.changes = changes
        self._hand_over(entry.offset, group)
        return group.digest.to_bytes(8, "big")

    def set_back(self, time_us: int) -> None:
        """Set the times of tokens back to `time_us` (KeepsTimes): they are known for at most a day from now on."""
        self.outcomes.set_back(time_us)

    def _hand_over(self, offset: int, group: Group) -> None:
        pending = self.pending
        own = pending is not None and (pending.leadership, pending.sequence) == (group.leadership, group.sequence)
        if own and pending is not None and not pending.decided.is_set():
            pending.decide(None)
        else:
            self.engine.apply(offset, group)

    def room(self) -> Awaitable[None] | None:
        return self.engine.room()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the present state; the engine's thread takes its pages when it has applied that far."""
        head = {
            "format": FORMAT,
            "sequence": self.sequence,
            "digest": self._digest,
            "outcomes": self.outcomes.state(),
            "parts": [part.hex() for part in self._joiner.held],
        }
        return Snapshot(self.engine.image(self.sequence), head, self.outcomes.receipts())

    def fault(self, chunks: Sequence[bytes]) -> str:
        try:
            pieces, codec = _pieces(chunks), Codec()
            first = next(pieces, None)
            if first is None:
                return "it is empty"
            head = _unpacked(codec, first)
            if head.get("format") != FORMAT:
                return ""  # Another version wrote it; restoring it raises the error.
            digest = number = 0
            _outcomes(codec, pieces, head["outcomes"])
            for data in _page_runs(codec, pieces, head["pages"]):
                pages = (data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES))
                digest = digest_of(pages, number + 1, digest)
                number += len(data) // PAGE_BYTES
        except (ValueError, KeyError, TypeError, MalformedBatch) as error:
            return f"its pages cannot be read: {error}"
        if (digest, number) != (head["digest"], head["pages"]):
            return (
                f"it has {number} pages of digest {digest:016x}, and names {head['pages']} of digest "
                f"{head['digest']:016x}"
            )
        return ""

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
            _outcomes(codec, pieces, head["outcomes"]),
            Joiner([bytes.fromhex(part) for part in head["parts"]]),
        )
        self.engine.restore(lambda: _page_runs(codec, pieces, head["pages"]), self.sequence, self._digest)

    def digest(self) -> bytes:
        return struct.pack(">QQ", self.sequence, self._digest)


class Snapshot:
    """The pieces of a snapshot, a Prepared (`core/machine/fold.py`)."""

    def __init__(self, image: asyncio.Future[Image], head: dict[str, Any], receipts: list[dict[str, str]]) -> None:
        self._future, self._head, self._receipts = image, head, receipts
        self._image: Image | None = None

    async def ready(self) -> None:
        """Return when the thread has come to the state. Raises DatabaseFailed, HandleClosed."""
        self._image = await self._future

    def close(self) -> None:
        if not self._future.cancel() and not self._future.cancelled() and self._future.exception() is None:
            self._future.result().close()

    def __iter__(self) -> Iterator[bytes]:
        image, codec = self._image, Codec()
        assert image is not None, "it is not ready"
        yield _packed(codec, {**self._head, "pages": image.size})
        for receipts in self._receipts:
            yield _packed(codec, receipts)
        numbers = range(1, image.size + 1)
        for first in range(0, len(numbers), _CHUNK_PAGES):
            packed = codec.compress(b"".join(image.page(number) for number in numbers[first : first + _CHUNK_PAGES]))
            yield _SIZE.pack(len(packed)) + packed


def _page_runs(codec: Codec, pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield all pages in order, many at a time."""
    for number, piece in enumerate(pieces):
        count = min(_CHUNK_PAGES, size - number * _CHUNK_PAGES)
        yield codec.decompress(piece, count * PAGE_BYTES)


def _packed(codec: Codec, value: dict[str, Any]) -> bytes:
    """Return a value as a packed piece of JSON."""
    text = json.dumps(value).encode()
    packed = codec.compress(text)
    return _SIZE.pack(8 + len(packed)) + len(text).to_bytes(8, "big") + packed


def _unpacked(codec: Codec, packed: bytes) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(codec.decompress(packed[8:], int.from_bytes(packed[:8], "big")))
    return raw


def _outcomes(codec: Codec, pieces: Iterator[bytes], state: dict[str, Any]) -> Outcomes:
    """Return the outcomes of a snapshot; takes one piece for each span of tokens."""
    return Outcomes.of(state, (_unpacked(codec, piece) for piece in islice(pieces, len(state["spans"]))))


def _head(codec: Codec, packed: bytes) -> dict[str, Any]:
    raw = _unpacked(codec, packed)
    if raw.get("format") != FORMAT:
        raise ValueError(f"a snapshot of a database of format {raw.get('format')}; this version knows {FORMAT}")
    return raw


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces that `snapshot` packed, from chunks of other sizes. Raises ValueError if the end is missing."""
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
