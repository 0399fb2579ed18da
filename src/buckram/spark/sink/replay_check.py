"""Comparing a repeated batch of a streaming query with the batch that was published under its number.

Spark repeats a batch if the driver died after it was published and before Spark recorded that. Its rows are in the
stream, and nothing is written. But a batch of this number may also be another one, planned from an older copy of the
checkpoint: then some of its rows are not in the stream, and skipping it would lose them. The rows are compared without
regard to order, because Spark guarantees neither the order within a partition nor the same partitions.

If the checkpoint's files can be read, they prove more: a batch that was planned at the very time at which the published
one was is that one, even if its query does not return the same rows twice (`uuid()`, `rand()`, an external service).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from buckram.core.streams.metadata.head import Transaction
from buckram.core.streams.metadata.transactions import StepId
from buckram.core.streams.names import stream_name
from buckram.errors import OffsetOutOfRange, OffsetTruncated, ReplayDiffers

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram.cluster import Client

log = logging.getLogger("buckram.spark")
_WRAP = 2**64 - 1


class Tally(NamedTuple):
    """The number of rows and the sum of their digests, neither of which depends on the order of the rows."""

    rows: int = 0
    digest: int = 0

    def plus(self, other: Tally) -> Tally:
        """Return the tally of the rows of both."""
        return Tally(self.rows + other.rows, self.digest + other.digest & _WRAP)


# -- rows -------------------------------------------------------------------------------------------------


def tally(batch: pa.RecordBatch) -> Tally:
    """Return the tally of a task's rows, by value, key and headers.

    The time does not count, as it may be that of writing.
    """
    from buckram.streams.shared.arrow_columns import as_binary

    nothing: list[Any] = [None] * batch.num_rows
    columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
    values = as_binary(columns["value"]).to_pylist()
    keys = as_binary(columns["key"]).to_pylist() if "key" in columns else nothing
    headers = columns["headers"].to_pylist() if "headers" in columns else nothing
    pairs = ([(_bytes(pair["key"]), pair["value"]) for pair in row or ()] for row in headers)
    return Tally(batch.num_rows, _sum(zip(values, keys, pairs, strict=True)))


async def published_tally(client: Client, stream: str, done: Transaction) -> Tally | None:
    """Return the tally of the rows that were published; None if some of them were truncated."""
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
        total += digest_of((value, key, *(part for pair in headers for part in pair)))
    return total & _WRAP


def digest_of(parts: Iterable[bytes | None]) -> int:
    """Return the digest of one row, whose parts are kept apart."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(b"-" if part is None else b"%d:" % len(part))
        digest.update(part or b"")
    return int.from_bytes(digest.digest(), "little")


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


# -- the checkpoint ---------------------------------------------------------------------------------------


def local_path(checkpoint: str) -> str:
    """Return the checkpoint's path in this machine's file system; empty if it is in another one."""
    path = re.sub(r"^file:/+", "/", checkpoint.strip()).rstrip("/")
    if not path or re.match(r"^[a-zA-Z][a-zA-Z0-9+.-]*:", path):
        return ""
    return os.path.abspath(path)


def planned_at(checkpoint: str, batch: int) -> int:
    """Return when Spark planned the batch, in microseconds UTC, from the checkpoint at this local path.

    Returns 0 if the checkpoint cannot be read or does not say.
    """
    if not checkpoint:
        return 0
    try:
        lines = offsets_file(checkpoint, batch).splitlines()
        time = json.loads(lines[1])["batchTimestampMs"]
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return 0
    return time * 1000 if type(time) is int and time > 0 else 0


def offsets_file(checkpoint: str, batch: int) -> str:
    """Return what Spark wrote when it planned the batch. Raises OSError, or ValueError for no text."""
    with open(os.path.join(checkpoint, "offsets", str(batch)), encoding="utf-8") as offsets:
        return offsets.read()


def check_same(
    name: str,
    step: StepId,
    done: Transaction,
    *,
    rows: int,
    seen: Tally | None,
    tally: Callable[[], Tally | None],
    offsets: bool = True,
) -> None:
    """Raise ReplayDiffers unless the repeated batch is the one that was published as `done`.

    `rows` is the number of its rows, `seen` their tally, or None if the tasks only counted them. `tally` returns that
    of the published rows; `offsets`: whether `done` has offsets of them.
    """
    if _is_that_plan(step.planned, done):
        return
    published = range(done.first_offset, done.next_offset)
    if rows != len(published):
        raise ReplayDiffers(name, step.query, step.version, published, rows, offsets=offsets)
    if seen is None:
        return
    then = tally()
    if then is None:
        log.warning(
            "stream %s: batch %d of query %s was published, and its rows are truncated or were not summed up: only "
            "their number could be compared",
            name,
            step.version,
            step.query,
        )
    elif then != seen:
        raise ReplayDiffers(name, step.query, step.version, published, rows, offsets=offsets)


def _is_that_plan(planned: int, done: Transaction) -> bool:
    """Return whether a batch planned at this time is the published one; False if the time is 0, unknown.

    Both times are Spark's, from one file, so no clocks are compared. Earlier releases recorded no such time.
    """
    if not planned:
        return False
    return planned == done.planned if done.planned else planned <= done.time


__all__ = ["ReplayDiffers", "Tally", "check_same", "digest_of", "local_path", "planned_at", "published_tally", "tally"]
