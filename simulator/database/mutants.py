"""Planted bugs of databases: `python -m buckram.sim --database --mutants`."""

from __future__ import annotations

from simulator.database.mutant import Mutant
from simulator.database.wider_mutants import WIDER
from simulator.engine.edits import edited

_EXECUTION = "buckram.state.db.table_engine.execution:Execution"
_STATE = "buckram.state.db.commits.state_machine:DatabaseState"
_SENT = "outcome = await self._send(leader, own, parts)"
_WRITTEN_TWICE = (
    "buckram.state.db.commits.committing:Committing._append",
    _SENT,
    f"parts = [*parts]\n        {_SENT}\n        await self._send(leader, own, parts[-1:])",
)
_DEPOSED = ("depose the leader",) * 4
_DEAF = ("deafen the leader",) * 4


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        *WIDER,
        Mutant(
            "commit-before-acknowledgement",
            "D1",
            "a transaction is committed in the files when its group is sent",
            edited(("buckram.state.db.table_engine.engine:Engine.ask_for_commit", "pending.decided.wait()", "pass")),
        ),
        Mutant(
            "two-leaders",
            "D3, D5, log",
            "bookies acknowledge what a leader writes after the next one has fenced it",
            edited(("buckram.bookie.service.entries.adds:AddPath._decide", "record.fenced", "False")),
            200,
            faults=("expire a replica", "pause a replica", "expire a replica"),
        ),
        Mutant(
            "group-twice",
            "D2, D3",
            "a group is written twice, and replicas take the second one for another",
            edited(
                _WRITTEN_TWICE,
                (
                    f"{_STATE}.apply_entry",
                    "if group.sequence != self.sequence + 1:",
                    "if group.sequence > self.sequence + 1:",
                ),
            ),
        ),
        Mutant(
            "own-group-applied-again",
            "D3",
            "the leader hands its own group to the engine as one of somebody else's",
            edited((f"{_STATE}._hand_over", "pending.decide(None)", "self.engine.apply(offset, group)")),
        ),
        Mutant(
            "snapshot-of-another-offset",
            "D2, D3",
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
            "snapshot-without-its-newest-frames",
            "D3",
            "a snapshot takes its pages from the database file alone",
            edited(("buckram.state.db.table_engine.wal_files:WalFiles.image", "else dict(self._frames)", "else {}")),
            80,
        ),
        Mutant(
            "deposed-leader-reads",
            "R6, D7",
            "a linearizable read is served without a proof that the leader was not fenced",
            edited(("buckram.state.machine.leader:Leader.prove", "self._ask_turn()", "future.set_result(None)")),
            100,
            faults=_DEPOSED,
        ),
        Mutant(
            "read-before-applied",
            "D7, R6",
            "a read does not wait until the files have what its proof names",
            edited(
                (
                    "buckram.state.db.database:Database._query",
                    "await self._engine.settled(self._state.sequence)",
                    "pass",
                )
            ),
            80,
        ),
        Mutant(
            "read-before-begun",
            "begun",
            "a replica that was just opened is read before it has reached the end of its log",
            edited(("buckram.state.db.database:Database._begun", "await self._replica.begun()", "pass")),
            100,
            faults=("crash a replica",) * 4,
        ),
        Mutant(
            "frames-of-a-spill",
            "D3, D7, log",
            "of frames that take the place of others that were rolled back, the first ones count",
            edited(
                (
                    "buckram.state.db.table_engine.capture_vfs:CaptureVfs.writes",
                    "self._contents[frame] = bytes(data)",
                    "self._contents.setdefault(frame, bytes(data))",
                )
            ),
            80,
            spills=True,
        ),
        Mutant(
            "failed-unit-stays",
            "D7",
            "what a call did before it failed is committed with the rest of its group",
            edited((f"{_EXECUTION}._unit", 'executor.inside("ROLLBACK TO buckram_unit")', "pass")),
            80,
        ),
        Mutant(
            "token-not-recorded",
            "D5, D6, D7",
            "a call's receipt is not in its group",
            edited((f"{_EXECUTION}._unit", "if unit.token is not None:", "if False:")),
        ),
        Mutant(
            "tokens-not-in-snapshot",
            "D6",
            "a snapshot does not have the tokens that were used",
            edited(
                (
                    "buckram.core.db.outcomes:Outcomes.receipts",
                    "*(dict(span.receipts) for span in self._spans[-1:])",
                    "*(dict.fromkeys(map(str, range(len(span.receipts))), '') for span in self._spans[-1:])",
                )
            ),
            100,
            restless=True,
        ),
        Mutant(
            "repetition-is-executed-again",
            "D6",
            "a call is executed although its token was used",
            edited(("buckram.state.db.commits.write_queue:WriteQueue._repeated", "if counts is None:", "if True:")),
            200,
        ),
        Mutant(
            "commit-does-not-ask-for-its-token",
            "D6",
            "a transaction of several calls is committed although its token was used",
            edited(
                (
                    "buckram.state.db.commits.transactions:OpenTransaction.commit",
                    "self._committing.counts(receipt.token) if receipt is not None else None",
                    "None",
                )
            ),
            80,
        ),
        Mutant(
            "no-receipt-of-nothing",
            "D5",
            "a call under a token that changes nothing leaves no receipt",
            edited((f"{_EXECUTION}._record_receipts", "if self._receipts and not self._wrote:", "if False:")),
            80,
        ),
        Mutant(
            "what-waits-is-aborted",
            "D5",
            "a call that waits, or is being executed, is said to be aborted",
            edited(
                ("buckram.state.db.database:Database._known", "waits = self._writer.is_using(token)", "waits = False")
            ),
            80,
        ),
        Mutant(
            "unknown-is-aborted",
            "D5, D7",
            "whoever asks for the outcome of a leader's own token is told that it was aborted",
            edited(("buckram.core.db.outcomes:Outcomes.has", "[0] == leadership", "[0] == -1")),
            100,
            faults=_DEAF,
        ),
        Mutant(
            "parts-of-another-group",
            "D2, D3",
            "the parts of a leader that was lost are joined with those of the next",
            edited(("buckram.core.db.group:Joiner.joined", "if index == 0:", "if False:")),
            200,
        ),
        Mutant(
            "pages-beyond-the-end",
            "D3",
            "the digest keeps pages that a transaction cut off",
            edited(("buckram.state.db.table_engine.engine:Engine.without_removed", "self.files.size + 1", "size + 1")),
            200,
        ),
    )
}


written_twice = edited(_WRITTEN_TWICE)
"""A group that is written twice: no bug by itself, since the second one is void."""


__all__ = ["MUTANTS", "Mutant", "written_twice"]
