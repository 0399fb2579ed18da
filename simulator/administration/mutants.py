"""Planted bugs of administration: `python -m buckram.sim --administration --mutants`."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.administration.plan import AdminPlan, most_bookies, suit
from simulator.engine import hunting
from simulator.engine.edits import edited
from simulator.engine.pace import Pace
from simulator.engine.plan import set_pace

SLOW = (0.05, 0.15)
"""Shortest and longest duration of a sync of a slow disk, seconds."""
_LEAVE = "buckram.healing.operations.decommission"
_CALLS = "buckram.healing.operations.operator_calls"
_COOKIE = "buckram.bookie.trust.cookie"
_DECIDE = "buckram.core.cluster.cookie:decide"
_BACKUP = "buckram.metadata.maintain.backup"
_FINDINGS = "buckram.core.health.findings"
_BRAKE = "buckram.bookie.garbage.gc_limits:DeletionLimits"
_STATES = "buckram.core.health.bookie_states"


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[AdminPlan]):
    """A planted bug of administration."""

    commands: tuple[str, ...] = ()
    """Commands of the mutant's lives; empty: those of each plan."""
    faults: tuple[str, ...] = ()
    """Faults of its lives; empty: those of each plan."""
    crowded: bool = False
    """True if its lives have many short ledgers."""
    slow_disks: bool = False
    """True if disks take long for each sync in its lives."""
    late: bool = False
    """True if requests to the metadata store take long in its lives."""
    two: bool = False
    """True if two administrators give commands in its lives."""
    watched: bool = False
    """True if one process looks at the status again and again."""

    def suits(self, plan: AdminPlan) -> bool:
        if self.commands:
            plan.commands = list(self.commands)
            suit(plan)
        if self.faults:
            plan.cluster.faults = list(self.faults)
        if self.crowded:
            plan.writers, plan.ledgers, plan.cluster.entries, plan.cluster.busy_s = 4, 12, 2, 1.0
        if self.slow_disks:
            plan.cluster.pace = Pace(disks=(SLOW,) * most_bookies(plan))
            set_pace(plan.cluster)
        if self.late:
            plan.cluster.pace = Pace(late_chance=0.5, late_s=0.3)
            plan.killing = plan.hanging = 0.0
        plan.watching = plan.watching or self.watched
        if self.two:
            plan.administrators = 2
        return True


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "no-last-proof",
            "departure",
            "a bookie is said to be empty without a last look at every record",
            edited(
                (f"{_LEAVE}:_wait", "found = await ledgers_naming(store, bookie)", "found: dict[int, int] = {}"),
                (f"{_LEAVE}:drain", "depending | await ledgers_naming(store, bookie)", "depending"),
            ),
            80,
            commands=("drain",) * 5,
            late=True,
        ),
        Mutant(
            "named-before-durable",
            "H1, M7",
            "metadata name a member before it acknowledged its copies, and before it synced them",
            edited(
                (
                    "buckram.healing.repair.fragment_copy:_Acks.acknowledged",
                    "while self._error is None and (self._bytes > at_most or (not at_most and self._pending)):",
                    "while False:",
                ),
                (
                    "buckram.healing.repair.ledger_repair:LedgerRepair._replace",
                    "await self._force(target, digest, copy.ledger)",
                    "pass",
                ),
            ),
            commands=("decommission", "rebalance"),
            slow_disks=True,
        ),
        Mutant(
            "taken-out-while-it-answers",
            "answering",
            "what answers and is not registered is forgotten, decommissioned or let rejoin",
            edited(("buckram.health.removal_gate:check_removable", "if why:", "if False:")),
            commands=("forget", "decommission"),
        ),
        Mutant(
            "forgotten-while-named",
            "departure",
            "a bookie is forgotten, or may come back empty, although ledgers name it",
            edited((f"{_CALLS}:refuse_named", "if naming:", "if False:")),
            commands=("forget", "rejoin"),
        ),
        Mutant(
            "cookie-reused",
            "M8, I28",
            "an empty directory passes by the cookie of the one before",
            edited(
                (f"{_COOKIE}:_refuse_unless_new", "if remote is not None:", "if False:"),
                (f"{_COOKIE}:_check_unfinished", "if found is not None and", "if False and found is not None and"),
                (
                    _DECIDE,
                    "return IncarnationVerdict(Standing.REPLACED)",
                    "return IncarnationVerdict(Standing.MEMBER)",
                ),
            ),
            commands=("rejoin",),
        ),
        Mutant(
            "old-directory-rejoins",
            "directory, I28",
            "the directory of a bookie that was removed serves again",
            edited(
                (f"{_COOKIE}:_refuse_removed", "if (await metadata.history()).accepted:", "if False:"),
                (
                    _DECIDE,
                    "if past.why else IncarnationVerdict(Standing.REMOVED)",
                    "",
                ),
            ),
            commands=("decommission", "forget", "replace"),
        ),
        Mutant(
            "rolled-back-accepted",
            "I14",
            "a directory that is behind its witness serves as if it were whole",
            edited(
                (
                    "buckram.bookie.trust.witness:Witness.prepare",
                    "return WitnessedPosition(value.incarnation, value.starts, Position(value.seq, value.offset))",
                    "return None",
                )
            ),
            faults=("roll back",),
        ),
        Mutant(
            "replaced-cookie-stays",
            "departure",
            "the cookie of a bookie that was replaced stays",
            edited((f"{_LEAVE}:replace_bookie", "if left.done:", "if False:")),
            commands=("replace",),
        ),
        Mutant(
            "deletions-not-compared",
            "again",
            "what was deleted since a backup comes back with it",
            edited(("buckram.metadata.maintain.acceptance:accept", "await compare(store)", "[]")),
            80,
            commands=("backup", "restore"),
        ),
        Mutant(
            "restore-accepts-itself",
            "waiting",
            "restored metadata are used without anybody's acceptance",
            edited((f"{_BACKUP}:_not_accepted", "accepted=False", "accepted=True")),
            commands=("backup", "restore"),
        ),
        Mutant(
            "collected-before-acceptance",
            "collected",
            "bookies delete what a restored store does not know before anybody accepted it",
            edited(
                (f"{_BRAKE}.trusted", "await self._witness.confirm()", "True"),
                (f"{_BRAKE}.released", "reviewed = self._witness.reviewed", "reviewed, known = True, dead"),
            ),
            80,
            commands=("backup", "restore"),
            crowded=True,
        ),
        Mutant(
            "rest-never-ends",
            "maintenance",
            "a maintenance does not end by itself",
            edited(("buckram.core.healing.operator_requests:Countdown.changed", "if at <= now:", "if False:")),
            commands=("maintenance",),
        ),
        Mutant(
            "rest-below-quorum",
            "maintenance",
            "a bookie may rest although entries have fewer than Qa copies meanwhile",
            edited((f"{_CALLS}:begin_maintenance", "if short:", "if False:")),
            80,
            commands=("maintenance", "upgrade", "maintenance", "upgrade"),
            two=True,
        ),
        Mutant(
            "status-remembers",
            "status",
            "status goes by the registrations of its first look",
            edited(
                (
                    "buckram.health.gathering:Gatherer._bookies",
                    "await self._store.bookies(),",
                    "self.__dict__.setdefault('first', await self._store.bookies()),",
                )
            ),
            watched=True,
        ),
        Mutant(
            "answering-is-down",
            "status, advice",
            "a bookie that answers and is not registered is said to be down, and its removal is advised",
            edited(
                (f"{_STATES}:_serving", 'if one.state == "down" and one.answers:', "if False:"),
                (
                    f"{_FINDINGS}:may_remove",
                    "return not any(facts.answers(one) for one in (*sorted(named), *filter(None, [noted.bookie])))",
                    "return True",
                ),
            ),
            commands=("forget", "decommission"),
        ),
        Mutant(
            "advice-before-acceptance",
            "advice",
            "removals are advised while a restore waits to be accepted",
            edited(
                (f"{_FINDINGS}:may_remove", "if facts.accepted is not True or facts.suspects:", "if False:"),
            ),
            commands=("backup", "decommission", "restore"),
        ),
        Mutant(
            "copies-to-readonly",
            "readonly",
            "space is evened out onto bookies that take no new entries",
            edited(
                (
                    "buckram.healing.operations.rebalance:_survey",
                    "BookieSpace(free, total, bookie in takers)",
                    "BookieSpace(free, total, True)",
                )
            ),
            commands=("readonly", "rebalance", "readonly"),
            crowded=True,
        ),
        Mutant(
            "queue-unsaid",
            "status",
            "status leaves out ledgers that lack copies and are not copied at the moment",
            edited(
                ("buckram.healing.overview:overview", "queue.append(one)", "queue += [one] if ledger in locked else []")
            ),
            commands=("decommission", "replace"),
        ),
        Mutant(
            "silent-is-well",
            "status",
            "status says nothing of a bookie that is registered and does not answer",
            edited((f"{_STATES}:_serving", "elif not one.answers:", "elif False:")),
            80,
            faults=("hang bookie",),
        ),
        Mutant(
            "source-stays-in-use",
            "waiting",
            "the store that the metadata were moved from can be used on",
            edited(
                (
                    "buckram.metadata.maintain.migration:move",
                    "before = replace(before, accepted=False,",
                    "before = replace(before, accepted=True,",
                )
            ),
            commands=("move-metadata",),
        ),
    )
}
