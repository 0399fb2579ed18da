"""When a periodic check is due: from the date of its last run, which is kept in the metadata store. Pure.

The date was perhaps written by another auditor with another clock, so no date is believed that lies ahead.
"""

from __future__ import annotations


def due_in_s(last_run_ms: int, now_ms: int, interval_s: float) -> float:
    """Seconds until the next run; 0 where none is known, or where the clock was set back behind the last one."""
    if last_run_ms < 0 or last_run_ms > now_ms:
        return 0.0
    return max(0.0, interval_s - (now_ms - last_run_ms) / 1000)
