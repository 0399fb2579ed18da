"""Rules: compares replicas' files and clients' results with the reference, and keeps the histories.

Not here: changes of the head (`simulator/machine/heads.py`), observing replicas (`metadata/etcd/session.py`), the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from buckram.state.db.table_engine.engine import Engine
from simulator.database.histories import Histories
from simulator.database.reference import Reference
from simulator.engine.checkers.linearizability import UNKNOWN, Call, Undecided, not_linearizable, register_step
from simulator.engine.checkers.serializability import Append, Outcome, Read, Transaction, not_serializable
from simulator.engine.world import World
from simulator.machine.faults import NAME

DATABASE = str(NAME)


@dataclass(slots=True)
class Attempt:
    """A transaction of a client, as far as it has come."""

    name: str
    began: float
    operations: list[Append | Read] = field(default_factory=list)
    ended: float | None = None
    outcome: Outcome = "unknown"
    token: str | None = None
    position: int | None = None
    """Position below which it is committed, None if its client was told none."""
    replica: str = ""
    """The handle of the replica that acknowledged it."""


@dataclass(slots=True)
class Acknowledged:
    """An acknowledged value of a list, with the time and the offset below which it is committed."""

    at: float
    offset: int
    value: str


class Rules:
    """The checks of one life."""

    def __init__(self, world: World) -> None:
        self.world, self.report = world, world.report
        self.histories = Histories(world)
        self.references: dict[str, Reference] = {}
        self.calls: list[Call] = []
        self.attempts: list[Attempt] = []
        self.values: list[Acknowledged] = []
        self._own: dict[str, str] = {}
        """The outcome that a leader reported for each token of a CommitUnknown."""
        self.acked = 0

    @property
    def reference(self) -> Reference:
        return self.of(DATABASE)

    def of(self, database: str) -> Reference:
        """Return the reference of a database, or of a fork of it."""
        return self.references.setdefault(database, Reference())

    # -- replicas -----------------------------------------------------------------------------------------

    def applied(self, host: str, database: str, offset: int, value: bytes | None, sequence: int) -> None:
        """Check a record that a replica has applied; `sequence` is its number of groups after that."""
        reference, check = self.of(database), self.report.check
        value = bytes(value or b"")
        check("D3", offset <= reference.end, "{} applies {}, nobody has applied {}", host, offset, reference.end)
        if offset > reference.end:
            return
        if offset == reference.end:
            void, cut, shared, shrunk = reference.void, reference.cut, reference.shared, reference.shrunk
            reference.append(value)
            if reference.shrunk > shrunk:
                self.report.situation("a database shrank")
            if reference.void > void:
                self.report.situation("a group was void")
            if reference.cut > cut:
                self.report.situation("a group was cut into parts")
            if reference.shared > shared:
                self.report.situation("several calls shared a group")
            for token in reference.twice:
                check("D6", False, "{} is committed twice, the second time at {}", token, offset)
            reference.twice.clear()
        check("D3", not reference.wrong, "the digests of the groups {} are not those of their pages", reference.wrong)
        check("D3", reference.values[offset] == value, "{} has another record at {} than others", host, offset)
        wanted = reference.after[offset]
        check("D2", sequence == wanted, "{} has {} groups after {}, and the log {}", host, sequence, offset, wanted)

    def advanced(self, host: str, engine: Engine) -> None:
        """Check the pages in a replica's files after another group. Called in the replica's thread."""
        reference, sequence, files = self.of(engine.database), engine.sequence, engine.files
        known = sequence <= reference.sequence
        self.report.check("D1", known, "{} has group {}, the log has {}", host, sequence, reference.sequence)
        if not known:
            return
        wanted = reference.states[sequence]
        found = {number: files.read_at(number, files._frames.get(number)) for number in range(1, files.size + 1)}
        differ = [number for number in {**wanted, **found} if wanted.get(number) != found.get(number)]
        self.report.check("D3", not differ, "{} has other pages than the log after {}: {}", host, sequence, differ)

    # -- clients ------------------------------------------------------------------------------------------

    def told(self, attempt: Attempt, affected: list[int] | None = None) -> None:
        """Check the outcome that a client learned of its transaction; `affected`: the counts that it was told."""
        attempt.ended, token = self.world.loop.time(), attempt.token
        if token is None:
            return
        found = self.reference.tokens.get(token)
        if attempt.outcome == "ok" and any(isinstance(one, Append) for one in attempt.operations):
            self.report.check("D5", found is not None, "{} was acknowledged and is in no group", token)
        if attempt.outcome == "aborted":
            self.report.check("D5", found is None, "{} is told to be aborted, and was committed", token)
        if found is not None and affected is not None:
            counts = [int(pair.split(",")[0]) for pair in found.strip("[]").replace(" ", "").split("],[")]
            self.report.check("D6", counts == affected, "{} is told {}, at first it was {}", token, affected, counts)

    def repeated(self, token: str, first: list[int], again: list[int]) -> None:
        """Check that a call under a used token returned the counts of its first execution (D6)."""
        self.report.situation("a used token was repeated")
        self.report.check("D6", first == again, "{} is told {}, at first it was {}", token, again, first)

    def answered(self, token: str) -> None:
        """Check that the group of an acknowledged token exists, even if the call changed nothing."""
        self.report.check("D5", token in self.reference.tokens, "{} was acknowledged and is in no group", token)

    def outcome(self, token: str, said: str) -> None:
        """Check that a leader reports an acknowledged call as committed (D5)."""
        self.report.check("D5", said == "committed", "{} was acknowledged, and is said to be {}", token, said)

    def own_outcome(self, token: str, said: str) -> None:
        """Record and check the outcome that a leader reported for the token of a CommitUnknown."""
        self._own[token] = said
        self._check_own(token, said)

    def _check_own(self, token: str, said: str) -> None:
        _, leadership, sequence = token.split(":")
        committed = (int(leadership), int(sequence)) in self.reference.groups
        wrong = said != "pending" and committed != (said == "committed")
        self.report.check("D5", not wrong, "{} is said to be {}, and committed is {}", token, said, committed)

    def said_meanwhile(self, token: str, said: str, committed: bool) -> None:
        """Check an outcome reported while the call ran: a call reported as aborted must not be committed later (D5)."""
        self.report.situation("an outcome was asked for meanwhile")
        self.report.check(
            "D5", not (said == "aborted" and committed), "{} was said to be aborted, and then it was committed", token
        )

    def acknowledged(self, attempt: Attempt, offset: int, replica: str) -> None:
        """Record the appends of a committed transaction, which are below the offset; `replica`: who acknowledged it."""
        self.acked += 1
        attempt.position, attempt.replica = offset, replica
        for one in attempt.operations:
            if isinstance(one, Append):
                self.values.append(Acknowledged(self.world.loop.time(), offset, str(one.value)))

    def fresh(self, host: str, found: set[str], moment: float, after: int | None) -> None:
        """Check that a stale read, with the values `found` of all lists, has all acknowledged values in its bounds."""
        self.report.situation("a stale read was served")
        lost = [
            one.value
            for one in self.values
            if (one.at <= moment or (after is not None and one.offset <= after)) and one.value not in found
        ]
        self.report.check("fresh", not lost, "{} lacks {}; asked: before {}, after {}", host, lost, moment, after)

    def call(self, client: str, operation: tuple[Any, ...], key: str, result: Any, began: float) -> None:
        """Record a finished statement on a register; its result is UNKNOWN if the client gave it up."""
        ended = None if result is UNKNOWN else self.world.loop.time()
        self.calls.append(Call(client, key, operation, result, began, ended))

    def judge(self) -> None:
        """Check the histories of all calls and transactions at the end of a life."""
        try:
            why = not_linearizable(self.calls, register_step)
            self.report.check("R6", not why, "{}", why)
        except Undecided:
            self.report.situation("a history was too wide to be decided")
        history = [
            Transaction(one.name, tuple(one.operations), one.began, one.ended, one.outcome) for one in self.attempts
        ]
        why = not_serializable(history)
        self.report.check("D7", not why, "{}", why)
        self.histories.judge(self.attempts)
        for token, said in self._own.items():
            self._check_own(token, said)
        for one in self.attempts:
            if one.outcome == "aborted" and one.token is not None:
                late = one.token in self.reference.tokens
                self.report.check("D5", not late, "{} was told to be aborted, and is committed", one.token)


__all__ = ["DATABASE", "Attempt", "Rules"]
