"""Waiting for a fact of another thread or process, which has no event: ask again until it holds, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

INTERVAL_S = 0.02


def wait_until(condition: Callable[[], bool], otherwise: str, seconds: float = 60.0) -> None:
    """Block until `condition` holds. After `seconds` an AssertionError says `otherwise`, what is wrong then."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"{otherwise} after {seconds:g} s"
        time.sleep(INTERVAL_S)
