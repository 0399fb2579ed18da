"""Who published what into a stream: each application's newest transaction, and whether a step may be published. Pure.

A step is (application, version); streaming queries also say which run of the world it belongs to: the query's id, which
lives in its checkpoint, and where that checkpoint is. So a checkpoint that was deleted or replaced is noticed, and a
query that was replaced can never publish again. The change of the head is in `changes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from buckram.core.streams.head import Transaction
from buckram.errors import CheckpointReset, InvalidArgument, StaleTransaction, UnknownQuery

MAX_APPLICATIONS = 1000
APPLICATION_KEPT_US = 30 * 86_400 * 1_000_000
ONCE = "once "
"""An application whose name begins so publishes once and never comes back: it needs its record only to find out what
became of a lost reply. The ledgers themselves can be listed once only."""
ONCE_KEPT_US = 3600 * 1_000_000
_ONCE_LEAST_US = 600 * 1_000_000
_PAST = 16


class StepId(NamedTuple):
    """What makes a bulk step happen once. `query` and `place` (of its checkpoint) are empty for batch jobs.

    `new_epoch`: go on where another query published before, instead of CheckpointReset; that one is out for good.
    """

    application: str
    version: int
    query: str = ""
    place: str = ""
    new_epoch: bool = False


def settled(name: str, known: Mapping[str, Transaction], step: StepId) -> Transaction | None:
    """What this very step was published as; None: it may be published now.

    StaleTransaction: a later one of the same query or job is published. CheckpointReset: another query stands there.
    """
    if step.query:
        for application, other in known.items():
            if step.query in other.past:
                raise CheckpointReset(name, application, step.query, step.version, other.query, other.version, out=True)
    same = newest(known, step.application, step.query)
    if same is not None and same[1].version >= step.version:
        if same[1].version > step.version:
            raise StaleTransaction(name, same[0], step.version, same[1].version)
        return same[1]
    others = _others(known, step)
    if others and not step.new_epoch:
        application, done = next(iter(others.items()))
        raise CheckpointReset(name, application, step.query, step.version, done.query, done.version)
    return None


def check_known(name: str, known: Mapping[str, Transaction], step: StepId) -> None:
    """UnknownQuery: a query with a later batch, whose batch 0, which is recorded even when it is empty, is not here:
    this is not the stream that it wrote."""
    if step.query and step.version > 0 and not step.new_epoch and newest(known, step.application, step.query) is None:
        raise UnknownQuery(name, step.query, step.version)


def decided(known: Mapping[str, Transaction], application: str, query: str, version: int) -> bool:
    """Ledgers of this step that are in no list will never be in one: it is published, or its query is out."""
    same = newest(known, application, query)
    if same is not None:
        return same[1].version >= version
    return bool(query) and any(query in other.past for other in known.values())


def recorded(
    name: str, known: Mapping[str, Transaction], step: StepId, first: int, stop: int, now: int
) -> dict[str, Transaction]:
    """The transactions after this step, which `settled` let pass, got the offsets first..stop - 1."""
    same, others = newest(known, step.application, step.query), _others(known, step)
    out = [*([same[1]] if same is not None else []), *others.values()]
    past = [query for txn in out for query in (*txn.past, txn.query) if query and query != step.query]
    gone = {step.application: None, **others} if same is None else {step.application: None, same[0]: None, **others}
    kept = {
        application: txn
        for application, txn in known.items()
        if application not in gone and not (application.startswith(ONCE) and now - txn.time > ONCE_KEPT_US)
    }
    if len(kept) >= MAX_APPLICATIONS:
        _drop_one(name, kept, now)
    left = tuple(dict.fromkeys(past))[-_PAST:]
    return {**kept, step.application: Transaction(step.version, first, stop, now, step.query, step.place, left)}


def newest(known: Mapping[str, Transaction], application: str, query: str) -> tuple[str, Transaction] | None:
    """What this query published last, and under which name; of a batch job what its application did."""
    if query:
        return next(((name, txn) for name, txn in known.items() if txn.query == query), None)
    done = known.get(application)
    return (application, done) if done is not None and not done.query else None


def _others(known: Mapping[str, Transaction], step: StepId) -> dict[str, Transaction]:
    """What another query published under the same name, or from the same checkpoint."""
    return {
        name: txn
        for name, txn in known.items()
        if txn.query != step.query and (name == step.application or (step.place and txn.place == step.place))
    }


def _drop_one(name: str, kept: dict[str, Transaction], now: int) -> None:
    once = [app for app, txn in kept.items() if app.startswith(ONCE) and now - txn.time > _ONCE_LEAST_US]
    oldest = min(once or kept, key=lambda app: kept[app].time)
    if not once and now - kept[oldest].time < APPLICATION_KEPT_US:
        raise InvalidArgument(
            f"stream {name}: {MAX_APPLICATIONS} applications published within 30 days; use fewer names"
        )
    del kept[oldest]


__all__ = [
    "APPLICATION_KEPT_US",
    "MAX_APPLICATIONS",
    "ONCE",
    "StepId",
    "check_known",
    "decided",
    "newest",
    "recorded",
    "settled",
]
