"""The clock of a process: the system's, or one that a test shifts while the process runs."""

from __future__ import annotations

import time
from pathlib import Path

from buckram.runtime.process.clock import OFFSET_VARIABLE, SystemClock, process_clock


def test_a_clock_is_wrong_by_what_its_file_says(tmp_path: Path) -> None:
    file = tmp_path / "offset"
    clock = process_clock({OFFSET_VARIABLE: str(file)})
    assert abs(clock.wall_us() - time.time_ns() // 1000) < 5_000_000
    file.write_text("-3600.5")
    assert -3_605_500_000 < clock.wall_us() - time.time_ns() // 1000 <= -3_600_500_000 + 1000
    assert isinstance(process_clock({}), SystemClock)
