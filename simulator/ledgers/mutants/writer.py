"""Planted bugs of the write path: append window, ensemble change, completion, close, compare-and-set."""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.client.cluster.bookies import BookieWatcher
from buckram.client.maintain import delete
from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.client.write import engine
from buckram.client.write.completions import Completions
from buckram.client.write.engine import LedgerAppender
from buckram.client.write.ensemble_change import EnsembleChange
from buckram.core.ledgers import append, metadata
from buckram.core.ledgers.append import AppendWindow
from buckram.core.placement.policy import LevelRule
from buckram.errors import LedgerFenced, MetadataUnavailable, VersionConflict
from buckram.types import LedgerState, Slot, Versioned
from simulator.engine.edits import edited
from simulator.engine.plan import Plan
from simulator.engine.planting import nothing, plant
from simulator.ledgers.mutants.base import Mutant

_failed, _resume, _acked, _close = AppendWindow.failed, AppendWindow.resume, AppendWindow.acked, AppendWindow.close
_freeze = AppendWindow.freeze
_reached, _fail, _replace = Completions.reached, Completions.fail, BookieWatcher.replace
_update, _add_failed = MetadataCell.update, LedgerAppender.add_failed


def _keep_acknowledgements(self: AppendWindow, slot: Slot) -> int | None:
    marks, beyond, scattered = list(self._marks), [list(rows) for rows in self._beyond], self._scattered
    position = _failed(self, slot)
    self._marks, self._beyond, self._scattered = marks, beyond, scattered
    return position


def _drain_before_reset(self: AppendWindow, ensemble: Any) -> Any:
    self.changing = False
    before = self._drain()
    self.changing = True
    sends, moved = _resume(self, ensemble)
    return sends, moved or before


def _from_the_start(self: AppendWindow) -> int:
    _freeze(self)
    return 0


def _acked_while_changing(self: AppendWindow, slot: Slot, first: int, last: int) -> bool:
    frozen, self.changing = self.changing, False
    moved = _acked(self, slot, first, last)
    self.changing = frozen
    return moved


def _resend_only_differences(self: AppendWindow, ensemble: Any) -> Any:
    same = [p for p, bookie in self.absent.items() if ensemble[p] == self.ensemble[p] == bookie]
    for position in same:
        del self.absent[position]
    return _resume(self, ensemble)


def _choose_any(self: EnsembleChange, ensemble: Any, failed: Any, tried: Any, doomed: bool) -> Any:
    quorum = self._window.quorum
    return self._watcher.replace(ensemble, failed, list(failed.values()), quorum.write_quorum)


async def _update_first_write_later(self: MetadataCell, change: Any, *, within_s: float) -> Any:
    wanted = change(self.metadata)
    if wanted is None or wanted.fragments == self.metadata.fragments or wanted.state is not LedgerState.OPEN:
        return await _update(self, change, within_s=within_s)
    base = self._current
    self._current = Versioned(wanted, base.version)

    async def later() -> None:
        await asyncio.sleep(0.05)
        try:
            self._current = await self._store.write_ledger(self._ledger_id, wanted, base.version)
        except (VersionConflict, MetadataUnavailable):
            return

    self._late = asyncio.get_running_loop().create_task(later())  # type: ignore[attr-defined]  # keeps it referenced
    return wanted


async def _write_blindly(self: MetadataCell, change: Any, *, within_s: float) -> Any:
    wanted = change(self.metadata)
    if wanted is None:
        return self.metadata
    version = self._current.version
    for _ in range(20):
        try:
            self._current = await self._store.write_ledger(self._ledger_id, wanted, version)
        except VersionConflict:
            version += 1
        except MetadataUnavailable:
            await asyncio.sleep(0.1)
        else:
            break
    return self.metadata


def _acked_early(self: Completions, head: int) -> None:
    _reached(self, head + 1)


def _succeed_after_failure(self: Completions, error: BaseException) -> None:
    rest = list(self._queue)
    for _, result, future in rest[1:]:
        if not future.done():
            future.set_result(result)
    _fail(self, error)


def _close_at_pushed(self: AppendWindow) -> tuple[int, int]:
    if not self.closed:
        last, length = self.next_entry - 1, self.length
        _close(self)
        self.lac, self.length = last, length
    return self.lac, self.length


async def _close_over(cell: MetadataCell, ledger_id: int, last: int, length: int) -> Any:
    def change(record: Any) -> Any:
        if record.closed and (record.last_entry, record.length) == (last, length):
            return None
        return metadata.closed(record, last, length)

    return await cell.update(change, within_s=10.0)


