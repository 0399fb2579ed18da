"""Helpers that the tests of the embedded metadata store share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from buckram.metadata.sqlite.keys import SqliteKeys

DEADLINE_S = 20.0
FILE = "metadata.db"


@contextlib.asynccontextmanager
async def opened(path: Path, *, busy_timeout_s: float = 5.0) -> AsyncIterator[SqliteKeys]:
    keys = SqliteKeys(path, busy_timeout_s=busy_timeout_s)
    try:
        yield keys
    finally:
        await keys.close()
