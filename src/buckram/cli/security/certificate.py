"""`buckram certificate`: the certificates of `buckram up --secure`, which are made anew before they end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from buckram.cli.security.apache_client import data_option
from buckram.cli.security.token import time_text
from buckram.cli.shared.options import json_option
from buckram.cli.shared.output import emit, table
from buckram.cli.up.cluster_directory import ClusterDirectory
from buckram.cli.up.security_files import FOLDER, Certificates
from buckram.core.security.tokens import need_extra
from buckram.errors import ConfigError, InvalidArgument


@click.group("certificate")
def certificate() -> None:
    """List and renew the certificates of a secured cluster.

    For clusters of `buckram up --secure`, on their machine. The authority's lives for ten years, the others for one.
    `up` makes them anew when less than a third of that is left, at its start and while it runs.
    """


@certificate.command("list")
@data_option
@json_option
def list_(directory: str, as_json: bool) -> None:
    """List the certificates, and when they end.

    \b
    Example:
      buckram certificate list --data ./buckram-data
    """
    known = _of(Path(directory))
    _show(known, [one.name for one in known.shown()], as_json)


@certificate.command("renew")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--all", "whole", is_flag=True, help="Renew all, however long they would be valid.")
@data_option
@json_option
def renew(files: tuple[Path, ...], whole: bool, directory: str, as_json: bool) -> None:
    """Make certificates anew before they end.

    Those that have less than a third of their life left, or those in FILE..., however long they would live. Bookies,
    the gateway, ZooKeeper and etcd go on with the new ones without a restart; connections that are open stay. The
    authority keeps its key: certificates that it has signed stay valid. But clients on other machines have a copy of
    ca.pem, which they need anew before the old one ends.

    \b
    Examples:
      buckram certificate renew --data ./buckram-data
      buckram certificate renew ./buckram-data/security/bookie.pem
    """
    if files and whole:
        raise InvalidArgument("--all and FILE exclude each other: leave one of them out")
    known = _of(Path(directory)) if not files else _of_files(files)
    if not files and not whole:
        names = known.keep()
    else:
        names = [known.named(one) for one in files] or [one.name for one in known.shown()]
        known.renew(names)
    _show(known, names, as_json)


def _of(root: Path) -> Certificates:
    """Return the certificates of a cluster's directory. Raises ConfigError if it is no secured cluster of `up`, or the
    extra `security` is missing."""
    need_extra("buckram certificate")
    place = ClusterDirectory.read(root.absolute())
    if not place.made:
        raise ConfigError(f"{root}: no cluster of `buckram up`; name its directory with --data")
    if not place.secure:
        raise ConfigError(f"{root}: made without --secure, so it has no certificates")
    return Certificates(root.absolute() / FOLDER)


def _of_files(files: Sequence[Path]) -> Certificates:
    folders = {one.absolute().parent for one in files}
    if len(folders) > 1:
        raise InvalidArgument("FILE...: name certificates of one cluster at a time")
    (folder,) = folders
    if folder.name != FOLDER:
        raise InvalidArgument(f"{files[0]}: needs a file in DIR/{FOLDER} of `buckram up --secure --data DIR`")
    return _of(folder.parent)


def _show(known: Certificates, names: Sequence[str], as_json: bool) -> None:
    now_s = time.time()
    found = [one for one in known.shown() if one.name in names]
    if as_json:
        keys = [
            {"name": one.name, "file": str(one.file), "begins_s": one.life.begins_s, "expires_s": one.life.ends_s,
             "state": one.state(now_s)}
            for one in found
        ]  # fmt: skip
        emit({"certificates": keys})
    elif found:
        table(("name", "expires", "state", "file"), [
            (one.name, time_text(one.life.ends_s), one.state(now_s), str(one.file)) for one in found
        ])  # fmt: skip
    else:
        click.echo("none is due")
