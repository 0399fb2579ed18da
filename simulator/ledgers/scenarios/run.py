"""Runs one directed schedule in a world of its own and returns the violations."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from buckram.config import BookieConfig
from simulator.engine.schedules import ScheduleFailed, ScheduleResult, quiet_plan, run_schedule, until_violated
from simulator.engine.spies import watch_stores
from simulator.engine.trace import Echo
from simulator.engine.world import Died, World
from simulator.ledgers.scenarios import (
    absence,
    absent,
    deletions,
    directed,
    disks,
    foreign,
    identity,
    incarnations,
    more,
    quotas,
)
from simulator.ledgers.scenarios.script import Script

Shape = tuple[int, int, int]


class PlaySchedule(Protocol):
    """Plays a directed schedule with a script. Raises ScheduleFailed if its situation does not come about."""

    def __call__(self, script: Script, /) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """A schedule and what it needs. `shape` is (E, Qw, Qa), `wire` the version of the wire protocol."""

    play: PlaySchedule
    shape: Shape
    wire: int = 2
    metadata: tuple[str, ...] = ("memory", "zk+hierarchical")
    """The kinds of metadata stores on which the schedule is possible."""
    bookie: BookieConfig | None = None
    """The configuration of bookies; None: the default."""


SCENARIOS: dict[str, Scenario] = {
    "D1": Scenario(directed.amnesia, (3, 3, 2)),
    "D2": Scenario(directed.lost_fence, (3, 3, 2)),
    "D3": Scenario(directed.volatile_fence, (2, 2, 2)),
    "D4": Scenario(directed.striping_change, (3, 2, 2)),
    "D4-late": Scenario(directed.striping_change_late, (3, 2, 2)),
    "D5": Scenario(directed.identity_reuse, (2, 2, 2)),
    "D5-delete": Scenario(identity.reuse_after_deletion, (2, 2, 2)),
    "id-again": Scenario(identity.an_id_used_again, (3, 3, 2), metadata=("memory",)),
    "id-twice": Scenario(identity.an_id_given_twice, (3, 3, 2), metadata=("memory",)),
    "id-again-empty": Scenario(identity.an_id_used_again_for_nothing, (3, 3, 2), metadata=("memory",)),
    "id-after-deletion": Scenario(identity.an_id_used_after_its_deletion, (3, 3, 2), metadata=("memory",)),
    "old-disk": Scenario(incarnations.old_disk, (2, 2, 2)),
    "woken-replaced": Scenario(incarnations.woken_after_replacement, (2, 2, 2)),
    "woken-removed": Scenario(incarnations.woken_after_decommission, (2, 2, 2)),
    "D6": Scenario(directed.asymmetric_recoverers, (2, 2, 2)),
    "D7": Scenario(directed.empty_tail_fragment, (3, 3, 2)),
    "D8": Scenario(directed.lost_replies, (3, 3, 2)),
    "D9": Scenario(directed.late_acks, (3, 3, 2)),
    "D10": Scenario(directed.change_back, (3, 3, 3)),
    "D11": Scenario(foreign.wanted_another, (2, 2, 2)),
    "D12": Scenario(foreign.cut_off_by_foreign_bookies, (2, 2, 2)),
    "change-race": Scenario(more.change_race, (3, 3, 2)),
    "stale-close": Scenario(more.stale_close, (3, 3, 2)),
    "stalled-recovery": Scenario(more.stalled_recovery, (3, 3, 2)),
    "recovery-change": Scenario(more.recovery_change, (3, 3, 2)),
    "one-denial": Scenario(more.one_denial, (3, 3, 2)),
    "open-repair": Scenario(more.open_repair, (3, 3, 2)),
    "forgotten-force": Scenario(more.forgotten_force, (2, 2, 2)),
    "hung-member": Scenario(more.hung_member, (3, 3, 2)),
    "idle-writer": Scenario(more.idle_writer, (3, 3, 2)),
    "waiting-tail": Scenario(more.waiting_tail, (3, 3, 2)),
    "empty-disk": Scenario(more.empty_disk, (3, 3, 2)),
    "late-look": Scenario(more.late_look, (3, 3, 2)),
    "denied": Scenario(absence.denied, (2, 2, 2)),
    "unstored": Scenario(absence.unstored, (3, 3, 2)),
    "promised": Scenario(absence.promised, (3, 2, 2)),
    "false-promise": Scenario(absence.false_promise, (3, 3, 2)),
    "mixed": Scenario(absence.mixed, (2, 2, 2)),
    "unrepaired": Scenario(absence.unrepaired, (3, 3, 2)),
    "rotten": Scenario(absence.rotten, (2, 2, 2)),
    "slow-copies": Scenario(absence.slow_copies, (3, 3, 2)),
    "away-at-birth": Scenario(absent.away_at_birth, (3, 3, 2)),
    "two-away-at-birth": Scenario(absent.two_away_at_birth, (3, 3, 2)),
    "deletions": Scenario(
        deletions.deletions,
        (3, 3, 2),
        metadata=("memory",),
        bookie=BookieConfig(collection_interval_s=4.0, collection_age_s=6.0, deletions_interval_s=1.0),
    ),
    "limbo": Scenario(more.limbo, (3, 3, 2)),
    "limbo-ends": Scenario(disks.limbo_ends, (3, 3, 2)),
    "scrubbed": Scenario(disks.scrubbed, (3, 3, 2)),
    "slow-repair": Scenario(more.slow_repair, (3, 3, 2), metadata=("memory",)),
    "two-repairs": Scenario(more.two_repairs, (3, 3, 2)),
    "collected-while-repaired": Scenario(more.collected_while_repaired, (3, 3, 2)),
    "repaired-while-recovered": Scenario(more.repaired_while_recovered, (3, 3, 2)),
    "wrong-key": Scenario(more.wrong_key, (3, 3, 2)),
    "quota-used-up": Scenario(quotas.used_up, (3, 3, 2)),
    "quota-over-its-rate": Scenario(quotas.over_its_rate, (3, 3, 2)),
}


def run_scenario(
    name: str,
    seed: int = 0,
    *,
    echo: Echo | None = None,
    mutant: AbstractContextManager[None] | None = None,
    metadata: str = "memory",
) -> ScheduleResult:
    """Run the schedule in a world of its own, with the mutant planted if there is one."""
    scenario = SCENARIOS[name]
    plan = quiet_plan(scenario.shape, wire=scenario.wire)
    if scenario.bookie is not None:
        plan.configs.bookie = scenario.bookie

    async def schedule(world: World) -> str:
        failed = await until_violated(world, scenario.play(Script(world, plan)), (ScheduleFailed, Died))
        world.judge.life_ended()
        return failed

    def make_world() -> World:
        return World(f"{name} {seed}", echo=echo, configs=plan.configs, metadata=metadata)

    return run_schedule(make_world, schedule, watch_stores, mutant)
