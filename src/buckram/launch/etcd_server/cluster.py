"""A few real etcd servers on this machine that form a quorum: for tests and trials of what a real cluster does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from buckram.errors import EtcdFailed, InvalidArgument
from buckram.launch.etcd_server.server import EtcdServer, EtcdSettings
from buckram.launch.ports import free_port
from buckram.launch.server_directory import POLL_SECONDS
from buckram.launch.server_process import READY_SECONDS

MAX_SERVERS = 9
_FAST = ("--heartbeat-interval=50", "--election-timeout=500")


def start_etcd_cluster(
    directory: Path | str, servers: int = 3, *, sync: bool = True, deadline_s: float = READY_SECONDS
) -> EtcdCluster:
    """Start `servers` servers under `directory`, an empty one, and wait for a quorum of all. Blocks. The errors of
    `start_etcd`."""
    if not 1 < servers <= MAX_SERVERS:
        raise InvalidArgument(f"servers = {servers}: a cluster here has 2 to {MAX_SERVERS}")
    taken: frozenset[int] = frozenset()
    while len(taken) < 2 * servers:
        taken |= {free_port("127.0.0.1", taken)}
    ports = sorted(taken)
    members = ",".join(f"etcd-{n}=http://127.0.0.1:{ports[n]}" for n in range(servers))
    with ExitStack() as cleanup:
        started = []
        for n in range(servers):
            settings = EtcdSettings(sync=sync, name=f"etcd-{n}", peer_port=ports[n], members=members, options=_FAST)
            server = EtcdServer(Path(directory) / f"server-{n}", settings, port=ports[servers + n])
            cleanup.callback(server.stop)
            server.start()
            started.append(server)
        for server in started:
            server.wait_ready(deadline_s)
        cleanup.pop_all()
    return EtcdCluster(started)


class EtcdCluster:
    """Running servers, numbered from 0 in `servers`; each is killed, paused and restarted on its own."""

    def __init__(self, servers: Sequence[EtcdServer]) -> None:
        self.servers = list(servers)

    @property
    def address(self) -> str:
        """`host:port,host:port,...`, as clients take it."""
        return ",".join(server.address for server in self.servers)

    def leader(self, deadline_s: float = READY_SECONDS) -> int:
        """Return the index of the leader; waits while there is none."""
        limit = time.monotonic() + deadline_s
        while time.monotonic() < limit:
            for n, server in enumerate(self.servers):
                if server.alive and server.leads:
                    return n
            time.sleep(POLL_SECONDS)
        raise EtcdFailed(f"{self.address}: no leader after {deadline_s:g} s; see {self.servers[0].log}")

    def stop(self) -> None:
        """Stop every server. Idempotent."""
        for server in self.servers:
            server.kill()
            server.close()

    def __enter__(self) -> EtcdCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
