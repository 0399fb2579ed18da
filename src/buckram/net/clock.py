"""The production clock. Monotonic time is the event loop's; only wall time is here."""

from __future__ import annotations

import time


class SystemClock:
    """seams.Clock by the operating system."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000
