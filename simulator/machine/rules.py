"""Rules: compares what replicas apply, restore and answer with the reference, and keeps the history of the calls.

Not here: changes of the head (`heads.py`), observing replicas (`metadata/etcd/session.py`), the end (`ending.py`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from buckram.core.machine.fold import Applied, Fold
from buckram.core.machine.sessions import Forgotten
from buckram.core.machine.value_encoding import decode_value
from buckram.errors import ReplicaDiverged, ReplicaStopped
from buckram.state.machine.replica import Replica
from simulator.engine.checkers.linearizability import (
    UNKNOWN,
    Call,
    Undecided,
    list_step,
    not_linearizable,
    register_step,
)
from simulator.engine.world import World
from simulator.machine.reference import REFUSED, Reference

LISTS, REGISTERS = "l", "r"
"""First letters of the keys of lists and of registers."""


@dataclass(slots=True)
class Replicas:
    """One host's replica: its handle, its class, and where its class went wrong."""

    kind: str
    replica: Replica | None = None
    wrong_from: int | None = None
    """The offset after the first command that its class miscounted; None if it has miscounted none."""
    opened: int = 0


@dataclass(slots=True)
class Acknowledged:
    """The highest offset that clients were told, over time."""

    at: list[tuple[float, int]] = field(default_factory=list)

    def note(self, now: float, offset: int) -> None:
        self.at.append((now, max(offset, self.at[-1][1] if self.at else -1)))

    def before(self, moment: float) -> int:
        """Return the highest offset that was acknowledged at this moment; -1 if none was."""
        return next((offset for at, offset in reversed(self.at) if at <= moment), -1)


class Rules:
    """The checks of one life."""

    def __init__(self, world: World) -> None:
        self.world, self.report = world, world.report
        self.reference = Reference()
        self.hosts: dict[str, Replicas] = {}
        self.calls: list[Call] = []
        self.acknowledged = Acknowledged()
        self.acked = 0
        self._details: dict[int, str] = {}
        """Hash of the sessions and header of the first replica that was compared, by offset."""

    # -- replicas -----------------------------------------------------------------------------------------

    def applied(self, host: str, fold: Fold, offset: int, value: bytes | None, done: Applied) -> None:
        """Check a record that a replica has applied."""
        reference, check = self.reference, self.report.check
        value = bytes(value or b"")
        check("R1", offset <= reference.end, "{} applies {}, nobody has applied {}", host, offset, reference.end)
        if offset > reference.end:
            return
        if offset == reference.end:
            reference.append(value)
            for ident in reference.twice:
                check("R3", False, "{} is executed twice, the second time at {}", ident, offset)
            reference.twice.clear()
        check("R1", reference.values[offset] == value, "{} has another record at {} than others", host, offset)
        check("R3", True)
        self._compare(host, fold, offset + 1, "R1")
        self._check_outcome(host, offset, done)
        self._check_acknowledged(host, fold, offset)

    def _check_outcome(self, host: str, offset: int, done: Applied) -> None:
        again = self.reference.repeated.get(offset)
        if again is None or done.outcome is None or isinstance(done.outcome, Forgotten):
            return
        told = REFUSED if done.outcome.refused else decode_value(done.outcome.result)
        self.report.check(
            "R4", told == again.result, "{} repeats {} as {!r}, it gave {!r}", host, again.ident, told, again.result
        )

    def _check_acknowledged(self, host: str, fold: Fold, offset: int) -> None:
        known = self.hosts.get(host)
        replica = known.replica if known is not None else None
        leader = replica._leader if replica is not None and replica.fold is fold else None
        if leader is not None:
            now = leader.engine.acknowledged
            self.report.check("R2", offset < now, "{} applies {}, acknowledged is {}", host, offset, now)

    def restored(self, host: str, fold: Fold) -> None:
        """Check a snapshot that a replica has taken over."""
        self.report.situation("a snapshot was restored")
        self.report.check("R9", fold.applied <= self.reference.end, "{} restores offset {}", host, fold.applied)
        if host in self.hosts:
            self.hosts[host].opened = fold.applied
        self._compare(host, fold, fold.applied, "R9")

    def _compare(self, host: str, fold: Fold, offset: int, rule: str) -> None:
        """Compare the fold's state, after everything below the offset, with the reference and other replicas."""
        known = self.hosts.get(host)
        if offset > self.reference.end:
            return
        state, wanted = b"".join(fold.state.snapshot()), self.reference.state_before(offset)
        if known is not None and known.kind == "wrong":
            # It never leads, so it writes no snapshots; a restored snapshot of another replica puts it right.
            known.wrong_from = None if state == wanted else (known.wrong_from or offset)
            return
        self.report.check(
            rule, state == wanted, "{} has at offset {} {!r}, and the log gives {!r}", host, offset, state, wanted
        )
        rest = hashlib.sha256(fold.sessions.encode() + repr(fold.header()).encode()).hexdigest()
        first = self._details.setdefault(offset, rest)
        self.report.check(rule, rest == first, "{} has other sessions or counts at offset {} than others", host, offset)

    def stopped(self, host: str, error: ReplicaStopped) -> None:
        """Check that a replica that stopped itself has a class that is not good (R10, R11)."""
        kind = self.hosts[host].kind if host in self.hosts else "good"
        if isinstance(error, ReplicaDiverged):
            self.report.check("R11", kind == "wrong", "{} differs: {}", host, error)
            self.report.situation("a replica that miscounts stopped")
            return
        # This replica may be the first to meet the command.
        unknown = error.offset in self.reference.unknown_at or error.offset == self.reference.end
        self.report.check("R10", kind == "old" and unknown, "{} stopped: {}", host, error)
        self.report.situation("a replica stopped at a command that it does not know")

    # -- clients ------------------------------------------------------------------------------------------

    def told(self, ident: str, result: Any) -> None:
        """Check the result of a command that a client was told."""
        self.acked += 1
        found = self.reference.executed.get(ident)
        self.report.check("R4", found is not None, "{} was acknowledged and no replica has applied it", ident)
        if found is None:
            return
        self.report.check(
            "R4", found.result == result, "{} is told {!r}, its first result was {!r}", ident, result, found.result
        )
        self.acknowledged.note(self.world.loop.time(), found.offset)

    def fresh(self, host: str, applied: int, moment: float, after: int | None) -> None:
        """Check a stale read that was served from a state of everything below `applied`."""
        self.report.situation("a stale read was served")
        least = self.acknowledged.before(moment)
        self.report.check(
            "fresh",
            applied > least and applied >= (after or 0),
            "{} reads at {}; {} was acknowledged at {:.6f}, and all below {} was asked for",
            host,
            applied,
            least,
            moment,
            after,
        )

    def judge_calls(self) -> None:
        """Check the history of all calls at the end of a life."""
        for first, step, empty in ((REGISTERS, register_step, None), (LISTS, list_step, ())):
            calls = [call for call in self.calls if call.key.startswith(first)]
            try:
                why = not_linearizable(calls, step, empty)
            except Undecided:
                self.report.situation("a history was too wide to be decided")
                continue
            self.report.check("R6", not why, "{}", why)

    def call(self, client: str, operation: tuple[Any, ...], key: str, result: Any, began: float) -> None:
        """Record a finished call of a client; its result is UNKNOWN if it was given up."""
        ended = None if result is UNKNOWN else self.world.loop.time()
        self.calls.append(Call(client, key, operation, result, began, ended))


__all__ = ["LISTS", "REGISTERS", "Replicas", "Rules"]
