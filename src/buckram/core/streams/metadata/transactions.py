"""Transactions of a stream: each application's newest one, and whether a step may be published. Pure.

A step is (application, version); streaming queries also give their identity: the query's id, which lives in its
checkpoint, and where that checkpoint is. So a checkpoint that was deleted or replaced is noticed, and a query that was
replaced can never publish again.

A query whose checkpoint was forked begins in the middle. Its id names the original query and the batch after which it
was forked: a UUID of version 8, whose bits are free for the application (RFC 9562); Spark makes version 4 and takes
any. So a sink finds all that it has to know in the id that comes with each batch, wherever the checkpoint is, and the
first batch of a fork begins like batch 0 of a query that was never forked. The sink of such a query is a stream of its
own: a new one, or a fork, to which the batches of its source came along.

Not here: the change of the head (`core/streams/metadata/changes.py`).
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from buckram.core.streams.metadata.head import Transaction
from buckram.errors import BatchesLost, CheckpointReset, InvalidArgument, StaleTransaction, UnknownQuery
from buckram.types import History, Offset

MAX_APPLICATIONS = 1000

APPLICATION_KEPT_US = 30 * 86_400 * 1_000_000

ONCE = "once "
"""An application whose name begins so publishes once and never comes back: it needs its record only to find out what
became of a lost reply. The ledgers themselves can be listed once only."""

ONCE_KEPT_US = 3600 * 1_000_000

_ONCE_LEAST_US = 600 * 1_000_000

_PAST = 16

MAX_TARGETS = 10_000
"""Maximum further streams of a query that are remembered, the most recently written ones."""

_MARK = 8
"""Characters of a stream's mark among the targets of a query: 48 bits of a digest of its name."""


class StepId(NamedTuple):
    """Identity of a bulk step, by which it happens once. `query` and `place` (of its checkpoint) are empty for batch
    jobs.

    `new_epoch`: go on where another query published before, instead of CheckpointReset; that one is out for good.
    `was`: the place as earlier releases wrote it. `targets`: the further streams that this batch writes to. `planned`
    and `history`: as in `Transaction`.
    """

    application: str
    version: int
    query: str = ""
    place: str = ""
    new_epoch: bool = False
    was: str = ""
    targets: tuple[str, ...] = ()
    planned: int = 0
    history: str = ""


HISTORY_HEADER = "Buckram-History"
"""HTTP header with the `history_mark` of the state from which a server answered; absent without a mark."""


def history_mark(cluster: str, now: History) -> str:
    """Return the mark of a cluster's metadata history, which changes with a restore and differs between clusters; "" if
    none was noted.
    """
    return _mark(f"{cluster} {now.restore}") if now.epoch else ""


def settled(name: str, known: Mapping[str, Transaction], step: StepId, came: Offset = 0) -> Transaction | None:
    """Return the transaction as which this very step was published; None if it may be published now.

    `came`: the records below this offset came along when the stream was made as a fork; 0 of other streams.
    StaleTransaction: a later one of the same query or job is published. CheckpointReset: another query stands there.
    """
    if step.query:
        for application, other in known.items():
            if step.query in other.past:
                raise CheckpointReset(name, application, step.query, step.version, other.query, other.version, out=True)
    same = newest(known, step.application, step.query)
    if same is not None and same[1].version >= step.version:
        if same[1].version > step.version:
            raise StaleTransaction(name, same[0], step.version, same[1].version, query=step.query)
        return same[1]
    others = {name: txn for name, txn in _others(known, step).items() if not _came_along(txn, step, came)}
    if others and not step.new_epoch:
        application, done = next(iter(others.items()))
        raise CheckpointReset(name, application, step.query, step.version, done.query, done.version)
    return None


def begins(step: StepId) -> bool:
    """Return whether the step is a query's first batch, which is recorded even when it is empty, for checks of later
    ones.
    """
    return bool(step.query) and step.version == first_batch(step.query)


def check_known(name: str, known: Mapping[str, Transaction], step: StepId, came: Offset = 0) -> None:
    """UnknownQuery: a query with a later batch, whose first one is not here: this is not the stream that it wrote. Or
    the first batch of a fork, where its source published what the fork would publish again. `came` as in `settled`.

    BatchesLost: the metadata have another history than when the query published last, and batches are missing since.
    """
    if not step.query or step.new_epoch:
        return
    if (same := newest(known, step.application, step.query)) is not None:
        done = same[1]
        if step.version > done.version + 1 and done.history and step.history and done.history != step.history:
            raise BatchesLost(name, step.query, step.version, done.version)
        return
    if not begins(step):
        raise UnknownQuery(name, step.query, step.version)
    for other in known.values():
        source = next((query for query in (other.query, *other.past) if is_fork_of(step.query, query)), None)
        if source is not None and not _came_along(other, step, came):
            raise UnknownQuery(name, step.query, step.version, source=source, recorded=other.version)


