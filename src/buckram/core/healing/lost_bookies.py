"""Lost bookies, and the time when their ledgers may be copied: the delay, and the brake if too many go at once.

A pure state machine over lists of registered bookies, in seconds of a monotonic clock. Not here: the ledgers that lack
copies (`core/healing/needs`), and the auditor that uses this (`healing/auditing/auditor`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from buckram.types import BookieId

DEFAULT_DELAY_S = 300.0
BRAKE_SHARE = 1 / 3
_SMALLEST_DOMAIN = 2
"""Least number of bookies of a fault domain whose loss as a whole holds the brake; a domain of one bookie is lost with
every single bookie."""


@dataclass(frozen=True, slots=True)
class HealingBrake:
    """Reason to copy nothing: so many bookies went at once that a fault of a network or of power is likelier than one
    of disks."""

    bookies: tuple[BookieId, ...]
    why: str


class Losses:
    """Lost bookies, as one candidate for auditor knows them. Every candidate keeps count, so that the next auditor need
    not begin anew; a process that has just started counts from its first look.

    A bookie is lost while it is known (it has a cookie, or a ledger names it) and not registered. It is due `delay_s`
    after its registration ended; at once if it is decommissioned, or an operator has asked for an audit since.
    """

    def __init__(self, delay_s: float = DEFAULT_DELAY_S) -> None:
        self._delay_s = delay_s
        self._registered: frozenset[BookieId] = frozenset()
        self._lost_at: dict[BookieId, float] = {}
        self._domains: dict[BookieId, tuple[str, ...]] = {}
        self._unused: frozenset[BookieId] = frozenset()
        self._leaving: frozenset[BookieId] = frozenset()
        self._hurried: frozenset[BookieId] = frozenset()
        """Bookies that were lost when an operator asked for an audit."""
        self._resting: frozenset[BookieId] = frozenset()
        self._rested: frozenset[BookieId] = frozenset()
        """Bookies that were in a maintenance at the last call of `seen`."""
        self._allowed: frozenset[BookieId] = frozenset()
        self._adopted: HealingBrake | None = None

    @property
    def lost(self) -> Mapping[BookieId, float]:
        """Return the lost bookies that ledgers may name and that are in no maintenance, each with the time it was lost
        at."""
        return {b: at for b, at in self._lost_at.items() if b not in self._unused and b not in self._resting}

    def seen(
        self,
        known: Collection[BookieId],
        registered: Collection[BookieId],
        now: float,
        domains: Mapping[BookieId, tuple[str, ...]] | None = None,
    ) -> None:
        """Take the lists as they are now. A bookie's fault domains, the widest first, stay known while it is gone."""
        self._domains.update(domains or {})
        self._registered = frozenset(registered)
        missing = [bookie for bookie in sorted(known) if bookie not in self._registered]
        rested, self._rested = self._rested | self._resting, self._resting
        self._lost_at = {b: now if b in rested else self._lost_at.get(b, now) for b in missing}
        self._allowed &= frozenset(missing)
        self._hurried &= frozenset(missing)
        self._unused &= frozenset(missing)

    def named(self, bookies: Collection[BookieId]) -> None:
        """Note the bookies that ledgers name, as just read. Others do not count as lost until the next call."""
        self._unused = frozenset(self._lost_at) - frozenset(bookies)

    def leaving(self, bookies: Collection[BookieId]) -> None:
        """Note the bookies that an operator decommissions: they are due at once, and never a reason for the brake."""
        self._leaving = frozenset(bookies)

    def resting(self, bookies: Collection[BookieId]) -> None:
        """Note the bookies in a maintenance: none counts as lost until it is over, when the delay begins. Call this
        before `seen`."""
        self._resting = frozenset(bookies)

    def set_delay(self, delay_s: float) -> None:
        """Change the delay from now on, for bookies that are lost already as well."""
        self._delay_s = delay_s

    def hurry(self) -> None:
        """Make bookies that are lost now due at once, since an operator asked for an audit, as Apache's `triggeraudit`
        and `decommissionbookie` do. The brake holds all the same."""
        self._hurried = frozenset(self._lost_at)

    def proceed(self) -> None:
        """Release the brake for bookies that are lost now, by the word of an operator. Later losses are judged anew."""
        self._allowed = frozenset(self._lost_at)

    def allow(self, bookies: Collection[BookieId]) -> None:
        """Release the brake for these bookies only, as an operator had another candidate do."""
        self._allowed = frozenset(bookies) & frozenset(self._lost_at)

    def adopt(self, brake: HealingBrake | None) -> None:
        """Adopt the brake that an earlier auditor published. This process cannot know the fault domains of bookies that
        were gone before its first look, so the brake stays while all of them are away, unless `proceed` was called."""
        self._adopted = brake

    def brake(self) -> HealingBrake | None:
        """Return the reason to copy nothing now; None: copying may go on. The brake is released when enough of its
        bookies are back, or by `proceed`."""
        counted = sorted(
            (at, bookie)
            for bookie, at in self.lost.items()
            if bookie not in self._allowed and bookie not in self._leaving
        )
        total = len(self._registered) + len(counted)
        for index, (start, _) in enumerate(counted):
            together = [bookie for at, bookie in counted[index:] if at - start <= self._delay_s]
            if len(together) > total * BRAKE_SHARE and len(together) > 1:
                names = tuple(sorted(together))
                return HealingBrake(names, f"{len(names)} of {total} bookies went within {self._delay_s:g} s")
            domains = self._domains_of(together)
            whole = [domain for domain, gone in domains.items() if self._is_whole(domain, gone)]
            if whole:
                widest = max(whole, key=lambda domain: len(domains[domain]))
                gone = tuple(sorted(domains[widest]))
                return HealingBrake(gone, f"all {len(gone)} bookies of {widest} went within {self._delay_s:g} s")
        adopted, away = self._adopted, [bookie for _, bookie in counted]
        if adopted is None or not all(bookie in away for bookie in adopted.bookies):
            self._adopted = None
        return self._adopted

    def _domains_of(self, bookies: Collection[BookieId]) -> dict[str, list[BookieId]]:
        found: dict[str, list[BookieId]] = {}
        for bookie in bookies:
            for domain in self._domains.get(bookie, ()):
                found.setdefault(domain, []).append(bookie)
        return found

    def _is_whole(self, domain: str, gone: Collection[BookieId]) -> bool:
        """Return whether a domain of several bookies has none left that is registered."""
        left = any(domain in self._domains.get(bookie, ()) for bookie in self._registered)
        return len(gone) >= _SMALLEST_DOMAIN and not left

    def due(self, now: float) -> frozenset[BookieId]:
        """Return the bookies whose ledgers are to be marked now; empty while the brake holds."""
        if self.brake() is not None:
            return frozenset()
        return frozenset(bookie for bookie in self.lost if self._due_at(bookie) <= now)

    def next_due_at(self, now: float) -> float | None:
        """Return the time at which `due` grows next if nothing changes; None: it does not."""
        if self.brake() is not None:
            return None
        return min((at for bookie in self.lost if (at := self._due_at(bookie)) > now), default=None)

    def _due_at(self, bookie: BookieId) -> float:
        at_once = bookie in self._leaving or bookie in self._hurried
        return self._lost_at[bookie] + (0.0 if at_once else self._delay_s)
