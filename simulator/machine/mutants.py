"""Planted bugs of machines: `python -m buckram.sim --machine --mutants`."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine import hunting
from simulator.engine.edits import edited
from simulator.machine.plan import MachinePlan

_FOLD = "buckram.core.machine.fold:Fold"
_LEADER = "buckram.state.machine.leader:Leader"


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[MachinePlan]):
    """A planted bug of machines."""

    faults: tuple[str, ...] = ()
    """Faults of the mutant's lives, for bugs that show only under some faults; empty: those of each plan."""
    kind: str = ""
    """The class of one replica of the mutant's lives, a key of `state.KINDS`; empty: as drawn."""

    def suits(self, plan: MachinePlan) -> bool:
        if self.kind and self.kind not in plan.replicas:
            plan.replicas = [*(kind for kind in plan.replicas if kind == "good"), self.kind]
        if self.faults:
            plan.cluster.faults = list(self.faults)
        return True


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "applied-before-acknowledged",
            "R2",
            "a leader applies its records and answers when they are sent",
            edited(
                (
                    f"{_LEADER}._send",
                    "offsets = self.engine.append_values([pending.value for pending in group])",
                    "first = self.engine.next_offset\n"
                    "            self.engine.append_values([pending.value for pending in group])\n"
                    "            offsets = self._loop.create_future()\n"
                    "            offsets.set_result(range(first, first + len(group)))",
                )
            ),
        ),
        Mutant(
            "two-leaders",
            "R1, log",
            "bookies acknowledge what a leader writes after the next one has fenced it",
            edited(
                ("buckram.bookie.service.entries.adds:AddPath._decide", "record.fenced", "False"),
            ),
            200,
            faults=("expire a replica", "pause a replica", "expire a replica"),
        ),
        Mutant(
            "deposed-leader-reads",
            "R6",
            "a linearizable read is served without a proof that the leader was not fenced",
            edited((f"{_LEADER}.prove", "self._ask_turn()", "future.set_result(None)")),
            200,
            faults=("expire a replica", "pause a replica", "cut off a replica", "expire a replica"),
        ),
        Mutant(
            "leads-too-early",
            "R5",
            "a leader begins before it has applied what came before",
            edited(
                (
                    "buckram.state.machine.replica:Replica._follow",
                    "partial(self.applied_at_least, won.next_offset)",
                    "partial(self.applied_at_least, 0)",
                )
            ),
        ),
        Mutant(
            "snapshot-of-another-offset",
            "R9",
            "the row and the header of a snapshot name the offset after that of its state",
            edited(
                (
                    "buckram.state.machine.snapshotter:Snapshotter.take",
                    "fold.header()",
                    "fold.header()._replace(offset=fold.applied + 1)",
                )
            ),
            80,
        ),
        Mutant(
            "snapshot-torn",
            "R9",
            "the state of a snapshot is taken while it is written, when later commands are applied",
            edited(
                (
                    "buckram.state.machine.snapshotter:Snapshotter.take",
                    "fold.state.snapshot()",
                    "(piece for _ in (0,) for piece in fold.state.snapshot())",
                )
            ),
            120,
        ),
        Mutant(
            "sessions-not-in-snapshot",
            "R9",
            "a snapshot does not have the table by which a command counts once",
            edited(("buckram.state.machine.snapshotter:Snapshotter.take", "fold.sessions.encode()", 'b""')),
            80,
        ),
        Mutant(
            "snapshot-not-sealed",
            "R7",
            "a snapshot is published while its ledger is open",
            edited(("buckram.state.machine.snapshots:write_snapshot", "async with writer:", "if True:")),
        ),
        Mutant(
            "digest-of-snapshot-ignored",
            "R9",
            "a snapshot is restored although its digest is not that of its row",
            edited(
                (
                    "buckram.core.machine.snapshot_format:SnapshotDecoder.finish",
                    'if found != digest or self._footer.get("digest") != digest',
                    "if False",
                )
            ),
            160,
            faults=("damage a snapshot", "crash a replica", "crash a replica", "damage a snapshot"),
        ),
        Mutant(
            "earliest-too-far",
            "R8",
            "the log is cut at the newest snapshot, so that the one before is of no use",
            edited(("buckram.core.streams.metadata.snapshots:published", "rows[0].offset)", "rows[-1].offset)")),
            80,
        ),
        Mutant(
            "digest-not-compared",
            "R11, ends",
            "a replica that differs goes on",
            edited((f"{_FOLD}._compare", "if own != record.digest:", "if False:")),
            80,
            kind="wrong",
        ),
        Mutant(
            "unknown-command-skipped",
            "R1",
            "a replica passes over a command that it does not know",
            edited(
                (
                    f"{_FOLD}._command",
                    "except UnknownCommand:\n        raise",
                    'except UnknownCommand:\n        outcome = Outcome(b"jnull")',
                )
            ),
            120,
            kind="old",
        ),
        Mutant(
            "repeated-is-applied-again",
            "R1, R4",
            "a command that was applied is applied again when it is repeated",
            edited(
                (f"{_FOLD}._command", "if known is not None:", "if False:"),
                ("buckram.state.machine.replica:Replica.execute", "self.fold.sessions.known(*token)", "None"),
            ),
            200,
        ),
        Mutant(
            "result-forgotten",
            "R4",
            "whoever repeats a command is told that it gave nothing",
            edited(
                ("buckram.core.machine.sessions:SessionTable.known", "return outcome or", 'return Outcome(b"jnull") or')
            ),
            200,
        ),
        Mutant(
            "unknown-is-not-written",
            "R3, R6",
            "a leader that ends says of what it has sent that nothing was written",
            edited(
                (
                    f"{_LEADER}.fail",
                    "_fail(pending, CommandUnknown(name, pending.token.text(self.engine.uid), str(error)))",
                    'raise_later = NotLeader(name, "")\n            _fail(pending, raise_later)',
                )
            ),
            200,
            faults=("expire a replica", "pause a replica", "cut off a replica"),
        ),
        Mutant(
            "fresh-without-applying",
            "fresh",
            "a follower takes its state for fresh when it knows how far the log is, and not when it has applied that",
            edited(
                (
                    "buckram.state.machine.freshness:FreshnessQuestion._question",
                    "await self._applied_at_least(end)",
                    "pass",
                )
            ),
            160,
        ),
        Mutant(
            "end-of-log-by-lac",
            "fresh",
            "a follower asks for the last entry that it knows to be confirmed, and not for the last that is stored",
            edited(
                (
                    "buckram.streams.read.locate:end_of_acknowledged",
                    "last = await reader.last_stored()",
                    "last = await reader.get(reader.last_confirmed) if reader.last_confirmed >= 0 else None",
                )
            ),
            300,
        ),
    )
}


__all__ = ["MUTANTS", "Mutant"]
