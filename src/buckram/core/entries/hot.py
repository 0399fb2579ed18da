"""What costs most per entry, compiled where that could be built (_hot.c), else the Python that it is a twin of.

Both do the same, which the tests of each say; BUCKRAM_PURE=1 leaves the compiled ones alone.
"""

from __future__ import annotations

import os

COMPILED = False
"""Whether the compiled twins are used."""

if os.environ.get("BUCKRAM_PURE", "") in ("", "0"):
    try:
        from buckram.core.entries._hot import INTERFACE, scan_add_frames, seal_adds, verify_entries

        COMPILED = INTERFACE == 1
    except ImportError:
        pass
if not COMPILED:
    from buckram.core.entries.scan import scan_add_frames
    from buckram.core.entries.seal import seal_adds
    from buckram.core.entries.verify import verify_entries

__all__ = ["COMPILED", "scan_add_frames", "seal_adds", "verify_entries"]
