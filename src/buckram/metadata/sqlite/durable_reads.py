"""Reads of an SQLite store in the loop's own thread, and the knowledge of which of them are durable.

What others have committed must not be passed on before it is durable, and the loop must not wait for a disk. So the
thread that writes looks at this connection between each of its commits and the sync that follows: all that the
connection saw at that moment was committed before the sync began, and is durable after it. As long as nobody has
committed anything since, the loop may answer from here; otherwise the thread has to sync once more.

Not here: SQL (`metadata/sqlite/tree.py`), the thread (`metadata/sqlite/keys.py`).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from buckram.errors import MetadataError
from buckram.metadata.sqlite.database_file import Moment
from buckram.metadata.sqlite.tree import SqliteTree
from buckram.metadata.tree.key_grammar import Absent
from buckram.types import KeyValue

_COMMITS = 20
"""Commits after a read for which the connection is looked at: a look costs a tenth of a commit."""


class SqliteNear:
    """`peek` and `close` are the loop's; `moment` and `is_durable` belong to the thread that writes. The connection is
    opened by the first `peek`, and never waits for another process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tree = SqliteTree(path, 0.0, one_thread=False)
        self._lock = threading.Lock()
        """Held by whichever thread uses the connection. The loop does not wait for it, but in `close`."""
        self._durable: Moment | None = None
        self._wanted = 0
        """Number of commits for which the thread still looks here."""

    def peek(self, keys: Sequence[str]) -> tuple[Sequence[KeyValue | Absent | None], Moment | None]:
        """Return what keys hold, as `PromptKeys.peek` does. The moment is returned if it is not known to be durable:
        nothing is told of it then."""
        nothing: list[KeyValue | Absent | None] = [None] * len(keys)
        self._wanted = _COMMITS
        if not self._lock.acquire(blocking=False):
            return nothing, None
        try:
            found, moment = self._tree.lasting_keys(keys)
        except MetadataError:
            return nothing, None
        finally:
            self._lock.release()
        return (found, None) if moment == self._durable else (nothing, moment)

    def moment(self) -> Moment | None:
        """Return the moment that the connection sees now; None if it is not open, or cannot be read, or if nobody has
        read here for many commits."""
        if self._wanted <= 0:
            return None
        self._wanted -= 1
        with self._lock:
            try:
                return self._tree.moment() if self._tree.is_open else None
            except (sqlite3.Error, MetadataError):
                return None

    def is_durable(self, moment: Moment | None) -> None:
        """Note that all that was committed by this moment has reached the disk."""
        if moment is not None:
            self._durable = moment

    def close(self) -> None:
        """Leave the file; the next `peek` opens the one that has the name then."""
        with self._lock:
            tree, self._tree = self._tree, SqliteTree(self._path, 0.0, one_thread=False)
            tree.close()


__all__ = ["SqliteNear"]
