"""Does each read of a bank see whole transfers? Money is moved between accounts, and never made or lost.

A transfer adds a row with its name beside the two changed accounts, in one transaction. So each read, of whatever
state, must have the sum of the beginning, and balances that follow from the transfers that it has: a state that mixes
two moments, or half of a transaction, has others. Not here: whether the state is new enough (`checkers/promises.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """An amount that was to be moved between accounts."""

    name: str
    source: int
    target: int
    amount: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A read of all accounts and of the names of all transfers, in one state."""

    name: str
    balances: Mapping[int, int]
    transfers: tuple[str, ...]


def broken_bank(first: Mapping[int, int], transfers: Iterable[Transfer], statements: Iterable[Statement]) -> str:
    """Return why a statement cannot follow from the first balances and whole transfers, or ""."""
    known = {one.name: one for one in transfers}
    for statement in statements:
        if why := _fault(first, known, statement):
            return f"{why}: {statement.name} has {dict(statement.balances)} after {len(statement.transfers)} transfers"
    return ""


def _fault(first: Mapping[int, int], known: Mapping[str, Transfer], statement: Statement) -> str:
    for name, count in Counter(statement.transfers).items():
        if name not in known:
            return f"phantom element: nobody made the transfer {name!r}"
        if count > 1:
            return f"duplicate elements: the transfer {name!r} is there {count} times"
    wanted = dict(first)
    for name in statement.transfers:
        one = known[name]
        wanted[one.source] -= one.amount
        wanted[one.target] += one.amount
    if sum(statement.balances.values()) != sum(first.values()):
        return f"the sum is off, {sum(statement.balances.values())} and not {sum(first.values())}"
    return "" if dict(statement.balances) == wanted else f"the balances are not those of its transfers, {wanted}"


__all__ = ["Statement", "Transfer", "broken_bank"]