def _same_twice(self: BookieWatcher, ensemble: Any, failed: Any, *args: Any, **kwargs: Any) -> Any:
    chosen = _replace(self, ensemble, failed, *args, **kwargs)
    others = [b for p, b in enumerate(ensemble) if p not in chosen]
    return {p: others[0] if others else b for p, b in chosen.items()}


def _change_when_fenced(self: LedgerAppender, slot: Slot, bookie: str, first: int, last: int, error: Any) -> None:
    self._change.slot_failed(slot, error)


def _go_on_when_fenced(self: LedgerAppender, slot: Slot, bookie: str, first: int, last: int, error: Any) -> None:
    if isinstance(error, LedgerFenced):
        self._window.acked(slot, first, last)
        self.on_head_moved()
    else:
        _add_failed(self, slot, bookie, first, last, error)


def _take_any_id(self: AppendWindow, entry: int, size: int) -> None:
    self._ids.add(entry)
    self.next_entry = max(self.next_entry, entry + 1)
    self.length += size
    self.pending_bytes += size
    self.pending_entries += 1


def _change_although_deferred(self: EnsembleChange, slot: Slot, error: Any) -> bool:
    self._window.deferred_sync = False
    try:
        return _slot_failed(self, slot, error)
    finally:
        self._window.deferred_sync = True


_slot_failed = EnsembleChange.slot_failed


async def _no_recovery(services: Any, ledger_id: int, **kwargs: Any) -> Any:
    class Nothing:
        async def close(self) -> None:
            """Do nothing: nothing was opened."""

    return Nothing()


def _explicit(plan: Plan) -> bool:
    return plan.explicit and plan.entries >= 3


BREAKING = (
    "kill",
    "power",
    "pair",
    "lag",
    "cut",
    "isolate",
    "crash at op",
    "crash at await",
    "power all",
    "slow",
    "pause bookie",
)


def _failing(plan: Plan) -> bool:
    return plan.entries >= 3 and any(fault in plan.faults for fault in BREAKING)


