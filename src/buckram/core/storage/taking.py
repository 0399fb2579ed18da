"""The functions that take a chunk's plain adds: compiled where that could be built, else their Python twins.

`core/entries/hot.py` decides. Not here: what they do (`core/storage/plain_adds.py`).
"""

from __future__ import annotations

from buckram.core.entries.hot import COMPILED

if COMPILED:
    from buckram.core.entries.hot import take_adds, take_v3_adds
else:
    from buckram.core.storage.plain_adds import take_adds, take_v3_adds

__all__ = ["take_adds", "take_v3_adds"]
