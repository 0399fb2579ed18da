"""`buckram deploy systemd`: files that run a machine's bookies as services.

The container file and the Helm chart are in deploy/ of the sources.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from buckram.cli.deploy_units import Machine
from buckram.cli.shared.options import cluster_options, cluster_uri
from buckram.cli.shared.output import emit, remark
from buckram.errors import InvalidArgument

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
