"""`buckram deploy systemd`: files that run a machine's bookies as services, and their texts.

The texts are units, settings of each bookie, and what to type to install them. The container file and the Helm chart
are in deploy/ of the sources.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from buckram.addresses import check_reachable, join, parse_host
from buckram.cli.shared.options import cluster_options, cluster_uri
from buckram.cli.shared.output import emit, remark
from buckram.core.ledgers.service_info import check_bookie_id
from buckram.errors import ConfigError, InvalidArgument

ETC = "/etc/buckram"
EXPORTER_PORT = 9110
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_PATH = re.compile(r"/[\w./@+,=-]*", re.ASCII)
_URI = re.compile(r"[a-z+]+:[^\s\"'\\`$]{1,1000}")

SANDBOX = """\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
UMask=0027
"""
"""Options that restrict a service: it may read the system, write only where its unit allows, and gain no further
rights."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of a cluster: a bookie for each disk, and the services that maintain the cluster.

    `disks` are directories, each on a disk of its own; ports count up from the first bookie's. Raises InvalidArgument
    for values that systemd or a shell would misread.
    """

    metadata: str
    disks: Sequence[str]
    host: str
    port: int = 3181
    http_port: int = 8080
    bookie_id: str = ""
    location: str = ""
    user: str = "buckram"
    program: str = "/opt/buckram/bin/buckram"
    janitor: bool = True
    autorecovery: bool = True
    exporter: bool = False
    gateway_port: int = 0
    """0: no gateway."""
    writable: Sequence[str] = ()
    """Directories that all services write to, besides the disks: that of an embedded metadata database."""

    def __post_init__(self) -> None:
        if not _URI.fullmatch(self.metadata):
            raise InvalidArgument("--metadata: needs a URI without spaces, quotes, backslashes and dollar signs")
        paths = [("--disk", one) for one in self.disks] + [("--metadata", one) for one in self.writable]
        for option, path in [*paths, ("--program", self.program)]:
            if not _PATH.fullmatch(path) or ".." in path.split("/"):
                raise InvalidArgument(
                    f"{option} {path[:200]!r}: needs an absolute path of letters, digits and ./@+,=-_"
                )
        doubled = {one for one in self.disks if list(self.disks).count(one) > 1}
        if doubled or not self.disks:
            raise InvalidArgument(f"--disk {' '.join(doubled)}: name each disk once, and at least one")
        if not _USER.fullmatch(self.user):
            raise InvalidArgument(f"--user {self.user[:40]!r}: needs a user's name such as buckram")
        try:
            check_reachable(parse_host(self.host, "--host"), f"--host {self.host[:60]!r}")
        except ConfigError as error:
            raise InvalidArgument(str(error)) from None
        if self.location and not _PATH.fullmatch(self.location):
            raise InvalidArgument(f"--location {self.location[:60]!r}: needs a path such as /rack or /region/rack")
        if self.bookie_id:
            check_bookie_id(self.bookie_id)
        if max(self.port, self.http_port) + len(self.disks) - 1 > 65535:
            raise InvalidArgument(
                f"--port {self.port} --http-port {self.http_port}: {len(self.disks)} bookies need as many ports each, "
                "and 65535 is the last"
            )
        used = [*range(self.port, self.port + len(self.disks)), *self._http_ports()]
        used += [self.gateway_port] if self.gateway_port else []
        used += [EXPORTER_PORT] if self.exporter else []
        twice = sorted({one for one in used if used.count(one) > 1})
        if twice:
            raise InvalidArgument(f"port {twice[0]} would be used twice: choose others with --port and --http-port")

    def _http_ports(self) -> range:
        return range(self.http_port, self.http_port + len(self.disks))

    def names(self) -> list[str]:
        """Return the units of the bookies, without `.service`: `bookie`, or `bookie-1` and so on where there are
        several."""
        return ["bookie"] if len(self.disks) == 1 else [f"bookie-{n}" for n in range(1, len(self.disks) + 1)]

    def services(self) -> list[str]:
        """Return all units that are enabled."""
        return [
            *self.names(),
            *(["buckram-autorecovery"] if self.autorecovery else []),
            *(["buckram-janitor"] if self.janitor else []),
            *(["buckram-exporter", "buckram-usage"] if self.exporter else []),
            *(["buckram-gateway"] if self.gateway_port else []),
        ]

    def files(self) -> dict[str, str]:
        """Texts by path: `systemd/NAME.service` and `buckram/NAME`, which belong in /etc/systemd/system and ETC."""
        found = {"buckram/buckram.env": _ENVIRONMENT.format(uri=self.metadata)}
        for number, (name, disk) in enumerate(zip(self.names(), self.disks, strict=True)):
            found[f"buckram/{name}.toml"] = self._settings(number)
            found[f"systemd/{name}.service"] = self._bookie(name, disk)
        if self.autorecovery:
            found["systemd/buckram-autorecovery.service"] = self._beside("autorecovery", "autorecovery run")
        if self.janitor:
            found["systemd/buckram-janitor.service"] = self._beside("janitor", "stream janitor --every 1m")
        if self.exporter:
            listen = f"exporter --listen {join(self.host, EXPORTER_PORT)}"
            found["systemd/buckram-exporter.service"] = self._beside("exporter of metrics", listen, "notify")
            found["systemd/buckram-usage.service"] = self._beside("usage history", "plan record --every 10m")
        if self.gateway_port:
            serve = f"gateway --host {self.host} --port {self.gateway_port}"
            found["systemd/buckram-gateway.service"] = self._beside("gateway", serve)
        return found

    def install(self) -> list[str]:
        """Return the commands for a shell of root, in the directory that has the files."""
        directories = " ".join(shlex.quote(f"{disk}/bookie") for disk in self.disks)
        user = self.user
        return [
            f"id {user} || useradd --system --no-create-home --shell /usr/sbin/nologin {user}",
            f"install -d -m 0750 -o root -g {user} {ETC}",
            f"install -m 0640 -o root -g {user} buckram/* {ETC}/",
            f"install -d -m 0750 -o {user} -g {user} {directories}",
            "install -m 0644 systemd/*.service /etc/systemd/system/",
            "systemctl daemon-reload",
            f"systemctl enable --now {' '.join(self.services())}",
        ]

    def _settings(self, number: int) -> str:
        named = self.bookie_id and (self.bookie_id if len(self.disks) == 1 else f"{self.bookie_id}-{number + 1}")
        rows = [
            "# Settings of one bookie; `buckram bookie config --config FILE` shows all. A reload reads [log] level.",
            "[bookie]",
            *([f'bookie_id = "{named}"'] if named else []),
            f'host = "{self.host}"',
            f"port = {self.port + number}",
            f'http = "{join(self.host, self.http_port + number)}"',
            *([f'location = "{self.location}"'] if self.location else []),
            "",
            "[log]",
            'level = "info"',
            'format = "text"',
        ]
        return "\n".join(rows) + "\n"

    def _bookie(self, name: str, disk: str) -> str:
        return f"""\
