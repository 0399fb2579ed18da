"""The functions that cost most per entry: compiled (_hot.c) where that could be built, else their Python twins.

Both forms do the same and pass the same tests. BUCKRAM_PURE=1 chooses the Python twins.
"""

from __future__ import annotations

import os

COMPILED = False
"""True if the compiled twins are used."""

if os.environ.get("BUCKRAM_PURE", "") in ("", "0"):
    try:
        from buckram.core.entries._hot import (
            INTERFACE,
            scan_add_frames,
            seal_adds,
            take_adds,
            take_v3_adds,
            verify_entries,
        )

        COMPILED = INTERFACE == 2
    except ImportError:
        pass
if not COMPILED:
    from buckram.core.entries.python_twins import scan_add_frames, seal_adds, verify_entries

# The last two are there if COMPILED: their Python twins are in core/storage/plain_adds.py, and chosen in taking.py.
__all__ = ["COMPILED", "scan_add_frames", "seal_adds", "take_adds", "take_v3_adds", "verify_entries"]
