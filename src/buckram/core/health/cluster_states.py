"""States of the cluster as a whole, of its namespaces and of its streams. Pure.

The metadata store is judged by whether it answers, takes changes, and is believed by the bookies; autorecovery by the
ledgers that lack copies, and by whether an auditor works to restore them. Namespaces and streams are judged by quotas
that are used up, by cursors, queries, mirrors and backups that do not advance, and by ledgers that belong to another
stream. Not here: bookies (`core/health/bookie_states.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from buckram.core.health.facts import Facts, HealingFacts, LackingLedger, Noted

# -- the metadata store ---------------------------------------------------------------------------------------


def of_metadata(facts: Facts) -> Iterator[Noted]:
    if facts.unreachable:
        yield Noted("metadata-unreachable", facts.uri, facts.unreachable)
        return
    if facts.accepted is False:
        if facts.moved:
            yield Noted("metadata-moved", facts.uri, facts.moved)
        else:
            yield Noted("restore-not-accepted", facts.uri, "it was restored, and bookies and clients wait")
    for one in facts.suspects if facts.accepted is not False else ():
        yield Noted("metadata-went-back", one.bookie, f"it does not believe this store: {one.why}", bookie=one.bookie)
    said = {one.id: one.report.metadata_refusal for one in facts.bookies if one.report is not None}
    refused = {bookie: why for bookie, why in said.items() if why}
    if facts.refusal:
        yield Noted("metadata-read-only", facts.uri, f"it can be read and takes no change: {facts.refusal}")
    elif refused:
        bookie, why = next(iter(refused.items()))
        yield Noted(
            "metadata-read-only", facts.uri, f"{len(refused)} bookies cannot change it, such as {bookie}: {why}"
        )


# -- autorecovery ---------------------------------------------------------------------------------------------

NAMED = 5
"""Maximum number of ledgers or bookies that a finding names; the others are counted."""


def of_healing(facts: Facts) -> Iterator[Noted]:
    for level, why in facts.shortages:
        yield Noted("too-few-domains", f"level {level}", why, {"level": level})
    healing = facts.healing
    if healing is None:
        return
    if facts.bookies:  # without bookies nothing can be lost yet
        yield from _who_heals(healing)
    lost = [one for one in healing.queue if one.state == "lost"]
    unreadable = [one for one in healing.queue if one.unreadable and one.state != "lost"]
    others = [one for one in healing.queue if not one.unreadable and one.state != "lost"]
    for state, found in (("entries-lost", lost), ("ledgers-unreadable", unreadable), ("under-replicated", others)):
        if found:
            yield Noted(state, _where(found), _why(found), {"ledger": str(found[0].ledger)})
    if healing.misplaced:
        where = f"{healing.misplaced} ledger{'' if healing.misplaced == 1 else 's'}"
        yield Noted("ledgers-misplaced", where, "the last check of the placement found bookies that would suit better")


def _who_heals(healing: HealingFacts) -> Iterator[Noted]:
    if healing.brake is not None:
        yield Noted("nothing-copied", ", ".join(healing.brake.bookies), healing.brake.why)
    if not healing.enabled:
        yield Noted("autorecovery-disabled", "cluster", "autorecovery is disabled: lost copies are not replaced")
    elif not healing.auditor:
        yield Noted("auditor-missing", "cluster", "no auditor is running: the ledgers of a lost bookie are not copied")


def _where(found: Sequence[LackingLedger]) -> str:
    return f"{'ledger' if len(found) == 1 else 'ledgers'} {named([str(one.ledger) for one in found])}"


def _why(found: Sequence[LackingLedger]) -> str:
    """Return a sentence with the number of ledgers, the age of the oldest, and the first reason that is known."""
    lacks = "it lacks copies" if len(found) == 1 else f"{len(found)} ledgers lack copies"
    oldest = max((one.age_s for one in found if one.age_s is not None), default=None)
    aged = "" if oldest is None else f", for {lasting(oldest)} at most"
    reason = next((f"; ledger {one.ledger} {one.state}: {one.why}" for one in found if one.why), "")
    return f"{lacks}{aged}{reason}"


def lasting(seconds: float) -> str:
    """Return a duration in the unit that suits it, rounded: "3 h"."""
    for unit, size, least in (("days", 86_400, 2 * 86_400), ("h", 3_600, 3_600), ("min", 60, 60)):
        if seconds >= least:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def named(names: Sequence[str]) -> str:
    """Return the first NAMED names, separated by commas, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


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
