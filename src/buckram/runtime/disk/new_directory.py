"""Removal of a new directory when the start that made it fails.

A directory that existed before stays, with all its contents. Not here: what a bookie does in its directory
(`runtime/disk/local.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def removed_on_failure(
    directory: Path | str, *, lock: str = "", whole: bool = False, unless: str = ""
) -> Iterator[None]:
    """Remove `directory`, and those above it, after an error, if they were not there before the block.

    `lock` names the lock's file, which goes, too, unless somebody holds it. Any other file keeps its directory, because
    it may be the only trace of work already begun. `whole`: nothing in it is of use if the block fails, so all of it
    goes, `unless` a file of this name is in it.
    """
    path = Path(directory).absolute()
    missing = _missing(path)
    try:
        yield
    except BaseException:
        if missing and not (unless and (path / unless).exists()):
            with contextlib.suppress(OSError):
                _remove(missing, lock, whole)
        raise


def _missing(path: Path) -> list[Path]:
    """Return the directories of the path that do not exist, innermost first."""
    found = []
    while not path.exists() and path != path.parent:
        found.append(path)
        path = path.parent
    return found


def _remove(made: list[Path], lock: str, whole: bool) -> None:
    """Remove the directories that were made, innermost first. Raises OSError for the first one that has to stay."""
    if made[0].is_dir():
        if lock and (made[0] / lock).exists():
            _remove_with_lock(made[0], lock, whole)
        elif whole:
            shutil.rmtree(made[0])
        else:
            made[0].rmdir()
    for path in made[1:]:
        if path.exists():
            path.rmdir()


def _remove_with_lock(directory: Path, lock: str, whole: bool) -> None:
    """Remove a directory while holding its lock. Raises BlockingIOError if another process holds it and thus owns the
    directory."""
    descriptor = os.open(directory / lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if whole:
            shutil.rmtree(directory)
        elif os.listdir(directory) == [lock]:
            (directory / lock).unlink()
            directory.rmdir()
    finally:
        os.close(descriptor)
