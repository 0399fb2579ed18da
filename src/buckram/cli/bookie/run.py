"""`buckram bookie run`, `config` and `clear-limbo`: one bookie as a process, its configuration, its directory.

Signals, the ready line and the end with the parent are here, and how each value in force is shown with the place that
it came from; everything else of a bookie process is `bookie/run.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared.options import (
    cluster_uri,
    confirm_loss,
    json_option,
    read_toml,
    run_async,
    server_metadata_option,
    yes_option,
)
from buckram.cli.shared.output import emit
from buckram.cli.shared.serving import leave_start_to_itself, level_on_hangup, notify_ready, service_log
from buckram.config import BookieConfig, Sourced, StoreConfig, load
from buckram.errors import ConfigError, InvalidArgument
from buckram.runtime.disk.local import LOCK_NAME
from buckram.runtime.disk.new_directory import removed_on_failure
from buckram.types import BookieAddress, BookieInfo

if TYPE_CHECKING:
    from buckram.runtime.logs.process_log import Log


def rows(sourced: Iterable[Sourced]) -> list[dict[str, Any]]:
    """Return one mapping per key, for JSON: section, key, value, source, meaning."""
    return [
        {"section": s.section, "key": s.key, "value": s.value, "source": s.source, "meaning": s.meaning}
        for s in sourced
    ]


def text(sourced: Iterable[Sourced]) -> str:
    """Return TOML that can be used as a configuration file; comments give each value's origin and meaning."""
    lines: list[str] = []
    section = ""
    for s in sourced:
        if s.section != section:
            lines.extend(([""] if lines else []) + [f"[{s.section}]"])
            section = s.section
        lines.append(f"{f'{s.key} = {_toml(s.value)}':<44} # {s.source}: {s.meaning}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if not isinstance(value, str):
        return f"{value}"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


_data_option = click.option(
    "--data",
    "directory",
    required=True,
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Directory of the bookie.",
)

SECTIONS = ("bookie", "store", "net", "tls", "auth", "log", "telemetry")


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--http", metavar="HOST:PORT", help="Serve the HTTP API there, with metrics and health."),
        click.option("--metrics", metavar="HOST:PORT", help="Serve Prometheus text there."),
        click.option(
            "--advertise", metavar="HOST:PORT", help="Address at which clients reach it; default: where it listens."
        ),
        click.option("--location", metavar="PATH", help="Location, such as /rack or /region/rack."),
        click.option("--id", "bookie_id", metavar="NAME", help="Identity; default: host:port of the first start."),
        click.option("--port", type=click.IntRange(0, 65535), help="TCP port; 0 picks a free one; default 3181."),
        click.option("--host", help="Address to listen on; default 127.0.0.1."),
        click.option(
            "--config",
            "config_file",
            type=click.Path(),
            metavar="FILE.toml",
            help="Settings; docs/reference/configuration.md lists them.",
        ),
    ):
        command = option(command)
    return command


def _load(config_file: str | None, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[Sourced]]:
    document = read_toml(config_file)
    values: dict[str, Any] = {}
    sources: list[Sourced] = []
    for section in SECTIONS:
        given = arguments if section == "bookie" else None
        values[section], found = load(section, document, os.environ, given)
        sources += found
    return values, sources


@click.command("run")
@server_metadata_option
@_data_option
@config_options
@click.option("--until-stdin-closes", is_flag=True, hidden=True, help="End when the parent is gone.")
@json_option
def run(
    uri: str | None,
    directory: str,
    config_file: str | None,
    host: str | None,
    port: int | None,
    bookie_id: str | None,
    advertise: str | None,
    location: str | None,
    metrics: str | None,
    http: str | None,
    until_stdin_closes: bool,
    as_json: bool,
) -> None:
    """Run one bookie until SIGTERM or Ctrl-C.

    An empty directory becomes a new bookie. A directory remembers its identity, so host and port may change. A start
    that fails before the bookie has its identity leaves no directory that it made.

    \b
    Example:
      buckram bookie run --metadata sqlite:///srv/buckram/metadata.db --data /srv/bookie-1 --port 3181
    """
    where = cluster_uri(uri)
    given = {"host": host, "port": port, "bookie_id": bookie_id, "advertise": advertise, "metrics": metrics}
    given |= {"location": location, "http": http}
    values, _ = _load(config_file, given)
    with service_log(config_file=config_file) as log, removed_on_failure(directory, lock=LOCK_NAME):
        run_async(_prepare(where, Path(directory), values["bookie"], values["store"]))
        _run(directory, where, values, log, config_file, until_stdin_closes, as_json)


