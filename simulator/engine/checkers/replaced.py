"""H1, H3 and M7: a change of a ledger's members leaves all else as it was, and no entry with fewer copies.

A new member has its copies on its disk at the moment when the metadata name it, as a loss of power then would leave it.
"""

from __future__ import annotations

from typing import Protocol

from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata
from simulator.engine.checkers.facts import fragment_of, members_of
from simulator.engine.checkers.report import Report


class KnownCopies(Protocol):
    """The copies on disks (`simulator/engine/copies.py`)."""

    def held(self, bookie: BookieId, ledger: LedgerId, entries: list[EntryId], /) -> set[EntryId]: ...
    def count(self, ledger: LedgerId, entry: EntryId, members: tuple[BookieId, ...], /) -> int: ...


def check_replaced(
    report: Report,
    copies: KnownCopies,
    who: str,
    ledger: LedgerId,
    old: LedgerMetadata,
    new: LedgerMetadata,
    *,
    vanished: bool = False,
) -> None:
    """Check a change of members. `vanished`: copies of the ledger vanished after the new members had got theirs."""
    same = (
        [f.first_entry for f in old.fragments] == [f.first_entry for f in new.fragments]
        and (old.ensemble_size, old.write_quorum, old.ack_quorum, old.state, old.password, old.digest_type)
        == (new.ensemble_size, new.write_quorum, new.ack_quorum, new.state, new.password, new.digest_type)
        and (old.last_entry, old.length, old.custom_metadata) == (new.last_entry, new.length, new.custom_metadata)
    )
    report.check("H3", same, "{} changes more than members of ledger {}: {} to {}", who, ledger, old, new)
    ends = [f.first_entry - 1 for f in new.fragments[1:]] + [-1 if new.last_entry is None else new.last_entry]
    for fragment, end in zip(new.fragments, ends, strict=True):
        before = fragment_of(old, fragment.first_entry)
        if before == fragment:
            continue
        entries = range(fragment.first_entry, end + 1)
        for bookie in [b for b in fragment.ensemble if b not in before.ensemble]:
            needed = [e for e in entries if bookie in members_of(fragment, new, e)]
            held = copies.held(bookie, ledger, needed)
            missing = [] if vanished else [e for e in needed if e not in held]
            for name in ("H1", "M7"):
                text = "{} put {} into ledger {} although a loss of power would leave it without {}"
                report.check(name, not missing, text, who, bookie, ledger, missing)
        for entry in entries:
            was = copies.count(ledger, entry, members_of(before, old, entry))
            now = copies.count(ledger, entry, members_of(fragment, new, entry))
            text = "{} left entry {} of ledger {} with {} of {} copies"
            report.check("M7", now >= was, text, who, entry, ledger, now, was)
