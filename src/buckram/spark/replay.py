"""Whether a batch that comes again is the one that was published.

Spark repeats a batch when a driver died between its publishing and Spark's note of it: the rows are there, nothing is
written. A batch of that number can also be another one, planned from an older copy of the checkpoint: its rows are not
all there, and to pass over them would lose them. What is published is compared with what came, without any order:
Spark promises none within a partition, nor that partitions are the same.

Where the checkpoint's own files can be read they prove more. A batch that was planned before it was published is that
very batch, also when its query does not give the same rows twice (`uuid()`, `rand()`, somebody else's service).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from buckram.core.streams.head import Transaction
from buckram.core.streams.names import stream_name
from buckram.errors import OffsetOutOfRange, OffsetTruncated, ReplayDiffers

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram.client.client import Client

log = logging.getLogger("buckram.spark")
_WRAP = 2**64 - 1


class Tally(NamedTuple):
    """How many rows, and the sum of their digests; the same in whatever order they come."""

    rows: int = 0
    digest: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(self.rows + other.rows, self.digest + other.digest & _WRAP)


# -- rows -------------------------------------------------------------------------------------------------


def tally(batch: pa.RecordBatch) -> Tally:
    """Of the rows that a task is given: value, key and headers. Not the time, which may be that of writing."""
    from buckram.streams.write.arrow_write import as_binary

    nothing: list[Any] = [None] * batch.num_rows
    columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
    values = as_binary(columns["value"]).to_pylist()
    keys = as_binary(columns["key"]).to_pylist() if "key" in columns else nothing
    headers = columns["headers"].to_pylist() if "headers" in columns else nothing
    pairs = ([(_bytes(pair["key"]), pair["value"]) for pair in row or ()] for row in headers)
    return Tally(batch.num_rows, _sum(zip(values, keys, pairs, strict=True)))


async def published_tally(client: Client, stream: str, done: Transaction) -> Tally | None:
    """Of the rows that were published; None if some of them are truncated."""
    name, total = stream_name(stream), Tally()
    if done.first_offset == done.next_offset:
        return total
    reader = client.namespace(name.namespace).read(name.stream, start=done.first_offset, stop=done.next_offset)
    try:
        async for batch in reader.batches():
            found = batch.records()
            rows = ((r.value, r.key, [(_bytes(key), value) for key, value in r.headers]) for r in found)
            total = total.plus(Tally(len(found), _sum(rows)))
    except (OffsetTruncated, OffsetOutOfRange):
        return None
    finally:
        await reader.close()
    return total


def _sum(rows: Iterable[tuple[bytes | None, bytes | None, Sequence[tuple[bytes, bytes]]]]) -> int:
    total = 0
    for value, key, headers in rows:
        digest = blake2b(digest_size=8)
        for part in (value, key, *(part for pair in headers for part in pair)):
            digest.update(b"-" if part is None else b"%d:" % len(part))
            digest.update(part or b"")
        total += int.from_bytes(digest.digest(), "little")
    return total & _WRAP


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


# -- the checkpoint ---------------------------------------------------------------------------------------


def local_path(checkpoint: str) -> str:
    """Where the checkpoint is in this machine's file system; empty if it is elsewhere."""
    path = re.sub(r"^file:/+", "/", checkpoint.strip()).rstrip("/")
    if not path or re.match(r"^[a-zA-Z][a-zA-Z0-9+.-]*:", path):
        return ""
    return os.path.abspath(path)


def planned_at(checkpoint: str, batch: int) -> int | None:
    """When Spark planned this batch, microseconds UTC, as its checkpoint (a local path) says; None if it cannot be
    told."""
    if not checkpoint:
        return None
    try:
        with open(os.path.join(checkpoint, "offsets", str(batch)), encoding="utf-8") as offsets:
            lines = offsets.read().splitlines()
        time = json.loads(lines[1])["batchTimestampMs"]
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return None
    return time * 1000 if type(time) is int and time > 0 else None


async def compare(
    client: Client,
    stream: str,
    query: str,
    batch: int,
    done: Transaction,
    *,
    rows: int,
    seen: Tally | None,
    checkpoint: str,
) -> None:
    """Pass for what was published as `done`; ReplayDiffers for another batch of this number. `seen`: None where tasks
    counted only."""
    planned = planned_at(checkpoint, batch)
    if planned is not None and planned <= done.time:
        return
    if rows != done.next_offset - done.first_offset:
        raise ReplayDiffers(stream, query, batch, range(done.first_offset, done.next_offset), rows)
    if seen is None:
        return
    then = await published_tally(client, stream, done)
    if then is None:
        log.warning(
            "stream %s: batch %d of query %s was published, and its rows are truncated: only their number "
            "could be compared",
            stream,
            batch,
            query,
        )
    elif then != seen:
        raise ReplayDiffers(stream, query, batch, range(done.first_offset, done.next_offset), rows)


__all__ = ["ReplayDiffers", "Tally", "compare", "local_path", "planned_at", "published_tally", "tally"]
