"""The production clock. Monotonic time is the event loop's; only wall time is here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from buckram.seams import Clock

OFFSET_VARIABLE = "BUCKRAM_CLOCK_OFFSET_FILE"


class SystemClock:
    """seams.Clock by the operating system."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000


class ShiftedClock:
    """A clock that is wrong by as many seconds as a file says; right while there is none. For tests of whole processes.

    The file is looked at for each reading, so that the clock of a running process can be set.
    """

    def __init__(self, offset_file: str | Path) -> None:
        self._path = Path(offset_file)

    def wall_us(self) -> int:
        try:
            offset_s = float(self._path.read_text())
        except (FileNotFoundError, ValueError):  # none yet, or one that is being written
            offset_s = 0.0
        return time.time_ns() // 1000 + int(offset_s * 1_000_000)


def process_clock(environment: Mapping[str, str]) -> Clock:
    """The clock of this process: the system's, or the one that a test shifts (BUCKRAM_CLOCK_OFFSET_FILE)."""
    offset_file = environment.get(OFFSET_VARIABLE, "")
    return ShiftedClock(offset_file) if offset_file else SystemClock()
