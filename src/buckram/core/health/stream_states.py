"""States of namespaces and streams: quotas that are used up, cursors, queries, mirrors and backups that do not advance,
and ledgers that belong to another stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from buckram.core.health.cluster_states import lasting
from buckram.core.health.facts import Facts, Noted

HELD_S = 30 * 86_400.0
"""Seconds without a move after which a cursor is reported: it keeps records that nobody seems to read."""
QUERY_S = 3_600.0
PAUSES = 3
"""A query counts as dead if it has published nothing for QUERY_S, and for PAUSES times its longest recent pause."""
QUERY_UNTIL_S = 7 * 86_400.0
"""Seconds since its last batch after which a query is taken to have ended on purpose, and is no longer reported."""
MIRROR_S = 1_800.0
"""Seconds without a record of its replication, which makes one every few minutes, after which a mirror is behind."""
MIRROR_RECORDS = 100_000
"""Number of lacking records above which a mirror is behind, however recently its replication recorded that."""

FOREIGN_UNTIL_S = 7 * 86_400.0
"""Seconds after which a foreign ledger that no server has found again is no longer reported."""
BACKUPS_LATE = 2
"""Number of intervals of the policy after which the newest backup counts as late."""


def of_streams(facts: Facts) -> Iterator[Noted]:
    yield from _quotas(facts)
    yield from _cursors(facts)
    yield from _queries(facts)
    yield from _mirrors(facts)
    yield from _backups(facts)
    yield from _foreign(facts)


def _age_s(facts: Facts, time_us: int) -> float:
    return max(0.0, (facts.now_us - time_us) / 1e6)


def _quotas(facts: Facts) -> Iterator[Noted]:
    for one in facts.namespaces:
        for quota, used, limit in one.quotas:
            if used >= max(limit, 1):
                why = f"{used} of {limit} {quota} are used: what needs more is refused"
                yield Noted("namespace-over-quota", one.name, why, {"namespace": one.name, "quota": quota})


def _cursors(facts: Facts) -> Iterator[Noted]:
    if facts.time_doubted or facts.clock_doubt:
        return  # the last resort deletes records, and ages cannot be trusted while the time is in doubt
    for one in facts.cursors:
        age = _age_s(facts, one.moved_us)
        if one.records > 0 and age >= HELD_S:
            why = f"cursor {one.cursor} was not moved for {lasting(age)} and holds {one.records} records"
            values = {"stream": one.stream, "cursor": one.cursor}
            yield Noted("cursor-holds-retention", f"{one.stream} {one.cursor}", why, values)


def _queries(facts: Facts) -> Iterator[Noted]:
    for one in facts.queries:
        age, pause = _age_s(facts, one.committed_us), one.pause_us / 1e6
        if pause and max(QUERY_S, PAUSES * pause) <= age <= QUERY_UNTIL_S:
            before = f"and its longest pause lately was {lasting(pause)}"
            why = f"query {one.query} published batch {one.batch} {lasting(age)} ago, {before}"
            values = {"query": one.query, "stream": one.stream}
            yield Noted("query-dead", f"{one.stream} {one.application}", why, values)


def _mirrors(facts: Facts) -> Iterator[Noted]:
    for one in facts.mirrors:
        age = _age_s(facts, one.time_us)
        if one.trouble:
            yield Noted("mirror-stopped", one.stream, one.trouble)
        elif one.behind > MIRROR_RECORDS or age >= MIRROR_S:
            why = f"it lacked {one.behind} records when its replication was heard of last, {lasting(age)} ago"
            yield Noted("mirror-behind", one.stream, why)


def _backups(facts: Facts) -> Iterator[Noted]:
    for one in facts.backups:
        if one.trouble:
            yield Noted("backup-failed", one.database, one.trouble)
        age = _age_s(facts, one.made_us or one.since_us)
        wanted = f"its policy wants one at {one.place or 'no place'} every {lasting(one.every_s)}"
        if one.made_us and age > BACKUPS_LATE * one.every_s:
            yield Noted("backup-late", one.database, f"its newest backup is of {lasting(age)} ago, and {wanted}")
        elif not one.made_us and age > one.every_s:
            yield Noted("backup-late", one.database, f"no backup of it was ever made, and {wanted}")


def _foreign(facts: Facts) -> Iterator[Noted]:
    for one in facts.foreign:
        age = _age_s(facts, one.time_us)
        if age <= FOREIGN_UNTIL_S:
            what = f"files of history at {one.location}" if one.location else f"ledger {one.ledger}"
            why = f"its metadata name {what}, made for another stream or for none; seen {lasting(age)} ago"
            yield Noted("foreign-ledger", f"{one.stream} {one.ledger}", why, {"stream": one.stream})
