"""Planted bugs about missing copies although every bookie is registered: all of them break H11.

Mutants with `mute` live beside clients that note nothing, as Apache's do: then it is known only which bookies were
away.
"""

from __future__ import annotations

from simulator.engine.edits import edited
from simulator.healing.mutant import Mutant
from simulator.healing.plan import AWAY_TWICE, CUT_MEMBER, HANG_AT_CLOSE, HANGS

_FIRST = "buckram.healing.auditing.absence_checks:FirstChecks"
_ATTENDANCE = "buckram.core.healing.absences:Attendance"

MUTANTS = (
    Mutant(
        "mark-unverified",
        "H11",
        "a mark whose bookies are all registered goes without a look at their copies",
        edited(("buckram.healing.repair.ledger_repair:LedgerRepair.run", "and not outcome.reasons:", "and False:")),
        120,
        faults=(HANGS,),
        mute=True,
    ),
    Mutant(
        "note-unverified",
        "H11",
        "a note goes as soon as its member is registered",
        edited((f"{_FIRST}._is_settled", "is None or not await", "is None and not await")),
        160,
        faults=(HANGS, "crash bookie", "late bookie"),
    ),
    Mutant(
        "failed-is-forgotten",
        "H11",
        "a writer forgets who failed it once that is written to again",
        edited(
            (
                "buckram.client.write.ensemble_change:EnsembleChange.slot_failed",
                "self._lagging_members.failed(bookie)",
                "pass",
            )
        ),
        40,
        absence=CUT_MEMBER,
    ),
    Mutant(
        "recovery-asks-nobody",
        "H11",
        "a recovery closes a ledger and does not ask which members lack entries",
        edited(("buckram.client.maintain.entry_lists:members_behind", "if not whole]", "if False]")),
        40,
        absence=CUT_MEMBER,
    ),
    Mutant(
        "away-is-forgotten",
        "H11",
        "nobody remembers that a bookie was away",
        edited((f"{_ATTENDANCE}._was_away", "self.away.setdefault(bookie, earlier)", "pass")),
        120,
        faults=(HANGS,),
        mute=True,
    ),
    Mutant(
        "away-again-is-away-once",
        "H11",
        "who was away is held to what was open at the last absence only",
        edited((f"{_ATTENDANCE}._was_away", "self.away.setdefault(bookie, earlier)", "self.away[bookie] = earlier")),
        40,
        absence=AWAY_TWICE,
        mute=True,
    ),
    Mutant(
        "returned-waits",
        "H11",
        "bookies that are back are left to the check of all copies",
        edited((f"{_FIRST}.look", "self._attendance.to_look_at(there).items()", "()")),
        120,
        faults=(HANGS,),
        mute=True,
    ),
    Mutant(
        "hang-untold",
        "H11",
        "a bookie that hung goes on as if it had been there",
        edited(("buckram.bookie.registration:Registration._notice_hangs", "self._breaks += 1", "pass")),
        120,
        faults=(HANGS,),
        mute=True,
    ),
    Mutant(
        "open-is-closed",
        "H11",
        "ledgers that were open when a bookie went are not looked at when it is back",
        edited((f"{_FIRST}._walk", "found_open.append(ledger)", "pass")),
        40,
        absence=HANG_AT_CLOSE,
        mute=True,
    ),
)
