"""Settings of a ZooKeeper server and the directory that holds them: jars, JVM flags, zoo.cfg. It starts nothing.

zookeeper.json   which server this is, and its port, so that the same directory is the same server again
zoo.cfg          written at each start          data/            snapshots and transactions, ZooKeeper's own
zookeeper.log    bounded, by size               zookeeper.out    what the JVM itself said at the last start
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from buckram.config import TlsConfig
from buckram.errors import ConfigError, CorruptStore, ForeignDirectory, InvalidArgument
from buckram.extras import install_line
from buckram.launch.child_process import ServerDirectory
from buckram.launch.java import find_java

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


# What the server loads; PySpark's jars directory holds hundreds more, and opening them costs memory and start time.
JARS = (
    "zookeeper",
    "zookeeper-jute",
    "audience-annotations",
    "slf4j-api",
    "log4j-slf4j2-impl",
    "log4j-api",
    "log4j-core",
    "metrics-core",
    "snappy-java",
    "commons-cli",
    "commons-io",
    "netty-handler",
    "netty-common",
    "netty-transport",
    "netty-buffer",
    "netty-codec-base",
)
NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
TLS_JARS = ("netty-resolver", "netty-transport-classes-epoll", "netty-transport-native-unix-common")
"""Jars that netty needs besides for client connections over TLS."""
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
LOGGING = Path(__file__).parent / "log4j2.properties"
LOG_PIECE_KIB = 16 * 1024
"""Transaction logs grow in sparse steps of this size; ZooKeeper's own 64 MiB looks alarming in a small directory."""


@dataclass(frozen=True, slots=True)
class Member:
    """One server of an ensemble: its number from 1, its three ports, its host if that is not the one of `Settings`."""

    number: int
    port: int
    peer_port: int
    election_port: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """One server. `sync`: every transaction is on the device before it is answered; False is for tests only.

    Sessions of clients time out between two and a hundred ticks; the server looks for dead ones once a tick.
    `members` is empty for a server on its own; then `number` means nothing. `options` are further lines of zoo.cfg,
    KEY=VALUE, and `java_options` further flags of the JVM. With `tls` clients are served through TLS only; its
    `certificate` is a PEM file that has the key as well, and `ca` the authority of it. For a server on its own.
    """

    host: str = "127.0.0.1"
    tick_ms: int = 1000
    heap_mb: int = 256
    sync: bool = True
    members: tuple[Member, ...] = ()
    number: int = 0
    options: tuple[str, ...] = ()
    java_options: tuple[str, ...] = ()
    tls: TlsConfig | None = None

    def __post_init__(self) -> None:
        for name, value, low, high in (("tick_ms", self.tick_ms, 50, 60_000), ("heap_mb", self.heap_mb, 32, 65_536)):
            if not low <= value <= high:
                raise InvalidArgument(f"{name} = {value}: a ZooKeeper server needs {low} to {high}")
        if self.tls is not None and self.members:
            raise InvalidArgument("tls: an ensemble that is started here has none; leave it out, or start one server")


def zoo_cfg(settings: Settings, data: Path, port: int) -> str:
    """Return the server's configuration file."""
    values: dict[str, object] = {
        "dataDir": _escaped(str(data)),
        **_listening(settings, port),
        "tickTime": settings.tick_ms,
        "minSessionTimeout": 2 * settings.tick_ms,
        "maxSessionTimeout": 100 * settings.tick_ms,
        "maxClientCnxns": 0,
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
        "admin.enableServer": "false",  # it needs a web server that is not among the jars
        "4lw.commands.whitelist": "",  # whoever reaches the port may ask them; ZooKeeper adds `srvr` by itself
    }
    if settings.members:
        values |= {"initLimit": 40, "syncLimit": 20}
        for m in settings.members:
            values[f"server.{m.number}"] = f"{m.host or settings.host}:{m.peer_port}:{m.election_port}"
    return "".join([*(f"{key}={value}\n" for key, value in values.items()), *(f"{one}\n" for one in settings.options)])


def _listening(settings: Settings, port: int) -> dict[str, object]:
    """Where clients are served, and how."""
    tls = settings.tls
    if tls is None:
        return {"clientPort": port, "clientPortAddress": settings.host}
    return {
        "secureClientPort": port,
        "secureClientPortAddress": settings.host,
        "serverCnxnFactory": NETTY,
        "ssl.keyStore.location": _escaped(tls.certificate),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": _escaped(tls.ca),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "none",  # a user and a password say who a client is
    }


def _escaped(text: str) -> str:
    """Return a value as Java's property files take it: Latin-1 with escapes."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[n : n + 2], "big") for n in range(0, len(units), 2)]
    return "".join(chr(c) if 0x20 < c < 0x7F and c != 0x5C else f"\\u{c:04x}" for c in codes)


def java_command(settings: Settings, directory: Path, config: Path, log: Path) -> list[str]:
    """Return the whole command line; raises ConfigError when there is no Java or no PySpark."""
    netty = settings.tls is not None or any("Netty" in one for one in settings.options)
    jars = find_jars((*JARS, *TLS_JARS) if netty else JARS)
    java = find_java(wanted_by="ZooKeeper").home / "bin" / "java"
    return [
        str(java),
        "-Xms16m",
        f"-Xmx{settings.heap_mb}m",
        "-Xss512k",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={directory / 'hs_err.log'}",
        f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        f"-Dbuckram.zookeeper.log={log}",
        "-Dzookeeper.jmx.log4j.disable=true",
        f"-Dzookeeper.preAllocSize={LOG_PIECE_KIB}",
        f"-Dzookeeper.forceSync={'yes' if settings.sync else 'no'}",
        # Servers that lost their leader ask each other again at least this often; the default backs off to a minute.
        "-Dzookeeper.fastleader.maxNotificationInterval=1000",
        *settings.java_options,
        "-cp",
        ":".join(map(str, jars)),
        MAIN_CLASS,
        str(config),
    ]


def find_jars(names: Sequence[str] = JARS) -> Sequence[Path]:
    """Return the jars of the server out of PySpark's; raises ConfigError, which tells what to install, if they are
    missing."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"ZooKeeper's jars come with PySpark, which is not installed: `{install_line('spark')}`, "
            "or use a ZooKeeper of your own with --metadata zk://HOST:PORT/ledgers"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "jars"
    found = [next(iter(sorted(folder.glob(f"{name}-[0-9]*.jar"))), None) for name in names]
    if found[0] is None:
        raise ConfigError(
            f"{folder} holds no zookeeper-*.jar: this PySpark was installed without its jars; "
            "`pip install --force-reinstall pyspark` brings them"
        )
    chosen = [jar for jar in found if jar is not None]
    # Another PySpark may cut its libraries differently: then all of them, at some cost of start time.
    return chosen if len(chosen) == len(names) else [folder / "*"]