def _run(
    directory: str,
    where: str,
    values: dict[str, Any],
    log: Log,
    config_file: str | None,
    until_stdin_closes: bool,
    as_json: bool,
) -> None:
    from buckram.bookie.run import AdminPages, AuditTrail, run_bookie

    admin: AdminPages | None = None
    if values["bookie"].http:
        from buckram.serve.admin.serving import admin_pages

        admin = admin_pages

    audit: AuditTrail | None = None
    if values["auth"].audit == "on":
        from buckram.cli.security.audit_writer import open_sink, writing

        audit = partial(writing, sink=open_sink(values["bookie"].audit_sink))
    elif values["bookie"].audit_sink:
        sink = values["bookie"].audit_sink
        raise ConfigError(f"[bookie] audit_sink = {sink!r}: there is nothing to copy without [auth] audit = 'on'")

    def ready(info: BookieInfo, http: str) -> None:
        log.name_process(bookie=info.bookie_id)
        address = info.address
        host, port = (address.host, address.port) if address is not None else ("", 0)
        if as_json:
            emit({"id": info.bookie_id, "host": host, "port": port, "pid": os.getpid(), "http": http or None})
        else:
            told = f", HTTP at http://{http}/" if http else ""
            print(f"bookie {info.bookie_id} serves at {address}, process {os.getpid()}{told}", flush=True)
        notify_ready()
        leave_start_to_itself()

    def on_loop(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        level_on_hangup(loop, log, config_file)
        if until_stdin_closes:
            loop.add_reader(sys.stdin.fileno(), _parent_gone, loop, stop)

    run_bookie(
        directory,
        where,
        values["bookie"],
        values["store"],
        values["net"],
        tls_config=values["tls"],
        auth_config=values["auth"],
        admin=admin,
        audit=audit,
        telemetry_config=values["telemetry"],
        environment=os.environ,
        on_ready=ready,
        on_loop=on_loop,
    )


def _parent_gone(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop()


def _is_new(uri: str) -> bool:
    """Return whether this start would create the cluster, because its SQLite file does not exist yet."""
    from buckram.metadata.uri import MetadataUri, parse

    place = parse(uri)
    return isinstance(place, MetadataUri) and place.scheme == "sqlite" and not Path(place.path).exists()


async def _check_start(directory: Path, config: BookieConfig, store: StoreConfig) -> None:
    """Raise what a start would raise for its directory and its addresses, before a cluster is made in vain."""
    from buckram.addresses import parse_address
    from buckram.bookie.run import open_disk
    from buckram.runtime.net.tcp import TcpNetwork

    open_disk(str(directory), store.disk_mode).close()
    pages = (("metrics", config.metrics), ("http", config.http))
    addresses = [BookieAddress(config.host, config.port), *(parse_address(at, what) for what, at in pages if at)]
    for address in addresses:
        listener = await TcpNetwork().listen(address.host, address.port, asyncio.Protocol)
        await listener.close()


async def _prepare(uri: str, directory: Path, config: BookieConfig, store_config: StoreConfig) -> None:
    """Make an embedded store if it is missing; a shared one is made only by `cluster init`."""
    if not uri.startswith("sqlite:"):
        return
    from buckram.bookie.trust.cookie import refuse_lost
    from buckram.metadata.uri import init_cluster, open_store

    store = await open_store(uri)
    try:
        await refuse_lost(store, [directory])
        if _is_new(uri):
            await _check_start(directory, config, store_config)
            # It is said so that a mistyped path is seen.
            logging.getLogger(__name__).warning("there is no cluster at %s yet: this bookie makes a new one", uri)
        await init_cluster(store)
    finally:
        await store.close()


@click.command("config")
@config_options
@json_option
def config(
    config_file: str | None,
    host: str | None,
    port: int | None,
    bookie_id: str | None,
    advertise: str | None,
    location: str | None,
    metrics: str | None,
    http: str | None,
    as_json: bool,
) -> None:
    """Print each setting in force and where it came from.

    That is its default, a file, the environment or an argument.

    \b
    Example:
      buckram bookie config --config bookie.toml
    """

    given = {"host": host, "port": port, "bookie_id": bookie_id, "advertise": advertise, "metrics": metrics}
    given |= {"location": location, "http": http}
    _, sources = _load(config_file, given)
    if as_json:
        emit({"settings": rows(sources)})
    else:
        print(text(sources), end="")


@click.command("clear-limbo")
@_data_option
@click.option("--config", "config_file", type=click.Path(), metavar="FILE.toml", help="Settings, as for `bookie run`.")
@click.option(
    "--loss", type=click.IntRange(min=1), metavar="N", help="Number of the loss, as `bookie show` printed it."
)
@yes_option
@json_option
def clear_limbo(directory: str, config_file: str | None, loss: int | None, yes: bool, as_json: bool) -> None:
    """Declare that a bookie has all its data again.

    The bookie is one that may have lost data. Stop the bookie first.

    A bookie that found acknowledged data missing says "unknown" instead of "no such entry" from then on. Once every
    ledger that names it went through `buckram ledger repair` without anything left to repair, it may say no again.
    Only the loss that you name is cleared: `buckram bookie show` says its number, before the repairs. A newer one,
    found meanwhile or by this command itself, stays: repair again, then name that one.

    \b
    Example:
      buckram bookie clear-limbo --data /srv/bookie-1 --loss 1
    """
    from buckram.bookie.run import clear_limbo as clear
    from buckram.bookie.run import newest_loss

    config, _ = load("store", read_toml(config_file), os.environ, None)
    newest = run_async(newest_loss(directory, config, environment=os.environ))
    if newest:
        if loss is None:
            raise InvalidArgument(
                f"{directory}: give --loss N, the number that `buckram bookie show` printed before the repairs"
            )
        if loss != newest:
            raise InvalidArgument(
                f"{directory}: loss {newest} was found after loss {loss}; start the bookie, repair every ledger that "
                f"names it once more, then clear loss {newest}"
            )
        question = "Was every ledger that names this bookie repaired, and nothing was left?"
        confirm_loss(question, yes, f"{directory}: loss {loss} is not cleared")
        run_async(clear(directory, config, loss, environment=os.environ))
    if as_json:
        emit({"directory": directory, "cleared": newest > 0, "loss": newest or None})
    else:
        print(f"{directory}: {f'loss {newest} is cleared' if newest else 'nothing to do, it knows of no lost data'}")
