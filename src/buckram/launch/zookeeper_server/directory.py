"""The directory of a ZooKeeper server.

zookeeper.json   which server this is, and its port, so that the same directory is the same server again
zoo.cfg          written at each start          data/            snapshots and transactions, ZooKeeper's own
zookeeper.log    bounded, by size               zookeeper.out    what the JVM itself said at the last start
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from buckram.errors import CorruptStore, ForeignDirectory
from buckram.launch.server_directory import ServerDirectory

DESCRIPTION = "zookeeper.json"
EXCEPTION = re.compile(r"(Caused by: )?[a-z]+(\.\w+)+(Exception|Error)\b")


class ZooKeeperDirectory(ServerDirectory):
    """With the server's configuration, its data and its logs."""

    def __init__(self, path: Path, member: int) -> None:
        """`member`: the server's number in its ensemble, 0 on its own. Raises ForeignDirectory, ConfigError,
        OSError."""
        super().__init__(path, DESCRIPTION, "a ZooKeeper server", "ZooKeeper")
        self.data = self.path / "data"
        self.config = self.path / "zoo.cfg"
        self.log = self.path / "zookeeper.log"
        self.out = self.path / "zookeeper.out"
        self._log_begin = 0
        try:
            self._open(member)
        except BaseException:
            self.close()
            raise

    def _open(self, member: int) -> None:
        found = self.known()
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
        self.write({"port": port, "member": self._member})

    def begin_log(self) -> None:
        """Remember the present end of the log, which separates earlier starts from this one."""
        self._log_begin = self.log.stat().st_size if self.log.exists() else 0

    def last_words(self) -> str:
        """Return the output of the JVM, else the last exception in the log of this start, else the log's last line."""
        said = _lines(self.out, 0) or _lines(self.log, self._log_begin)
        told = [line for line in said if EXCEPTION.match(line)]
        return ([*said, *told] or ["it logged nothing"])[-1].strip()


def _lines(path: Path, begin: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(begin if file.seek(0, os.SEEK_END) >= begin else 0)  # it may have been rolled over
            return file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return []
