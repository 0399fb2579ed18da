"""A server's directory: its contents, its owner, and the lock that keeps a second server off it.

zookeeper.json   which server this is, and its port, so that the same directory is the same server again
zoo.cfg          written at each start          data/            snapshots and transactions, ZooKeeper's own
zookeeper.log    bounded, by size               zookeeper.out    what the JVM itself said at the last start
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from pathlib import Path

from buckram.errors import ConfigError, CorruptStore, ForeignDirectory

FORMAT_VERSION = 1
DESCRIPTION = "zookeeper.json"
LOCK = "lock"
LOCK_SECONDS = 2.0
POLL_SECONDS = 0.02
EXCEPTION = re.compile(r"(Caused by: )?[a-z]+(\.\w+)+(Exception|Error)\b")


class ServerDirectory:
    """Opened means locked; the lock is inherited by the server, so that it outlives a parent that is killed."""

    def __init__(self, path: Path, member: int) -> None:
        """`member`: the server's number in its ensemble, 0 on its own. Raises ForeignDirectory, ConfigError,
        OSError."""
        self.path = path.absolute()
        self.data = self.path / "data"
        self.config = self.path / "zoo.cfg"
        self.log = self.path / "zookeeper.log"
        self.out = self.path / "zookeeper.out"
        self.path.mkdir(parents=True, exist_ok=True)
        self._check_ours()
        self._log_begin = 0
        self.lock = _lock(self.path / LOCK)
        try:
            self._open(member)
        except BaseException:
            self.close()
            raise

    def _check_ours(self) -> None:
        names = sorted(set(os.listdir(self.path)) - {LOCK, "lost+found"})
        if names and DESCRIPTION not in names and names != [DESCRIPTION + ".new"]:
            raise ForeignDirectory(
                f"{self.path}: holds {names[0]!r} but no {DESCRIPTION}, so no ZooKeeper of Buckram's was started here; "
                "name an empty directory, or the one that an earlier start made"
            )

    def _open(self, member: int) -> None:
        found = read_description(self.path / DESCRIPTION, FORMAT_VERSION)
        port, made_for = found.get("port", 0), found.get("member", member)
        if not isinstance(port, int) or not 0 <= port <= 65535:
            raise CorruptStore(f"{self.path / DESCRIPTION}: port {port!r}: needs 0 to 65535; correct the file")
        if made_for != member:
            kinds = [f"server {n} of an ensemble" if n else "a server on its own" for n in (made_for, member)]
            raise ForeignDirectory(f"{self.path}: was made for {kinds[0]}, not for {kinds[1]}; name another directory")
        self.known_port, self._member = port, member
        self.remember(port)
        self.data.mkdir(exist_ok=True)
        if member:
            (self.data / "myid").write_text(f"{member}\n")

    def remember(self, port: int) -> None:
        self.known_port = port
        write_description(self.path / DESCRIPTION, FORMAT_VERSION, {"port": port, "member": self._member})

    def begin_log(self) -> None:
        """Remember the present end of the log, which separates earlier starts from this one."""
        self._log_begin = self.log.stat().st_size if self.log.exists() else 0

    def last_words(self) -> str:
        """Return the output of the JVM, else the last exception in the log of this start, else the log's last line."""
        said = _lines(self.out, 0) or _lines(self.log, self._log_begin)
        told = [line for line in said if EXCEPTION.match(line)]
        return ([*said, *told] or ["it logged nothing"])[-1].strip()

    def close(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def _lines(path: Path, begin: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(begin if file.seek(0, os.SEEK_END) >= begin else 0)  # it may have been rolled over
            return file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return []


def known_port(path: Path) -> int:
    """Return the port that the server of this directory had, 0 when there was none."""
    port = read_description(path / DESCRIPTION, FORMAT_VERSION).get("port", 0)
    return port if isinstance(port, int) else 0


def _lock(path: Path) -> int:
    """Waits a little: a server whose parent was killed is just ending."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    limit = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                os.close(descriptor)
                raise ConfigError(
                    f"{path.parent}: a ZooKeeper server runs on this directory; stop it or name another"
                ) from None
            time.sleep(POLL_SECONDS)
        else:
            return descriptor


def read_description(path: Path, version: int) -> dict[str, object]:
    """Read a JSON object of ours; empty if there is none. Raises CorruptStore if this version did not write it."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CorruptStore(f"{path}: not JSON: {error}; restore the file from a backup") from None
    if not isinstance(found, dict) or found.get("format_version") != version:
        raise CorruptStore(f"{path}: format version {version} is needed; another version of Buckram made it")
    return found


def write_description(path: Path, version: int, values: dict[str, object]) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps({"format_version": version, **values}) + "\n")
    draft.replace(path)
