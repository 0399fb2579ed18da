"""The id of a query with a forked checkpoint, which names the original query and the batch after which it was forked.
Pure.

Such an id is a UUID of version 8, whose bits are free for the application (RFC 9562); Spark makes version 4 and takes
any. A sink finds all that it has to know in the id that comes with each batch, wherever the checkpoint is, so the first
batch of a fork begins like batch 0 of a query that was never forked. Not here: checks of that batch
(`transactions.py`).
"""

from __future__ import annotations

import hashlib
import uuid

from buckram.errors import InvalidArgument

_BATCH_BITS, _RANDOM_BITS = 36, 38
_LOW_BITS = _BATCH_BITS + _RANDOM_BITS
"""Number of bits below the 48 of the source's digest; 12 of them lie before the UUID's variant, 62 behind it."""
_VERSION = 8


def forked_query(source: str, batch: int, random: int) -> str:
    """Return an id for a fork of the query `source` after this batch; `random` tells its forks apart.

    InvalidArgument for a batch that no id has room for.
    """
    if not 0 <= batch < 1 << _BATCH_BITS:
        raise InvalidArgument(
            f"batch {batch} of query {source}: forks are made after batches 0 to {2**_BATCH_BITS - 1}"
        )
    low = batch << _RANDOM_BITS | random % (1 << _RANDOM_BITS)
    value = _digest(source) << 80 | _VERSION << 76 | low >> 62 << 64 | 0b10 << 62 | low % (1 << 62)
    return str(uuid.UUID(int=value))


def first_batch(query: str) -> int:
    """Return the batch with which a query begins: 0, or for a fork the one after the batch at which it was forked."""
    found = _parse(query)
    return 0 if found is None else (found[1] >> _RANDOM_BITS) + 1


def is_fork_of(query: str, source: str) -> bool:
    """Return whether `query` is a fork of the query `source` itself, not of one of its forks."""
    found = _parse(query)
    return found is not None and bool(source) and found[0] == _digest(source)


def _digest(source: str) -> int:
    return int.from_bytes(hashlib.sha256(source.encode()).digest()[:6], "big")


def _parse(query: str) -> tuple[int, int] | None:
    """Return the source's digest and the bits of batch and randomness; None for an id that is not a fork's."""
    try:
        found = uuid.UUID(query)
    except ValueError:
        return None
    if found.version != _VERSION:
        return None
    value = found.int
    return value >> 80, (value >> 64) % (1 << 12) << 62 | value % (1 << 62)


__all__ = ["first_batch", "forked_query", "is_fork_of"]
