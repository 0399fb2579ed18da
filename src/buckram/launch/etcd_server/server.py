"""etcd servers as child processes: start, wait until one serves, stop, kill, pause, start again; a quorum of them;
users.

The directory holds etcd.json (which server this is, with its ports), etcd.log and data/. The process ends when this one
is gone, however that died: a shell beside it waits for the end of its standard input. A cluster of a few servers on
this machine is for tests and trials of what a real cluster does. Once users are set up, every login needs a password.

Not here: how clients log in (`metadata/etcd/client.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from buckram.addresses import join, loopback
from buckram.config import TlsConfig
from buckram.errors import ConfigError, EtcdFailed, InvalidArgument
from buckram.launch.child_process import (
    LOCK,
    POLL_SECONDS,
    READY_SECONDS,
    ServerDirectory,
    ServerProcess,
    client_context,
    free_port,
    last_line,
    started,
)
from buckram.runtime.disk.new_directory import removed_on_failure

DESCRIPTION = "etcd.json"
VARIABLE = "BUCKRAM_ETCD"
OLDEST = (3, 5)
ANSWER_SECONDS = 2.0
_HELP = (
    "install etcd 3.5 or later (Debian: etcd-server), let BUCKRAM_ETCD name the program, or, in a checkout, "
    "`make setup-all`; or use an etcd of your own with --metadata etcd://HOST:PORT/buckram"
)


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """One server. `sync`: every change is on the device before it is answered; False is for tests only.

    `members` is name=URL of every server of a cluster, empty for one on its own; `options` are etcd's. With `tls`
    clients are served through TLS only, with its certificate; for a server on its own.
    """

    host: str = "127.0.0.1"
    sync: bool = True
    name: str = "etcd"
    peer_port: int = 0
    members: str = ""
    options: tuple[str, ...] = ()
    tls: TlsConfig | None = None

    def __post_init__(self) -> None:
        if self.tls is not None and self.members:
            raise InvalidArgument("tls: a cluster that is started here has none; leave it out, or start one server")

    @property
    def scheme(self) -> str:
        """Return the scheme of this server's URLs."""
        return "http" if self.tls is None else "https"


def find_etcd() -> Path:
    """Return the path of etcd; raises ConfigError, which tells what to do, if there is none, or only an older one."""
    given = os.environ.get(VARIABLE)
    beside = Path(sys.executable).parent / "etcd"
    found = given or (str(beside) if beside.exists() else shutil.which("etcd"))
    if not found:
        raise ConfigError(f"there is no etcd here: {_HELP}")
    try:
        output = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except OSError as error:
        raise ConfigError(f"{found}: {error.strerror}: {_HELP}") from None
    version = re.search(r"etcd Version: (\d+)\.(\d+)", output)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        words = output.splitlines()[0][:80] if output else "its answer names no version"
        raise ConfigError(f"{found}: {words!r}, 3.5 or later is needed: {_HELP}")
    return Path(found)


def etcd_command(program: Path, settings: EtcdSettings, data: Path, port: int, peer_port: int) -> list[str]:
    """Return the whole command line of a server. Other members of a cluster reach it at the host that clients use."""
    peer = f"{settings.scheme}://{join(loopback(settings.host) if settings.members else '127.0.0.1', peer_port)}"
    command = [str(program), f"--name={settings.name}", f"--data-dir={data}"]
    command += [f"--listen-client-urls={settings.scheme}://{join(settings.host, port)}"]
    command += [f"--advertise-client-urls={settings.scheme}://{join(loopback(settings.host), port)}"]
    command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
    command += [f"--initial-cluster={settings.members or f'{settings.name}={peer}'}"]
    # Without it the history of all keys is kept for ever.
    command += ["--auto-compaction-mode=periodic", "--auto-compaction-retention=1h", "--log-level=warn"]
    command += [] if settings.sync else ["--unsafe-no-fsync"]
    # A server on its own has nobody to wait for before it leads.
    command += [] if settings.members else ["--heartbeat-interval=20", "--election-timeout=200"]
    return [*command, *_certificates(settings.tls), *settings.options]


def _certificates(tls: TlsConfig | None) -> list[str]:
    """Options for TLS. Nobody has a certificate with which the port of other servers lets them in."""
    if tls is None:
        return []
    pair = [f"cert-file={tls.certificate}", f"key-file={tls.key}"]
    peer = [*pair, f"trusted-ca-file={tls.ca}", "client-cert-auth"]
    return [*(f"--{one}" for one in pair), *(f"--peer-{one}" for one in peer)]


def start_etcd(
    data_dir: Path | str,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    sync: bool = True,
    options: tuple[str, ...] = (),
    tls: TlsConfig | None = None,
    deadline_s: float = READY_SECONDS,
    cancelled: Callable[[], bool] = lambda: False,
) -> EtcdServer:
    """Start a server on `data_dir` and wait until it serves; the same directory is the same server again. A directory
    that it made is removed again if the start fails.

    `port` 0 is the port that the directory had before, else a free one. `tls`: clients are served through TLS only,
    with this certificate. Blocks; `cancelled` is asked now and then and
    ends the wait. ConfigError without etcd, ForeignDirectory, PortInUse, EtcdFailed.
    """
    with removed_on_failure(data_dir, lock=LOCK, whole=True):
        server = EtcdServer(Path(data_dir), EtcdSettings(host=host, sync=sync, options=options, tls=tls), port=port)
        return started(server, deadline_s, cancelled)


