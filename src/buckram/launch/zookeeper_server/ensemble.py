"""A few real servers on this machine that form a quorum: for tests and trials of what a real ensemble does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from buckram.errors import CorruptStore, InvalidArgument, ZooKeeperFailed
from buckram.launch.ports import free_port
from buckram.launch.server_directory import POLL_SECONDS, read_description, write_description
from buckram.launch.server_process import READY_SECONDS
from buckram.launch.zookeeper_server.server import ZooKeeperServer
from buckram.launch.zookeeper_server.settings import Member, Settings
from buckram.runtime.disk.new_directory import removed_on_failure

DESCRIPTION = "ensemble.json"
MAX_SERVERS = 9


def start_ensemble(
    directory: Path | str,
    servers: int = 3,
    *,
    sync: bool = True,
    heap_mb: int = 128,
    tick_ms: int = 500,
    deadline_s: float = READY_SECONDS,
) -> Ensemble:
    """Start `servers` servers under `directory` and wait for a quorum of all. The same directory is the same ensemble
    again, on the same ports. Blocks. The errors of `start_zookeeper`."""
    if not 1 < servers <= MAX_SERVERS:
        raise InvalidArgument(f"servers = {servers}: an ensemble here has 2 to {MAX_SERVERS}")
    root = Path(directory).absolute()
    with removed_on_failure(root, whole=True), ExitStack() as cleanup:
        root.mkdir(parents=True, exist_ok=True)
        members = _members(root, servers)
        started = []
        for member in members:
            settings = Settings(sync=sync, heap_mb=heap_mb, tick_ms=tick_ms, members=members, number=member.number)
            server = ZooKeeperServer(root / f"server-{member.number}", settings, port=member.port)
            cleanup.callback(server.stop)
            server.start()
            started.append(server)
        ensemble = Ensemble(started)
        ensemble.wait_ready(deadline_s)
        cleanup.pop_all()
    return ensemble


def _members(root: Path, count: int) -> tuple[Member, ...]:
    path = root / DESCRIPTION
    found = read_description(path).get("ports", [])
    if found:
        if not isinstance(found, list) or len(found) != count:
            raise CorruptStore(f"{path}: describes another number of servers than {count}; name another directory")
        return tuple(Member(n, *ports) for n, ports in enumerate(found, 1))
    taken: frozenset[int] = frozenset()
    while len(taken) < 3 * count:
        taken |= {free_port("127.0.0.1", taken)}
    ports = sorted(taken)
    rows = [ports[3 * n : 3 * n + 3] for n in range(count)]
    write_description(path, {"ports": rows})
    return tuple(Member(n, row[0], row[1], row[2]) for n, row in enumerate(rows, 1))


class Ensemble:
    """Running servers, numbered from 0 in `servers`; each is killed, paused and restarted on its own."""

    def __init__(self, servers: Sequence[ZooKeeperServer]) -> None:
        self.servers = list(servers)

    @property
    def address(self) -> str:
        """`host:port,host:port,...`, as clients take it."""
        return ",".join(server.address for server in self.servers)

    def wait_ready(self, deadline_s: float = READY_SECONDS) -> None:
        """Returns once every server that runs serves."""
        limit = time.monotonic() + deadline_s
        for server in self.servers:
            if server.alive or server.exit_code is None:
                server.wait_ready(max(0.1, limit - time.monotonic()))

    def leader(self, deadline_s: float = READY_SECONDS) -> int:
        """Return the index of the leader; waits while there is none."""
        limit = time.monotonic() + deadline_s
        while time.monotonic() < limit:
            for n, server in enumerate(self.servers):
                if server.alive and server.mode == "leader":
                    return n
            time.sleep(POLL_SECONDS)
        raise ZooKeeperFailed(f"{self.address}: no leader after {deadline_s:g} s; see {self.servers[0].log}")

    def kill(self, index: int) -> None:
        """kill -9 one server."""
        self.servers[index].kill()

    def restart(self, index: int, deadline_s: float | None = READY_SECONDS) -> None:
        """Start a server again; waits until it serves, unless `deadline_s` is None (there may be no quorum yet)."""
        server = self.servers[index]
        server.kill()
        server.start()
        if deadline_s is not None:
            server.wait_ready(deadline_s)

    def stop(self) -> None:
        """Stop every server. Idempotent."""
        for server in self.servers:
            server.ask_to_stop()
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
