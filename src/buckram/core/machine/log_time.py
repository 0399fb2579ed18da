"""The time of a machine's log, as its leader gives it to records. Pure.

It goes on with the clock while the time is certain. While it is in doubt, it goes on by what passed since, so that
nothing that the state keeps ends by a time that may be wrong. A log that is ahead goes back as soon as the time is
certain; the leader writes a record that says so. Not here: what that record does (`core/machine/fold.py`).
"""

from __future__ import annotations

from buckram.core.cluster.believed_time import Moment
from buckram.core.cluster.wall_time import APART_US


class LogTime:
    """Time of the log, of which `last` is that of the newest record, microseconds UTC."""

    def __init__(self, last: int) -> None:
        self.last = last
        self._doubt: tuple[int, int] | None = None
        """Time of the log and monotonic time at which the doubt began; None while there is none."""

    def goes_back(self, moment: Moment) -> bool:
        """Return whether the log is ahead of a time that is certain, so that a record has to set it back first."""
        certain = moment.certain
        return certain is not None and self.last - certain > APART_US

    def set_back(self, moment: Moment) -> int:
        """Go back to the time that is certain, and return it."""
        self.last, self._doubt = moment.best, None
        return self.last

    def next(self, moment: Moment, mono: int) -> int:
        """Return the time of the next record; `mono` is monotonic time, in microseconds."""
        if not moment.why:
            self._doubt = None
            self.last = max(self.last, moment.best)
            return self.last
        if self._doubt is None:
            self._doubt = self.last, mono
        began, since = self._doubt
        passed = min(began + mono - since, max(moment.best, began))
        known = moment.best if moment.bounded and moment.best - moment.low <= APART_US else 0
        self.last = max(self.last, passed, known)
        return self.last


__all__ = ["LogTime"]
