"""Does each read of a history keep the promise of its consistency? Reads of several levels stand in one history.

Values are only added, so a read is the set of the values that it has, and a promise names values that it must not lack:

* linearizable: all that was acknowledged before it began;
* leader: all that the same replica acknowledged before, and what anybody had acknowledged when it began to lead;
* stale: what its replica must have had when it had just been opened, and all that the replica has answered before;
* at most so many seconds stale: all that was acknowledged so long before it began;
* after a position: all that is below it, and all that anybody read who was told that position, or an earlier one.

At every level, nothing may be there that nobody added, or that was told to be aborted. Not here: in which order
transactions took effect (`checkers/serializability.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["linearizable", "leader", "stale"]


@dataclass(frozen=True, slots=True)
class Added:
    """A value and the call that added it. `acked` is None while nobody was told that it is there."""

    value: Hashable
    began: float
    acked: float | None = None
    position: int | None = None
    """Position of the log below which it is, None if its caller was told none."""
    replica: str = ""
    """The replica that acknowledged it."""
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """A read that was answered."""

    name: str
    replica: str
    """The open handle that answered: a replica that was opened again is another one."""
    level: Level
    began: float
    ended: float
    values: frozenset[Hashable]
    at_most_s: float | None = None
    after: int | None = None
    position: int | None = None
    """Position that the reader was told with the answer: what is read after it must not lack what was read here."""
    opened: float | None = None
    """When the replica was opened; None if it is not known."""
    leads_from: float | None = None
    """When the replica began to lead; None if it is not known."""


def broken_promise(added: Iterable[Added], looks: Iterable[Look]) -> str:
    """Return the first promise that a read breaks, with the anomaly's name before it, or ""."""
    judge = _Judge(list(added), sorted(looks, key=lambda look: look.ended))
    for look in judge.looks:
        if why := judge.unfounded(look) or judge.lacking(look):
            return why
    return judge.going_back() or judge.forgotten()


class _Judge:
    def __init__(self, added: Sequence[Added], looks: Sequence[Look]) -> None:
        self.added, self.looks = added, looks
        self._known = {one.value: one for one in added}
        self._acked = [(one, one.acked) for one in added if one.acked is not None]

    def unfounded(self, look: Look) -> str:
        """Return a value that the read has and must not have at any level, or ""."""
        for value in sorted(look.values, key=repr):
            one = self._known.get(value)
            if one is None:
                return f"phantom element: {look.name} at {look.replica} has {value!r}, which nobody added"
            if one.aborted:
                return f"G1a: {look.name} at {look.replica} has {value!r}, which was aborted"
            if one.began > look.ended:
                return f"phantom element: {look.name} at {look.replica} has {value!r} before it was added"
        return ""

    def lacking(self, look: Look) -> str:
        """Return what the read lacks of what its level promises, or ""."""
        if look.level == "linearizable":
            return self._lacks("stale read", look, look.began)
        if look.level == "leader":
            own = {one.value for one, acked in self._acked if one.replica == look.replica and acked < look.began}
            return self._named("stale read of a leader", look, own) or (
                self._lacks("stale read of a leader", look, look.leads_from) if look.leads_from is not None else ""
            )
        if look.at_most_s is not None and (
            why := self._lacks("stale read beyond at_most_s", look, look.began - look.at_most_s)
        ):
            return why
        if look.after is not None:
            below = {one.value for one, _ in self._acked if one.position is not None and one.position <= look.after}
            if why := self._named("read below `after`", look, below):
                return why
        return self._named("read before the replica had begun", look, self._at_opening(look))

    def _at_opening(self, look: Look) -> set[Hashable]:
        """Return what a replica finds in its log when it is opened: a reader may lack what was acknowledged last, but
        an entry says what was acknowledged before it was sent."""
        if look.opened is None:
            return set()
        last = max((one.began for one, acked in self._acked if acked < look.opened), default=-1.0)
        return {one.value for one, acked in self._acked if acked < last}

    def _lacks(self, anomaly: str, look: Look, moment: float) -> str:
        return self._named(anomaly, look, {one.value for one, acked in self._acked if acked < moment})

    def _named(self, anomaly: str, look: Look, wanted: Collection[Hashable]) -> str:
        lost = sorted(set(wanted) - look.values, key=repr)
        if not lost:
            return ""
        bound = f"at most {look.at_most_s} s, after {look.after}"
        return f"{anomaly}: {look.name} ({look.level}, {bound}) at {look.replica} lacks {lost[:5]}"

    def going_back(self) -> str:
        """Return a replica that answers with less than it had answered before, or ""."""
        for number, late in enumerate(self.looks):
            for early in self.looks[:number]:
                if early.replica == late.replica and early.ended < late.began and early.values - late.values:
                    return (
                        f"non-monotonic reads: {late.replica} answers {late.name} without "
                        f"{sorted(early.values - late.values, key=repr)[:5]}, which {early.name} had"
                    )
        return ""

    def forgotten(self) -> str:
        """Return a read after a position that lacks what was read at that position or an earlier one, or ""."""
        for late in self.looks:
            if late.after is None:
                continue
            for early in self.looks:
                told = early.position is not None and early.position <= late.after and early.ended < late.began
                if told and early.values - late.values:
                    return (
                        f"non-monotonic `after`: {late.name} at {late.replica} after {late.after} lacks "
                        f"{sorted(early.values - late.values, key=repr)[:5]}, which {early.name} had at "
                        f"{early.position}"
                    )
        return ""


__all__ = ["Added", "Level", "Look", "broken_promise"]
