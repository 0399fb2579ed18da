"""Whether one metadata record of a ledger may follow another, decided without the functions that make them."""

from __future__ import annotations

from buckram.core.ledgers.metadata import _check_end, check_metadata
from buckram.errors import check
from buckram.types import LedgerMetadata, LedgerState

_FIXED = (
    "ensemble_size",
    "write_quorum",
    "ack_quorum",
    "digest_type",
    "password",
    "creation_time_ms",
    "format_version",
)


def check_transition(before: LedgerMetadata, after: LedgerMetadata) -> None:
    """InvariantViolation unless one legal transition leads from one record to the other."""
    check_metadata(after)
    check(after.creator_token == 0, "S11", "an update must write creator token 0")
    for name in _FIXED:
        old, new = getattr(before, name), getattr(after, name)
        check(old == new, "S10", f"{name} changed from {old} to {new}")
    check(after.state >= before.state, "S2", f"the state went back from {before.state.name} to {after.state.name}")
    if before.closed:
        old_end, new_end = (before.last_entry, before.length), (after.last_entry, after.length)
        check(old_end == new_end, "S2", f"the end of a CLOSED ledger changed from {old_end} to {new_end}")
    elif after.closed:
        assert after.last_entry is not None
        assert after.length is not None
        _check_end(before, after.last_entry, after.length)
    _check_fragments_changed(before, after)


def _check_fragments_changed(before: LedgerMetadata, after: LedgerMetadata) -> None:
    old, new = before.fragments, after.fragments
    kept = [fragment.first_entry for fragment in new[: len(old)]]
    check(kept == [fragment.first_entry for fragment in old], "S10", "a fragment vanished or moved")
    added = len(new) - len(old)
    swapped = [index for index in range(len(old)) if old[index].ensemble != new[index].ensemble]
    last = len(old) - 1
    if before.state is after.state:
        if before.state is LedgerState.OPEN:
            check(added <= 1, "S10", f"{added} fragments were added by one ensemble change")
            check(not (added and swapped), "S10", "one update both added a fragment and changed another")
        else:
            check(added == 0, "F8", f"a fragment was added to a ledger that is {before.state.name}")
            check(before.closed or last not in swapped, "F8", "the last ensemble changed before the ledger was closed")
        return
    recovery = before.state is LedgerState.IN_RECOVERY and after.closed
    check(recovery or not added, "F8", f"a fragment was added while the ledger became {after.state.name}")
    check(not swapped or (recovery and swapped == [last]), "S10", "members changed together with the state")
