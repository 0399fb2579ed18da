"""States of the whole cluster: whether its metadata store works, and whether lacking copies are restored. Pure.

The metadata store is judged by whether it answers, takes changes, and is believed by the bookies; autorecovery by the
ledgers that lack copies, and by whether an auditor works to restore them.
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