class EtcdServer(ServerProcess):
    """One etcd."""

    KIND, FAILED = "etcd", EtcdFailed

    def __init__(self, directory: Path, settings: EtcdSettings, *, port: int = 0) -> None:
        """Locks the directory; nothing runs yet. The errors of `start_etcd`."""
        self.program = find_etcd()
        self.settings = settings
        self._context = client_context(settings.tls)
        place = ServerDirectory(directory, DESCRIPTION, "an etcd", "etcd")
        known = {name: value for name, value in place.known().items() if isinstance(value, int)}
        chosen = port == 0 and not settings.members
        super().__init__(place, settings.host, port or known.get("port", 0), chosen=chosen)
        self.path = place.path
        self.peer_port = settings.peer_port or known.get("peer_port", 0)
        self._remember()

    def _remember(self) -> None:
        self._place.write({"port": self.port, "peer_port": self.peer_port})

    @property
    def log(self) -> Path:
        return self.path / "etcd.log"

    def _spawn(self) -> None:
        # Nobody but this server asks the port for peers of a single one, so another port does as well.
        self.peer_port = self.peer_port if self.settings.members else free_port("127.0.0.1", frozenset({self.port}))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with self.log.open("ab") as log:
            self._run(
                etcd_command(self.program, self.settings, self.path / "data", self.port, self.peer_port),
                log,
                environment,
            )

    def wait_ready(self, deadline_s: float = READY_SECONDS, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Returns once it answers requests (in a cluster: once there is a quorum)."""
        limit = time.monotonic() + deadline_s
        while not self.leader:
            if not self.alive:
                words = self.last_words()
                self.reap()
                raise EtcdFailed(f"{self.path}: etcd ended with code {self.exit_code}: {words}")
            if cancelled():
                raise EtcdFailed(f"{self.path}: etcd was stopped before it was ready")
            if time.monotonic() > limit:
                raise EtcdFailed(f"{self.path}: etcd is not ready after {deadline_s:g} s; see {self.log}")
            time.sleep(POLL_SECONDS)
        self._remember()

    @property
    def leader(self) -> str:
        """Return the number of the cluster's leader as this server knows it, empty if there is none or the server does
        not answer."""
        return str(self.status().get("leader", ""))

    @property
    def leads(self) -> bool:
        status = self.status()
        header = status.get("header")
        return isinstance(header, dict) and bool(status.get("leader")) and status["leader"] == header.get("member_id")

    def status(self) -> dict[str, object]:
        """Return the server's status; empty if it does not answer or knows no leader."""
        found = self.ask("maintenance/status", {})
        return found if "leader" in found and found["leader"] != "0" else {}

    def ask(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        """Return the answer to a request of the JSON interface, with the key `error` if it was refused; empty if the
        server does not answer."""
        url = f"{self.settings.scheme}://{self.address}/v3/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=self._context) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with contextlib.suppress(OSError, ValueError):
                found = json.loads(error.read())
                return found if isinstance(found, dict) else {}
            return {}
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def last_words(self) -> str:
        return last_line(self.log, "it logged nothing")[-500:]


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


USER = "root"
"""Name of the user; etcd requires passwords only if there is a user of this name."""
_THERE = "already exists"
_NOT_ASKED = "authentication is not enabled"


def require_password(server: EtcdServer, password: str) -> None:
    """Make the server require a password of every client, and create USER with this one. Idempotent. Raises
    EtcdFailed."""
    refused = _refusal(server, "auth/authenticate", {"name": USER, "password": password})
    if _NOT_ASKED in refused:
        _only_ours(server)
        for path, body in (
            ("auth/user/add", {"name": USER, "password": password}),
            ("auth/role/add", {"name": USER}),
            ("auth/user/grant", {"user": USER, "role": USER}),
            ("auth/enable", {}),
        ):
            refused = _refusal(server, path, body)
            if refused and _THERE not in refused:
                raise EtcdFailed(f"{server.path}: etcd refuses to have users: {refused}")
        refused = _refusal(server, "auth/authenticate", {"name": USER, "password": password})
    if refused:
        raise EtcdFailed(
            f"{server.path}: etcd does not let {USER} in with the password of this directory: {refused}; put the file "
            "back that belongs to it"
        )


def _only_ours(server: EtcdServer) -> None:
    """Nobody else may have made themselves a user while anybody could."""
    users = server.ask("auth/user/list", {}).get("users", [])
    others = [one for one in users if one != USER] if isinstance(users, list) else [users]
    if others:
        raise EtcdFailed(f"{server.path}: etcd has users that Buckram did not make: {others}; delete them first")


def _refusal(server: EtcdServer, path: str, body: Mapping[str, object]) -> str:
    """Return why a request was refused; "" if it was not."""
    answer = server.ask(path, body)
    if not answer:
        return f"etcd does not answer; see {server.log}"
    return str(answer.get("error") or answer.get("message") or "")
