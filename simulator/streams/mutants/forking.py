"""Planted bugs of forks, of ledgers that several streams hold, and of ledgers that are another stream's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from buckram.core.streams import forks
from buckram.core.streams.metadata.head import Head, Segment
from buckram.core.streams.names import StreamId
from buckram.streams.maintain import fork
from buckram.streams.shared import ledgers
from buckram.streams.shared import ownership as owned
from buckram.streams.shared import shared_ledgers as shares
from buckram.streams.shared.metadata import StreamStore
from simulator.streams.mutants.base import Mutant, plant

_plan_fork, _sharing_ops = forks.plan_fork, shares.sharing_ops


def _one_too_far(head: Head, rows: Iterable[Segment], at: int) -> Any:
    rows = list(rows)
    found = _plan_fork(head, rows, at)
    sealed_beyond = found.cut is not None and found.cut.sealed and found.cut.end > at
    return _plan_fork(head, rows, at + 1) if sealed_beyond else found


async def _fork_alone(streams: StreamStore, ledger: int, source: StreamId, made: StreamId) -> Any:
    ops = await _sharing_ops(streams, ledger, source, made)
    return [op for op in ops if not op.key.endswith(f"/{source.uid}")]


async def _holds_on(streams: StreamStore, uid: str, ledger: int) -> bool:
    return False


async def _nobody_holds(streams: StreamStore, ledger: int, source: StreamId, made: StreamId) -> list[Any]:
    return []


async def _anybodys(*args: Any) -> bool:
    return True


MUTANTS = (
    Mutant(
        "deleted-for-anybody",
        "20",
        "a ledger is deleted for whichever stream names it",
        plant((ledgers, "is_own", _anybodys)),
        lives=lambda plan: plan.hostile,
    ),
    Mutant(
        "fenced-for-anybody",
        "20",
        "a ledger is fenced and read for whichever stream names it",
        plant((owned, "is_own", _anybodys)),
        lives=lambda plan: plan.hostile,
    ),
    Mutant(
        "fork-source-lets-go",
        "5",
        "only the fork takes hold of shared ledgers, so it deletes those of its source",
        plant((fork, "sharing_ops", _fork_alone)),
        drills=("fork",),
        lives=lambda plan: plan.forker,
    ),
    Mutant(
        "fork-holds-nothing",
        "5",
        "a fork lists ledgers that it does not hold",
        plant((fork, "sharing_ops", _nobody_holds)),
        drills=("fork",),
        lives=lambda plan: plan.forker,
    ),
    Mutant(
        "fork-too-far",
        "3",
        "a fork has one record too many",
        plant((fork, "plan_fork", _one_too_far)),
        drills=("fork",),
        lives=lambda plan: plan.forker,
    ),
    Mutant(
        "fork-never-lets-go",
        "25",
        "a stream does not let go of what it shares",
        plant((ledgers, "release", _holds_on)),
        drills=("fork",),
        lives=lambda plan: plan.forker,
    ),
)
