"""Histories of the wider lives: reads of every consistency, the bank, and who held which replica since when.

Not here: the checks of one moment (`rules.py`), what each read promises (`simulator/engine/checkers/promises.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from buckram.state.machine.leader import Leader
from simulator.engine.checkers.bank import Statement, Transfer, broken_bank
from simulator.engine.checkers.promises import Added, Level, Look, broken_promise
from simulator.engine.checkers.serializability import Append, Read
from simulator.engine.world import World

if TYPE_CHECKING:
    from simulator.database.rules import Attempt

ACCOUNTS = {1: 100, 2: 100, 3: 100}
"""The accounts of the bank, with their first balances."""


@dataclass(frozen=True, slots=True)
class Handle:
    """One opening of a replica: a host that opens its replica again has another one."""

    name: str
    opened: float


@dataclass(slots=True)
class Asked:
    """A read that is under way: what it asks for, and what it found at its beginning."""

    name: str
    handle: Handle
    level: Level
    began: float
    at_most_s: float | None = None
    after: int | None = None
    leads_from: float | None = None

    def answered(self, ended: float, values: Iterable[Hashable], position: int) -> Look:
        """Return the read with its answer."""
        return Look(
            self.name,
            self.handle.name,
            self.level,
            self.began,
            ended,
            frozenset(values),
            self.at_most_s,
            self.after,
            position,
            self.handle.opened,
            self.leads_from,
        )


@dataclass(slots=True)
class Bank:
    """The history of the bank."""

    made: list[Transfer] = field(default_factory=list)
    added: dict[str, Added] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)


class Histories:
    """The histories of one life."""

    def __init__(self, world: World) -> None:
        self.world, self.report = world, world.report
        self.handles: dict[str, Handle] = {}
        """The present handle of each host."""
        self.led: dict[Leader, tuple[float, str]] = {}
        """When each leadership began, and at which host."""
        self.looks: list[Look] = []
        self.bank = Bank()
        self._opened = 0

    def opened(self, host: str, began: float) -> None:
        """Note that a host has opened its replica, which it began at this time."""
        self._opened += 1
        self.handles[host] = Handle(f"{host}.{self._opened}", began)

    def leads_from(self, leader: Leader | None) -> float | None:
        """Return when this leadership began, None if there is none."""
        return None if leader is None or leader.ended.done() or leader not in self.led else self.led[leader][0]

    def led_since(self, host: str, since: float) -> bool:
        """Return whether a leadership of this host began since then."""
        return any(began >= since for began, where in self.led.values() if where == host)

    def judge(self, attempts: Iterable[Attempt]) -> None:
        """Check all reads at the end of a life. `attempts`: the transactions on lists."""
        if self.looks:
            why = broken_promise(_added(attempts), self.looks)
            self.report.check("looks", not why, "{}", why)
        bank = self.bank
        if bank.statements:
            why = broken_bank(ACCOUNTS, bank.made, bank.statements)
            self.report.check("bank", not why, "{}", why)
            why = broken_promise(bank.added.values(), bank.looks)
            self.report.check("bank", not why, "{}", why)


def _added(attempts: Iterable[Attempt]) -> list[Added]:
    """Return the values of all appends, as far as their callers know what became of them."""
    return [
        Added(
            one.value,
            attempt.began,
            attempt.ended if attempt.outcome == "ok" else None,
            attempt.position,
            attempt.replica,
            attempt.outcome == "aborted",
        )
        for attempt in attempts
        for one in attempt.operations
        if isinstance(one, Append)
    ]


def values_of(reads: Iterable[Read]) -> list[Hashable]:
    """Return the values of reads of several lists."""
    return [value for read in reads for value in read.values]


__all__ = ["ACCOUNTS", "Asked", "Bank", "Handle", "Histories", "values_of"]
