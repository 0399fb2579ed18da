"""`buckram etcd` and `buckram zookeeper`: a real metadata server on this machine, for clusters that have none yet."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buckram.addresses import parse_host
from buckram.cli.shared.options import json_option
from buckram.cli.shared.output import emit

if TYPE_CHECKING:
    from buckram.launch.child_process import ServerProcess

ETCD_PORT, ZOOKEEPER_PORT = 2379, 2181
START_SECONDS = 300.0
"""Long, because a server reads its whole directory first; Ctrl-C ends it at any time."""
F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def etcd() -> None:
    """Run an etcd server from an installed etcd 3.5 or later."""


@click.group()
def zookeeper() -> None:
    """Run a ZooKeeper server from the jars that PySpark brings."""


def _server_options(port: int) -> Callable[[F], F]:
    """`--data`, `--port` and `--host`."""

    def decorate(command: F) -> F:
        for option in (
            click.option(
                "--host",
                default="127.0.0.1",
                show_default=True,
                help="Address to listen on; every client that reaches it may do anything.",
            ),
            click.option(
                "--port",
                type=click.IntRange(0, 65535),
                help=f"TCP port; 0 picks a free one; default: the one that DIR had before, else {port}.",
            ),
            click.option(
                "--data",
                "directory",
                required=True,
                type=click.Path(file_okay=False),
                metavar="DIR",
                help="Directory of the server.",
            ),
        ):
            command = option(command)
        return command

    return decorate


@etcd.command("run")
@_server_options(ETCD_PORT)
@json_option
def run_etcd(directory: str, port: int | None, host: str, as_json: bool) -> None:
    """Run one etcd server until SIGTERM or Ctrl-C.

    The same DIR again is the same server again. Its log is DIR/etcd.log.

    \b
    Example:
      buckram etcd run --data ./etcd
    """
    from buckram.launch.child_process import known_port
    from buckram.launch.etcd_server import start_etcd
    from buckram.launch.etcd_server.server import DESCRIPTION

    if port is None:
        port = known_port(Path(directory, DESCRIPTION)) or ETCD_PORT
    _serve(directory, partial(start_etcd, port=port), host, "etcd://{}/buckram", as_json)


@zookeeper.command("run")
@_server_options(ZOOKEEPER_PORT)
@click.option(
    "--heap-mb", type=click.IntRange(32, 65_536), default=256, show_default=True, help="Maximum heap of Java, MiB."
)
@json_option
def run_zookeeper(directory: str, port: int | None, host: str, heap_mb: int, as_json: bool) -> None:
    """Run one ZooKeeper server until SIGTERM or Ctrl-C.

    The same DIR again is the same server again. Its log is DIR/zookeeper.log.

    \b
    Example:
      buckram zookeeper run --data ./zookeeper
    """
    from buckram.launch.child_process import known_port
    from buckram.launch.zookeeper_server import start_zookeeper
    from buckram.launch.zookeeper_server.settings import DESCRIPTION

    if port is None:
        port = known_port(Path(directory, DESCRIPTION)) or ZOOKEEPER_PORT
    _serve(directory, partial(start_zookeeper, port=port, heap_mb=heap_mb), host, "zk://{}/ledgers", as_json)


def _serve(directory: str, start: Callable[..., ServerProcess], host: str, uri: str, as_json: bool) -> None:
    """Run the server that `start` starts until SIGTERM or Ctrl-C. `uri`: that of a cluster on it, with its address left
    out."""
    from buckram.errors import EtcdFailed, ZooKeeperFailed

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    host = parse_host(host, "--host")
    try:
        started = start(directory, host=host, deadline_s=START_SECONDS, cancelled=stop.is_set)
    except (EtcdFailed, ZooKeeperFailed):
        if stop.is_set():
            return
        raise
    with started as server:
        cluster = uri.format(server.address)
        if as_json:
            emit({"host": host, "port": server.port, "pid": server.pid, "uri": cluster})
        else:
            click.echo(f"{server.KIND} serves at {server.address}, process {server.pid}; log: {server.log}")
            click.echo(f"a cluster on it: buckram cluster init --metadata {cluster}")
        while not stop.wait(0.2):
            if not server.alive:
                said = f"ended with code {server.exit_code}: {server.last_words()}"
                raise server.FAILED(f"{server.KIND} in {directory} {said}")