def check_target(
    name: str, known: Mapping[str, Transaction] | None, step: StepId, own: Mapping[str, Transaction]
) -> None:
    """UnknownQuery: the query wrote to this further stream, whose transactions are `known`, and it has no record of
    that: it was deleted, and made anew since. `known` is None if it is not there. `own`: of the sink's own stream."""
    if not step.query or step.new_epoch:
        return
    if known is not None and newest(known, step.application, step.query) is not None:
        return
    done = newest(own, step.application, step.query)
    if done is not None and _mark(name) in _marks(done[1].targets):
        raise UnknownQuery(name, step.query, step.version)


def _mark(name: str) -> str:
    digest = hashlib.sha256(name.encode()).digest()[: _MARK * 6 // 8]
    return base64.urlsafe_b64encode(digest).decode()


def _marks(targets: str) -> list[str]:
    return [targets[at : at + _MARK] for at in range(0, len(targets), _MARK)]


def _with_targets(targets: str, more: Iterable[str]) -> str:
    """Return the marks of all streams to which the query has written, those of this batch last."""
    new = {_mark(name): None for name in more}
    if not new:
        return targets
    return "".join([*(mark for mark in _marks(targets) if mark not in new), *new][-MAX_TARGETS:])


def _came_along(txn: Transaction, step: StepId, came: Offset) -> bool:
    """Return whether this is the newest batch that a fork has in common with its source, published before the fork in
    the stream of which this one is a fork. Then the fork lacks nothing of its source and writes nothing again.
    """
    if not is_fork_of(step.query, txn.query) or txn.version != first_batch(step.query) - 1:
        return False
    return txn.first_offset < came and txn.next_offset <= came  # What was published here began at `came` or later.


def decided(known: Mapping[str, Transaction], application: str, query: str, version: int) -> bool:
    """Return whether ledgers of this step that are in no list never will be: it is published, or its query is out."""
    same = newest(known, application, query)
    if same is not None:
        return same[1].version >= version
    return bool(query) and any(query in other.past for other in known.values())


def recorded(
    name: str,
    known: Mapping[str, Transaction],
    step: StepId,
    first: int,
    stop: int,
    now: int,
    earliest: int | None = None,
) -> dict[str, Transaction]:
    """Return the transactions after this step, which `settled` let pass, got the offsets first..stop - 1.

    `now` is recorded. Transactions that are old by `earliest`, the earliest possible present time (None: `now`), are
    forgotten.
    """
    earliest = now if earliest is None else earliest
    same, others = newest(known, step.application, step.query), _others(known, step)
    out = [*([same[1]] if same is not None else []), *others.values()]
    past = [query for txn in out for query in (*txn.past, txn.query) if query and query != step.query]
    gone = {step.application: None, **others} if same is None else {step.application: None, same[0]: None, **others}
    kept = {
        application: txn
        for application, txn in known.items()
        if application not in gone and not (application.startswith(ONCE) and earliest - txn.time > ONCE_KEPT_US)
    }
    if len(kept) >= MAX_APPLICATIONS:
        _drop_one(name, kept, now)
    left = tuple(dict.fromkeys(past))[-_PAST:]
    targets = _with_targets("" if same is None else same[1].targets, step.targets)
    return {
        **kept,
        step.application: Transaction(
            step.version,
            first,
            stop,
            now,
            step.query,
            step.place,
            left,
            targets,
            _pause(None if same is None else same[1], now),
            step.planned,
            step.history,
        ),
    }


def _pause(before: Transaction | None, now: int) -> int:
    """Return the longest recent pause between a query's batches, microseconds; earlier ones decay by 1/8 per batch."""
    if before is None or not before.query:
        return 0
    return max(now - before.time, before.pause * 7 // 8, 0)


def newest(known: Mapping[str, Transaction], application: str, query: str) -> tuple[str, Transaction] | None:
    """Return the name and the transaction that this query published last; for a batch job those of its application."""
    if query:
        return next(((name, txn) for name, txn in known.items() if txn.query == query), None)
    done = known.get(application)
    return (application, done) if done is not None and not done.query else None


def _others(known: Mapping[str, Transaction], step: StepId) -> dict[str, Transaction]:
    """Return transactions of other queries with the same name or the same checkpoint, in its present or former
    spelling.
    """
    places = {place for place in (step.place, step.was) if place}
    return {
        name: txn
        for name, txn in known.items()
        if txn.query != step.query and (name == step.application or txn.place in places)
    }


def _drop_one(name: str, kept: dict[str, Transaction], now: int) -> None:
    once = [app for app, txn in kept.items() if app.startswith(ONCE) and now - txn.time > _ONCE_LEAST_US]
    oldest = min(once or kept, key=lambda app: kept[app].time)
    if not once and now - kept[oldest].time < APPLICATION_KEPT_US:
        raise InvalidArgument(
            f"stream {name}: {MAX_APPLICATIONS} applications published within 30 days; use fewer names"
        )
    del kept[oldest]


# -- ids of queries with a forked checkpoint ------------------------------------------------------------------

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