MUTANTS = [
    Mutant(
        "drain-before-reset",
        "1, S4",
        "acks of a replaced bookie still count when the change ends",
        plant((AppendWindow, "failed", _keep_acknowledgements), (AppendWindow, "resume", _drain_before_reset)),
        scenarios=("D4", "D4-late"),
        lives=_failing,
    ),
    Mutant(
        "ensemble-before-record",
        "6, S4",
        "the new ensemble is used before metadata has it",
        plant((MetadataCell, "update", _update_first_write_later)),
        scenarios=("D4", "D10"),
        lives=_failing,
        seeds=400,
    ),
    Mutant(
        "ack-during-change",
        "7, S10",
        "entries are acknowledged after an ensemble change has read the LAC, before it ends",
        plant((AppendWindow, "acked", _acked_while_changing)),
        scenarios=("change-race",),
        lives=_failing,
        seeds=400,
    ),
    Mutant(
        "change-back",
        "28, L3",
        "entries that a position missed are not resent when it gets its old bookie back",
        plant((AppendWindow, "resume", _resend_only_differences), (EnsembleChange, "_choose", _choose_any)),
        scenarios=("D10",),
        lives=_failing,
        seeds=400,
    ),
    Mutant(
        "fragment-from-the-start",
        "S3, S10",
        "a change records the new ensemble for entries it never got",
        plant((AppendWindow, "freeze", _from_the_start)),
        scenarios=("D4", "D10"),
        lives=_failing,
        seeds=200,
    ),
    Mutant(
        "ack-early",
        "S4, S8",
        "an append is acknowledged one entry too early",
        plant((Completions, "reached", _acked_early)),
    ),
    Mutant(
        "ack-after-failure",
        "S8",
        "later appends succeed although an earlier one failed",
        plant((Completions, "fail", _succeed_after_failure)),
        scenarios=("D9",),
        lives=_failing,
    ),
    Mutant(
        "ack-quorum-minus-one",
        "S4, M4",
        "one acknowledgement fewer than Qa is enough",
        plant((AppendWindow, "__init__", lambda self, *a, **k: _fewer(self, *a, **k))),
        scenarios=("D1",),
        lives=lambda plan: plan.shape[2] > 1,
    ),
    Mutant(
        "absent-member-counts",
        "M11, S4",
        "a bookie that was absent from the start counts as if it had all entries",
        edited(
            (
                "buckram.core.ledgers.append:AppendWindow.__init__",
                "self._marks = [NO_ENTRY] * size",
                "self._marks = [2**62 if p in absent else NO_ENTRY for p in range(size)]",
            )
        ),
        scenarios=("away-at-birth",),
        lives=lambda plan: "away at birth" in plan.faults,
    ),
    Mutant(
        "too-many-away",
        "M11",
        "a ledger is created with more absent bookies than its quorums allow",
        edited(
            (
                "buckram.core.placement.choose:choose_with_absent",
                "min(width - quorum.ack_quorum, len(known))",
                "len(known)",
            ),
            ("buckram.core.placement.choose:choose_with_absent", "quorum.writable(absent) and ", ""),
            ("buckram.core.ledgers.append:AppendWindow.__init__", 'check(quorum.writable(absent), "M11", ', "str("),
        ),
        scenarios=("two-away-at-birth",),
        lives=lambda plan: "away at birth" in plan.faults,
    ),
    Mutant(
        "lost-completion",
        "S20, L3",
        "appends that fail never end",
        plant((Completions, "fail", nothing)),
        scenarios=("D9",),
        lives=_failing,
    ),
    Mutant(
        "close-at-pushed",
        "S5, S9",
        "close seals everything sent, acknowledged or not",
        plant((AppendWindow, "close", _close_at_pushed)),
        scenarios=("D9",),
    ),
    Mutant(
        "close-over",
        "S2",
        "the owner's close overwrites a close by recovery",
        plant((engine, "seal", _close_over), (metadata, "_check_end", nothing), (metadata, "check", nothing)),
        scenarios=("stale-close",),
        lives=lambda plan: plan.recoverers > 0 or plan.late_wake,
        seeds=400,
    ),
    Mutant(
        "same-bookie-twice",
        "S10",
        "a replacement is a bookie that is already in the ensemble",
        plant((BookieWatcher, "replace", _same_twice), (metadata, "_fragments_problem", nothing)),
        scenarios=("D4", "D8"),
        lives=_failing,
    ),
    Mutant(
        "blind-write",
        "S11",
        "after a conflict the write is repeated with the next version, unread",
        plant((MetadataCell, "update", _write_blindly)),
        scenarios=("D8",),
        lives=lambda plan: "metadata loss" in plan.faults,
    ),
    Mutant(
        "ack-when-fenced",
        "F11, S1",
        "a fenced answer counts as an acknowledgement",
        plant((LedgerAppender, "add_failed", _go_on_when_fenced)),
        scenarios=("D5",),
        lives=lambda plan: plan.recoverers > 0,
        seeds=400,
    ),
    Mutant(
        "explicit-duplicates",
        "25, M1",
        "an explicit id may be used twice",
        plant((AppendWindow, "enqueue_at", _take_any_id)),
        scenarios=(),
        lives=_explicit,
        seeds=100,
    ),
    Mutant(
        "change-under-deferred-sync",
        "M3",
        "the ensemble changes although acknowledged entries are not synced",
        plant((EnsembleChange, "slot_failed", _change_although_deferred), (append, "check", nothing)),
        scenarios=(),
        lives=lambda plan: plan.deferred and _failing(plan),
        seeds=100,
    ),
    Mutant(
        "racks-ignored",
        "M6",
        "ensembles span fewer racks than required",
        plant((LevelRule, "needed", lambda self, write_quorum: 1)),
        scenarios=(),
        lives=lambda plan: bool(plan.racks),
        seeds=100,
    ),
    Mutant(
        "delete-without-fence",
        "8, M10",
        "delete removes the record of an open ledger",
        plant((delete, "recover_ledger", _no_recovery)),
        scenarios=(),
        lives=lambda plan: plan.deleting and plan.entries > 3,
        seeds=200,
    ),
    Mutant(
        "close-waits",
        "L10",
        "close waits for appends for ever, also with wait=False",
        plant((LedgerAppender, "close", lambda self, wait=True: _stuck(self))),
    ),
    Mutant(
        "change-ignores-recovery",
        "F8, F11",
        "the writer changes ensembles of a ledger that is in recovery",
        plant(
            (EnsembleChange, "_check_open", nothing),
            (metadata, "check", nothing),
            (LedgerAppender, "add_failed", _change_when_fenced),
        ),
        scenarios=("stalled-recovery",),
        lives=lambda plan: plan.recoverers > 0,
        seeds=400,
    ),
]

_init = AppendWindow.__init__


def _fewer(self: AppendWindow, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    if self._qa > 1:
        self._qa -= 1
        self._kth += 1


async def _stuck(self: LedgerAppender) -> None:
    await asyncio.get_running_loop().create_future()
