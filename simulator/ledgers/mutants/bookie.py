"""Planted bugs of bookies: fences, syncs, keys, admission, identity, denials, garbage collection."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from buckram.bookie.garbage import collector as gc
from buckram.bookie.integrity.limbo_end import LimboEnd
from buckram.bookie.service import dispatch
from buckram.bookie.service.entries import adds, fencing, read_replies, reads
from buckram.bookie.service.entries.adds import AddPath
from buckram.bookie.service.entries.admission import Admission, Finding, Verdict
from buckram.bookie.service.entries.read_replies import ReadReplies
from buckram.bookie.service.entries.reads import ReadPath
from buckram.bookie.storage.ledger_table import Losses
from buckram.bookie.storage.log.group_commit import GroupCommit
from buckram.bookie.storage.segments.bad_entries import BadEntries
from buckram.bookie.storage.store import Store
from buckram.bookie.trust import cookie
from buckram.client.write import engine
from buckram.client.write.ensemble_change import EnsembleChange
from buckram.core.cluster.store_history import encode_statement
from buckram.errors import Code
from buckram.runtime.net import introductions
from buckram.runtime.net.connection import Connection
from buckram.types import NO_ENTRY, LedgerState
from simulator.engine.plan import Plan
from simulator.engine.planting import nothing, plant
from simulator.ledgers.mutants.base import Mutant

_finish, _insert, _fence = ReadPath._finish, AddPath._insert, Store.fence
_add = AddPath.add
_masked = BadEntries.masked
_look = Admission._decide


def _negatives_at_once(self: ReadPath, session: Any, job: Any, outcome: Any) -> None:
    if job.fencing and outcome is None:
        job.fencing = False
    _finish(self, session, job, outcome)


def _fence_in_memory(self: Store, ledger_id: int) -> None:
    record = self.ledger(ledger_id)
    if record is not None:
        record.fenced = True


def _insert_later(self: AddPath, session: Any, run: Any) -> None:
    asyncio.get_running_loop().call_later(0.004, partial(_insert, self, session, run.detached()))


def _none_is_plain(self: AddPath, *given: Any) -> None:
    """Let every add come as a run."""


def _answered_at_once(self: Any, done: Any) -> None:
    asyncio.get_running_loop().call_soon(done, None)


def _errors_are_absence(self: ReadReplies, ledger_id: int, outcome: Any) -> Code:
    return Code.NO_ENTRY


def _never_limbo(self: Losses, state: Any) -> bool:
    return False


def _absence_is_certain(store: Any, record: Any) -> Code:
    return Code.NO_LEDGER if record is None else Code.NO_ENTRY


async def _closed_is_stale(self: Admission, ledger_id: int, deadline: float) -> Finding:
    found = await _look(self, ledger_id, deadline)
    return found._replace(verdict=Verdict.FENCED, last=NO_ENTRY) if found.verdict is Verdict.CLOSED else found


def _no_mismatch(*args: Any) -> str:
    return ""


async def _admit_all(self: Admission, ledger_id: int, deadline: float) -> Finding:
    return Finding(Verdict.ADMITTED)


def _any_key(self: AddPath, session: Any, run: Any) -> None:
    record = self._ledger(run.ledger_id)
    if record is not None and not record.fenced and not record.tombstone:
        _insert(self, session, run)
    else:
        _add(self, session, run)


def _ignore_fence(self: AddPath, session: Any, run: Any) -> None:
    record = self._ledger(run.ledger_id)
    if record is not None and record.fenced and record.master_key == run.master_key and not record.tombstone:
        _insert(self, session, run)
    else:
        _add(self, session, run)


def _foreign_if_not_named(metadata: Any, bookie_id: str) -> bool:
    return metadata.state is not LedgerState.OPEN or not any(bookie_id in f.ensemble for f in metadata.fragments)


async def _force_some(window: Any, pool: Any, acked_under: Any, birth: bytes) -> int:
    point = window.force_point()
    if not window.closed:
        window.forced(point)
    return int(max(point[0], window.lac))


async def _take_the_key(metadata: Any, claimed: Any) -> None:
    found = await cookie.read_witness(metadata, claimed.bookie_id)
    if found is not None:
        value = replace(found.value, incarnation=claimed.incarnation, generation=found.value.generation + 1)
        await metadata.keys.set(cookie.witness_key(metadata, claimed.bookie_id), encode_statement(value), found.version)


def _no_proof(record: Any, key: bytes) -> bool:
    return False


def _bad_is_absent(self: BadEntries, outcomes: Any, ledger: int, first: int) -> Any:
    masked = _masked(self, outcomes, ledger, first)
    return [None if one is not outcomes[number] else one for number, one in enumerate(masked)]


def _nothing_lacks(self: LimboEnd, ledger: int, metadata: Any) -> str:
    return ""


def _damaged(plan: Plan) -> bool:
    return "flip" in plan.faults and plan.entries >= 2


MUTANTS = [
    Mutant(
        "negative-before-fence-is-durable",
        "2, F2",
        "negative answers to a fencing read do not wait for the fence",
        plant((ReadPath, "_finish", _negatives_at_once)),
        scenarios=("D3",),
        lives=lambda plan: plan.entries > 0,
        seeds=400,
    ),
    Mutant(
        "fence-in-memory",
        "11, F2, F3",
        "a fence is never written to the log",
        plant((Store, "fence", _fence_in_memory)),
        scenarios=("D3",),
    ),
    Mutant(
        "fence-and-add-race",
        "9, F4",
        "time passes between the check of the fence and the insertion",
        plant((AddPath, "_insert", _insert_later), (AddPath, "take", _none_is_plain)),
        scenarios=("D2",),
        lives=lambda plan: plan.recoverers > 0 and plan.entries > 3,
        seeds=600,
    ),
    Mutant(
        "fence-ignored",
        "F3, F4, F5",
        "normal adds are accepted in spite of a fence",
        plant((AddPath, "add", _ignore_fence)),
        scenarios=("D2",),
        lives=lambda plan: plan.recoverers > 0,
    ),
    Mutant(
        "ack-before-sync",
        "11, M4",
        "adds are answered before they are synced",
        plant((GroupCommit, "after_durable", _answered_at_once)),
        scenarios=("D1",),
    ),
    Mutant(
        "force-does-nothing",
        "M2",
        "force sends no requests, and deferred adds are answered when they are in memory",
        plant((Store, "after_written", _answered_at_once), (engine, "force", _force_some)),
        scenarios=("forgotten-force",),
        lives=lambda plan: plan.deferred,
        seeds=100,
    ),
    Mutant(
        "errors-are-absence",
        "10, F6",
        "an entry that cannot be read is denied",
        plant((ReadReplies, "_code", _errors_are_absence)),
        scenarios=("limbo",),
        lives=_damaged,
        seeds=300,
    ),
    Mutant(
        "bad-record-is-absence",
        "10, F6",
        "an entry that the scrub found to be bad is denied",
        plant((BadEntries, "masked", _bad_is_absent)),
        scenarios=("scrubbed",),
        lives=_damaged,
        seeds=0,
    ),
    Mutant(
        "limbo-ends-unproved",
        "11, F6",
        "limbo ends although a ledger that names the bookie is open, or lacks entries there",
        plant((LimboEnd, "_judge", _nothing_lacks)),
        scenarios=("limbo-ends",),
        lives=_damaged,
        seeds=0,
    ),
    Mutant(
        "no-limbo",
        "11, F6",
        "a store that lost data denies the entries that it lost",
        plant(
            (Losses, "marks", _never_limbo),
            (fencing, "absence", _absence_is_certain),
            (read_replies, "absence", _absence_is_certain),
            (reads, "absence", _absence_is_certain),
            (ReadReplies, "_code", _errors_are_absence),
        ),
        scenarios=("limbo",),
        lives=_damaged,
        seeds=300,
    ),
    Mutant(
        "no-admission",
        "8, F3, S1",
        "an empty bookie under an old id accepts adds to a closed ledger",
        plant(
            (Admission, "_decide", _admit_all),
            (EnsembleChange, "_is_reborn", lambda self, bookie: False),
            (dispatch, "identity_mismatch", _no_mismatch),
            (introductions, "refusal", _no_mismatch),
            (Connection, "check_incarnation", nothing),
        ),
        scenarios=("D5",),
    ),
    Mutant(
        "closed-is-stale",
        "L14",
        "a bookie that reads metadata late refuses entries that a ledger was closed with",
        plant((Admission, "_decide", _closed_is_stale)),
        scenarios=("late-look",),
    ),
    Mutant(
        "key-ignored",
        "F14",
        "adds with a wrong key are stored",
        plant((AddPath, "add", _any_key)),
        scenarios=(),
        lives=lambda plan: plan.attacker and plan.entries > 0,
        seeds=200,
    ),
    Mutant(
        "first-key-is-right",
        "F14",
        "the first key in a request counts as the ledger's, without a look at metadata",
        plant((adds, "needs_proof", _no_proof), (fencing, "needs_proof", _no_proof)),
        scenarios=("wrong-key",),
    ),
    Mutant(
        "collects-unclosed",
        "13, F17",
        "garbage collection deletes ledgers in recovery",
        plant((gc, "is_foreign", _foreign_if_not_named)),
        scenarios=(),
        lives=lambda plan: plan.collecting and plan.entries > 0,
        seeds=100,
    ),
    Mutant(
        "empty-disk-serves",
        "8, M8",
        "an empty disk is accepted under an old id",
        plant((cookie, "_refuse_unless_new", nothing), (cookie, "_check_unfinished", _take_the_key)),
        scenarios=("empty-disk",),
        lives=lambda plan: "wipe" in plan.faults,
        seeds=100,
    ),
]
