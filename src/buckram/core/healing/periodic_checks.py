"""Due times of periodic checks, from the date of the last run, which is kept in the metadata store. Pure.

Another auditor with another clock may have written the date, so a date in the future is not believed.
"""

from __future__ import annotations


def due_in_s(last_run_ms: int, now_ms: int, interval_s: float) -> float:
    """Return the seconds until the next run; 0 if no last run is known, or if it lies in the future."""
    if last_run_ms < 0 or last_run_ms > now_ms:
        return 0.0
    return max(0.0, interval_s - (now_ms - last_run_ms) / 1000)
