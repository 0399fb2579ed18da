"""The production clock: wall time, and time that goes on while the machine sleeps.

Everything else that waits goes by the event loop's monotonic time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from buckram.seams import Clock

OFFSET_VARIABLE = "BUCKRAM_CLOCK_OFFSET_FILE"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Another one for each boot of each machine, and the same in all containers there."""


@runtime_checkable
class UpClock(Protocol):
    """A clock that also knows how long the machine has been up, with the time that it slept."""

    def up_us(self) -> int:
        """Return microseconds since the machine was booted. This clock cannot be set."""
        ...

    def boot(self) -> str:
        """Return an identifier of this boot of this machine; empty if it is not known."""
        ...


def up_reading(clock: Clock, otherwise: Callable[[], float]) -> Callable[[], int]:
    """Return a function that reads elapsed time in microseconds: the machine's, else that of `otherwise`, which reads
    seconds."""
    return clock.up_us if isinstance(clock, UpClock) else lambda: int(otherwise() * 1_000_000)


def boot_of(clock: Clock) -> str:
    """Return the boot that `up_us` of the clock counts from; empty if that is not known."""
    return clock.boot() if isinstance(clock, UpClock) else ""


class SystemClock:
    """seams.Clock by the operating system."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def up_us(self) -> int:
        return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000

    def boot(self) -> str:
        try:
            return BOOT_ID.read_text().strip()
        except OSError:
            return ""


class ShiftedClock(SystemClock):
    """A clock that is wrong by the seconds in a file; right while there is none. For tests of whole processes.

    The file is read for each reading of the clock, so that the clock of a running process can be set.
    """

    def __init__(self, offset_file: str | Path) -> None:
        self._path = Path(offset_file)

    def wall_us(self) -> int:
        try:
            offset_s = float(self._path.read_text())
        except (FileNotFoundError, ValueError):  # none yet, or one that is being written
            offset_s = 0.0
        return super().wall_us() + int(offset_s * 1_000_000)


def process_clock(environment: Mapping[str, str]) -> Clock:
    """Return the clock of this process: the system's, or the one that a test shifts (BUCKRAM_CLOCK_OFFSET_FILE)."""
    offset_file = environment.get(OFFSET_VARIABLE, "")
    return ShiftedClock(offset_file) if offset_file else SystemClock()
