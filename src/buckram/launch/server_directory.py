"""The directory of a server that is started here: its owner, its description, and the lock that keeps a second server
off it.

The description is a file of JSON that says which server this is, so that the same directory is the same server again.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from buckram.errors import ConfigError, CorruptStore, ForeignDirectory

FORMAT_VERSION = 1
LOCK = "lock"
LOCK_SECONDS = 2.0
POLL_SECONDS = 0.02


class ServerDirectory:
    """Opened means locked; the lock is inherited by the server, so that it outlives a parent that is killed."""

    def __init__(self, path: Path, description: str, owner: str, kind: str) -> None:
        """`description`: name of the file. `owner` and `kind`: the server in errors, such as "an etcd" and "etcd".
        Raises ForeignDirectory, ConfigError, OSError.
        """
        self.path = path.absolute()
        self._description = self.path / description
        self.path.mkdir(parents=True, exist_ok=True)
        self._check_ours(kind)
        self.lock = _lock(self.path / LOCK, owner)

    def _check_ours(self, kind: str) -> None:
        description = self._description.name
        names = sorted(set(os.listdir(self.path)) - {LOCK, "lost+found"})
        if names and description not in names and names != [description + ".new"]:
            raise ForeignDirectory(
                f"{self.path}: holds {names[0]!r} but no {description}, so no {kind} of Buckram's was started here; "
                "name an empty directory, or the one that an earlier start made"
            )

    def known(self) -> dict[str, object]:
        """Return the values of the description; empty if there is none. Raises CorruptStore."""
        return read_description(self._description)

    def write(self, values: dict[str, object]) -> None:
        write_description(self._description, values)

    def close(self) -> None:
        """Unlock the directory. Idempotent."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def _lock(path: Path, owner: str) -> int:
    """Waits a little: a server whose parent was killed is just ending."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    limit = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                os.close(descriptor)
                raise ConfigError(f"{path.parent}: {owner} runs on this directory; stop it or name another") from None
            time.sleep(POLL_SECONDS)
        else:
            return descriptor


def known_port(description: Path) -> int:
    """Return the port that the server of this description had, 0 when there was none."""
    port = read_description(description).get("port", 0)
    return port if isinstance(port, int) else 0


def read_description(path: Path) -> dict[str, object]:
    """Read a JSON object of ours; empty if there is none. Raises CorruptStore if this version did not write it."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CorruptStore(f"{path}: not JSON: {error}; restore the file from a backup") from None
    if not isinstance(found, dict) or found.get("format_version") != FORMAT_VERSION:
        raise CorruptStore(f"{path}: format version {FORMAT_VERSION} is needed; another version of Buckram made it")
    return found


def write_description(path: Path, values: dict[str, object]) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps({"format_version": FORMAT_VERSION, **values}) + "\n")
    draft.replace(path)


def last_line(path: Path, missing: str) -> str:
    """Return the last line of a log; `missing` where it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return missing
    return lines[-1] if lines else "it logged nothing"