[Unit]
Description=Buckram bookie on {disk}
Wants=network-online.target
After=network-online.target
RequiresMountsFor={disk}

[Service]
Type=notify
User={self.user}
EnvironmentFile={ETC}/buckram.env
ExecStart={self.program} bookie run --config {ETC}/{name}.toml --data {disk}/bookie
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2 5
TimeoutStartSec=15min
TimeoutStopSec=60
LimitNOFILE=65536
OOMScoreAdjust=-500
ReadWritePaths={" ".join([f"{disk}/bookie", *self.writable])}
{SANDBOX}
[Install]
WantedBy=multi-user.target
"""

    def _beside(self, name: str, command: str, kind: str = "exec") -> str:
        return f"""\
[Unit]
Description=Buckram {name}
Wants=network-online.target
After=network-online.target

[Service]
Type={kind}
User={self.user}
EnvironmentFile={ETC}/buckram.env
ExecStart={self.program} {command}
Restart=always
RestartSec=10
TimeoutStopSec=60
LimitNOFILE=65536
{f"ReadWritePaths={' '.join(self.writable)}{chr(10)}" if self.writable else ""}{SANDBOX}
[Install]
WantedBy=multi-user.target
"""


_ENVIRONMENT = """\
# What every Buckram service on this machine needs to know; credentials of the metadata store go here, too.
BUCKRAM_METADATA={uri}
"""


PORT = click.IntRange(1, 65535)


@click.group()
def deploy() -> None:
    """Write files for service managers."""


@deploy.command("systemd")
@click.option("--disk", "disks", multiple=True, required=True, metavar="DIR", help="Disk of one bookie; repeatable.")
@click.option("--host", required=True, help="Address at which other machines reach this one.")
@click.option(
    "--port",
    type=PORT,
    default=3181,
    show_default=True,
    help="Port of the first bookie; each further one gets the next.",
)
@click.option(
    "--http-port", type=PORT, default=8080, show_default=True, help="Port of HTTP API and metrics, as --port."
)
@click.option("--id", "bookie_id", default="", metavar="NAME", help="Identity; with -1, -2, ... for several disks.")
@click.option("--location", default="", metavar="PATH", help="Location of the machine, such as /rack or /region/rack.")
@click.option("--user", default="buckram", show_default=True, help="User that the services run as.")
@click.option("--program", default="", metavar="PATH", help="Path of the command `buckram` there; default this one.")
@click.option("--janitor/--no-janitor", default=True, show_default=True, help="Run a janitor on this machine.")
@click.option("--autorecovery/--no-autorecovery", default=True, show_default=True, help="Run autorecovery here.")
@click.option("--exporter", is_flag=True, help="Run metrics of the cluster and the usage history here; one is enough.")
@click.option("--gateway-port", type=PORT, metavar="PORT", help="Run a gateway, with the web console, at this port.")
@click.option(
    "--output", default="buckram-systemd", show_default=True, metavar="DIR", help="Directory that files are written to."
)
@click.option("--force", is_flag=True, help="Replace files there that are different.")
@cluster_options
def systemd(
    disks: tuple[str, ...],
    host: str,
    port: int,
    http_port: int,
    bookie_id: str,
    location: str,
    user: str,
    program: str,
    janitor: bool,
    autorecovery: bool,
    exporter: bool,
    gateway_port: int | None,
    output: str,
    force: bool,
    uri: str | None,
    as_json: bool,
) -> None:
    """Write units for one machine, a bookie for each disk. How to install them is printed. Nothing is installed.

    A unit is reported as started once its bookie is registered; a bookie whose settings or directory are wrong is not
    started again and again. `systemctl reload` reads the level of its log again.

    \b
    Example:
      buckram deploy systemd --metadata zk://zk1:2181,zk2:2181,zk3:2181/ledgers --disk /disk1 --disk /disk2 \\
          --host 10.0.0.5 --location /rack-1
    """
    from buckram.metadata.uri import MetadataUri, parse

    where = cluster_uri(uri)
    place = parse(where)
    if isinstance(place, MetadataUri) and place.scheme == "memory":
        raise InvalidArgument(f"--metadata {where}: services are processes of their own, and cannot share memory")
    writable = [str(Path(place.path).parent)] if isinstance(place, MetadataUri) else []
    machine = Machine(
        where,
        disks,
        host,
        port,
        http_port,
        bookie_id,
        location,
        user,
        program or str(Path(sys.argv[0]).absolute()),
        janitor,
        autorecovery,
        exporter,
        gateway_port or 0,
        writable,
    )
    root, files = Path(output), machine.files()
    different = [name for name, text in files.items() if _differs(root / name, text)]
    if different and not force:
        raise InvalidArgument(f"{root}: {', '.join(different)} is there and different; --force replaces it")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o640)  # the URI may have a password
        path.write_text(text, encoding="utf-8")
    install = [f"cd {shlex.quote(str(root))}", *machine.install()]
    if as_json:
        emit({"directory": str(root), "files": sorted(files), "services": machine.services(), "install": install})
    else:
        remark(f"wrote {len(files)} files into {root}; as root, on the machine {host}:")
        print("\n".join(install))


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") != text
    except FileNotFoundError:
        return False
