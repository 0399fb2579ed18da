"""Planted bugs of recovery, repair and deletion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from buckram.client.maintain import recover
from buckram.client.maintain.recover import _Attempt
from buckram.client.maintain.repair import _Repair
from buckram.client.read.reader import Reader
from buckram.client.read.replicas import LedgerReads
from buckram.core.ledgers import metadata
from buckram.core.ledgers import recovery as decisions
from buckram.core.ledgers.answers import CoverageTally
from buckram.core.ledgers.recovery import Fencing, ForwardRead, WriteBack
from buckram.core.wire import adds
from buckram.errors import MetadataError
from buckram.types import Fragment
from simulator.engine.edits import edited
from simulator.engine.plan import Plan
from simulator.engine.planting import nothing, plant
from simulator.ledgers.mutants.base import Mutant

_fencing, _length, _replaced, _race, _add = (
    LedgerReads.fencing,
    _Attempt._length,
    WriteBack.replaced,
    ForwardRead.race,
    WriteBack.add,
)
_run, _ranges, _answered = _Attempt.run, _Repair._ranges, Fencing.answered


async def _read_without_fence(self: LedgerReads, bookie: str, entry: int | None, key: bytes) -> Any:
    return await (_fencing(self, bookie, None, key) if entry is None else self.entry(bookie, entry))


def _moving_lac(self: _Attempt, entry: Any, frozen_lac: int) -> bytes:
    stored = self._digest.seal(self._ledger_id, entry.entry_id, entry.entry_id - 1, entry.length, entry.payload)
    return adds.frame_add(self._key, stored, adds.RECOVERY_ADD | adds.HIGH_PRIORITY)


def _wrong_length(self: _Attempt, entry: Any, frozen_lac: int) -> bytes:
    stored = self._digest.seal(self._ledger_id, entry.entry_id, frozen_lac, entry.length + 1, entry.payload)
    return adds.frame_add(self._key, stored, adds.RECOVERY_ADD | adds.HIGH_PRIORITY)


def _wrong_payload(self: _Attempt, entry: Any, frozen_lac: int) -> bytes:
    stored = self._digest.seal(self._ledger_id, entry.entry_id, frozen_lac, entry.length, entry.payload[:-1] + b"!")
    return adds.frame_add(self._key, stored, adds.RECOVERY_ADD | adds.HIGH_PRIORITY)


def _without_flag(master_key: bytes, stored: bytes, flags: int = 0) -> bytes:
    return adds.frame_add(master_key, stored, 0)


async def _no_length(self: _Attempt, back: WriteBack) -> int:
    return 0 if back.last_recovered is None else await _length(self, back)


def _closed_before_written(self: WriteBack, entries: Any) -> Any:
    sends = _add(self, entries)
    if entries:
        self.head = entries[-1].entry_id
        self._pending.clear()
    return sends


def _one_more(self: Fencing) -> int:
    return max(self._lac, self.first - 1) + (1 if self._lac >= 0 else 0)


def _unclamped(self: Fencing) -> int:
    return self._lac


_ensembles: dict[int, tuple[str, ...]] = {}


def _remember_ensemble(self: WriteBack, choice: Any) -> Any:
    sends = _replaced(self, choice)
    if choice:
        _ensembles[self.ledger_id] = self.ensemble
    return sends


def _read_where_written(self: ForwardRead, entry: int, order: Any) -> Any:
    self._ensemble = _ensembles.get(self.ledger_id, self._ensemble)
    return _race(self, entry, order)


def _forget_ensembles() -> Any:
    _ensembles.clear()
    return plant((WriteBack, "replaced", _remember_ensemble), (ForwardRead, "race", _read_where_written))()


_replacements = _Attempt._replacements


def _publish_replacements(self: _Attempt, back: WriteBack) -> Any:
    choice = _replacements(self, back)
    if choice:
        self._scope.spawn(_publish(self, back.head + 1, [choice.get(p, b) for p, b in enumerate(back.ensemble)]), "bug")
    return choice


async def _publish(self: _Attempt, first: int, members: list[str]) -> None:
    try:
        known = await self._services.store.read_ledger(self._ledger_id)
        fragments = metadata._with_fragment(known.metadata.fragments, Fragment(first, tuple(members)))
        changed = metadata._updated(known.metadata, fragments=fragments)
        await self._services.store.write_ledger(self._ledger_id, changed, known.version)
    except MetadataError:
        return


async def _remember_own_end(self: _Attempt) -> Any:
    change = await _run(self)
    _own_end[self._ledger_id] = change(self._metadata)
    return change


_own_end: dict[int, Any] = {}


def _own_result(services: Any, ledger_id: int, versioned: Any, *args: Any, **kwargs: Any) -> Any:
    own = _own_end.pop(ledger_id, None)
    if own is not None:
        versioned = replace(versioned, metadata=own)
    return Reader(services, ledger_id, versioned, *args, **kwargs)


async def _trust(
    self: _Repair, fragment: Any, last: int, position: int, old: str, target: str, listed: Any = None
) -> bool:
    return True


async def _no_second_look(self: _Repair, *arguments: object) -> None:
    return None


async def _always_durable(self: _Repair, target: str) -> bool:
    return True


def _also_growing(self: _Repair, record: Any) -> Any:
    found = _ranges(self, record)
    if not record.closed:
        found.append((record.last_fragment, record.last_fragment.first_entry + 2))
    return found


def _some_answer(self: CoverageTally) -> bool:
    return len(self.answered) >= 1


def _recovering(plan: Plan) -> bool:
    return plan.entries >= 1


def _writing_back(plan: Plan) -> bool:
    return plan.entries >= 3 and plan.bookies > plan.shape[0]


def _gone(plan: Plan) -> bool:
    return plan.repairing and "wipe" in plan.faults and plan.entries > 0


MUTANTS = [
    Mutant(
        "recovery-reads-do-not-fence",
        "4, F4, F5, S1",
        "only the first phase of a recovery fences",
        plant((LedgerReads, "fencing", _read_without_fence)),
        scenarios=("D2",),
        lives=_recovering,
        seeds=400,
    ),
    Mutant(
        "moving-lac",
        "3, F10, S14",
        "recovery adds carry a LAC that moves",
        plant((_Attempt, "_frame", _moving_lac)),
        scenarios=("D6",),
        lives=_recovering,
        seeds=400,
    ),
    Mutant(
        "unclamped-start",
        "5, F9",
        "recovery starts at the LAC found, below the last fragment",
        plant((Fencing, "start", property(_unclamped)), (decisions, "check", nothing), (metadata, "check", nothing)),
        scenarios=("D7",),
        lives=_writing_back,
        seeds=400,
    ),
    Mutant(
        "coverage-by-any-answer",
        "26, F1, F13",
        "one answer counts as coverage",
        plant((CoverageTally, "covered", property(_some_answer))),
        scenarios=("D2",),
        lives=lambda plan: plan.shape[1] > plan.shape[2],
    ),
    Mutant(
        "skips-an-entry",
        "F12, S5",
        "recovery goes on one entry too late",
        plant((Fencing, "start", property(_one_more)), (decisions, "check", nothing)),
        scenarios=("stale-close",),
        lives=_recovering,
    ),
    Mutant(
        "length-zero",
        "16, S13",
        "a ledger without entries to recover gets length 0",
        plant((_Attempt, "_length", _no_length)),
        scenarios=("D7",),
        lives=_recovering,
        seeds=400,
    ),
    Mutant(
        "wrong-length-written-back",
        "S7",
        "recovery writes entries back with another length",
        plant((_Attempt, "_frame", _wrong_length)),
        scenarios=("D1",),
        lives=_recovering,
    ),
    Mutant(
        "wrong-payload-written-back",
        "S6",
        "recovery changes a byte of what it writes back",
        plant((_Attempt, "_frame", _wrong_payload)),
        scenarios=("D1",),
        lives=_recovering,
    ),
    Mutant(
        "flag-lost",
        "12, L1",
        "recovery adds lose their flag and are refused by the fence",
        plant((recover, "frame_add", _without_flag)),
        scenarios=("D1",),
        lives=_recovering,
    ),
    Mutant(
        "closed-before-written",
        "S5",
        "recovery closes before what it wrote back is acknowledged",
        plant((WriteBack, "add", _closed_before_written)),
        scenarios=("slow-copies",),
        lives=_recovering,
        seeds=400,
    ),
    Mutant(
        "reads-follow-writes",
        "F7",
        "recovery reads from the ensemble it writes to",
        _forget_ensembles,
        scenarios=("recovery-change",),
        lives=_writing_back,
        seeds=400,
    ),
    Mutant(
        "published-fragments",
        "F8",
        "a recovery records its ensembles before it closes the ledger",
        plant((_Attempt, "_replacements", _publish_replacements)),
        scenarios=("recovery-change",),
        lives=_writing_back,
        seeds=400,
    ),
    Mutant(
        "loser-keeps-its-own",
        "F15",
        "a recovery that lost the race reports its own end",
        plant((_Attempt, "run", _remember_own_end), (recover, "Reader", _own_result)),
        scenarios=("D6",),
        lives=_recovering,
    ),
    Mutant(
        "first-fragments-closed",
        "S10, S3",
        "a recovery closes the record of today with the fragments that it began with",
        edited(
            (
                "buckram.client.maintain.recover:_Attempt.run",
                "return recovered(metadata, fragments, back.head, length)",
                (
                    "first = __import__('dataclasses').replace(metadata, fragments=self._metadata.fragments)\n"
                    "        return recovered(first, fragments, back.head, length)"
                ),
            )
        ),
        scenarios=("repaired-while-recovered",),
    ),
    Mutant(
        "replaced-before-copied",
        "M7",
        "repair names a new bookie that has no copies",
        plant((_Repair, "_member", _trust)),
        scenarios=(),
        lives=_gone,
        seeds=100,
    ),
    Mutant(
        "repair-of-growing-fragment",
        "14, M7",
        "repair works on a fragment that can still grow",
        plant((_Repair, "_ranges", _also_growing), (metadata, "check", nothing)),
        scenarios=("open-repair",),
        lives=lambda plan: plan.repairing,
        seeds=200,
    ),
    Mutant(
        "found-is-durable",
        "M7, S12",
        "repair relies on copies that another repair is still writing",
        plant((_Repair, "_is_durable", _always_durable)),
        scenarios=("two-repairs",),
    ),
    Mutant(
        "no-second-look",
        "M7",
        "repair does not check copies again after the change of metadata",
        plant((_Repair, "_look_again", _no_second_look)),
        scenarios=("collected-while-repaired",),
    ),
    Mutant(
        "not-looked-at-again",
        "M7",
        "repair does not check copies again after the change of metadata, and is slow",
        plant((_Repair, "_look_again", _no_second_look)),
        scenarios=("slow-repair",),
    ),
]
