"""Measures whether a device is fast enough for the loop's thread to wait for it."""

from __future__ import annotations

SLOW_S, FAST_S = 0.0015, 0.001
"""Thresholds of the moving average of an operation, seconds: at SLOW_S a device stops being fast, below FAST_S it is
fast again."""
_WEIGHT = 1 / 16


class Speed:
    """A moving average of how long operations took. A thread costs about 0.1 ms of CPU and two turns of the loop."""

    __slots__ = ("_average_s", "fast")

    def __init__(self) -> None:
        self._average_s, self.fast = 0.0, True

    def took(self, seconds: float) -> None:
        self._average_s += (seconds - self._average_s) * _WEIGHT
        self.fast = self._average_s < (SLOW_S if self.fast else FAST_S)
