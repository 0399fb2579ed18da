"""`buckram etcd` and `buckram zookeeper`: a real metadata server on this machine, for clusters that have none yet."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from buckram.addresses import parse_host
from buckram.cli.shared.options import json_option
from buckram.cli.shared.output import emit

START_SECONDS = 300.0
"""Long, because a server reads its whole directory first; Ctrl-C ends it at any time."""
ETCD_PORT = 2379
ZOOKEEPER_PORT = 2181


# -- etcd -------------------------------------------------------------------------------------------------


@click.group()
def etcd() -> None:
    """Run an etcd server from an installed etcd 3.5 or later."""


@etcd.command("run")
@click.option(
    "--data",
    "directory",
    required=True,
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Directory of the server.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"TCP port; 0 picks a free one; default: the one that DIR had before, else {ETCD_PORT}.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; every client that reaches it may do anything.",
)
@json_option
def run_etcd(directory: str, port: int | None, host: str, as_json: bool) -> None:
    """Run one etcd server until SIGTERM or Ctrl-C.

    The same DIR again is the same server again. Its log is DIR/etcd.log.

    \b
    Example:
      buckram etcd run --data ./etcd
    """
    from buckram.errors import EtcdFailed
    from buckram.launch.etcd_server import start_etcd
    from buckram.launch.etcd_server.server import known_port

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    host = parse_host(host, "--host")
    if port is None:
        port = known_port(Path(directory)) or ETCD_PORT
    try:
        started = start_etcd(directory, port=port, host=host, deadline_s=START_SECONDS, cancelled=stop.is_set)
    except EtcdFailed:
        if stop.is_set():
            return
        raise
    with started as server:
        uri = f"etcd://{server.address}/buckram"
        if as_json:
            emit({"host": host, "port": server.port, "pid": server.pid, "uri": uri})
        else:
            click.echo(f"etcd serves at {server.address}, process {server.pid}; log: {server.log}")
            click.echo(f"a cluster on it: buckram cluster init --metadata {uri}")
        while not stop.wait(0.2):
            if not server.alive:
                raise EtcdFailed(f"etcd in {directory} ended with code {server.exit_code}: {server.last_words()}")


# -- ZooKeeper --------------------------------------------------------------------------------------------


@click.group()
def zookeeper() -> None:
    """Run a ZooKeeper server from the jars that PySpark brings."""


@zookeeper.command("run")
@click.option(
    "--data",
    "directory",
    required=True,
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Directory of the server.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"TCP port; 0 picks a free one; default: the one that DIR had before, else {ZOOKEEPER_PORT}.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; every client that reaches it may do anything.",
)
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
    from buckram.errors import ZooKeeperFailed
    from buckram.launch.zookeeper_server import start_zookeeper
    from buckram.launch.zookeeper_server.directory import known_port

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    host = parse_host(host, "--host")
    if port is None:
        port = known_port(Path(directory)) or ZOOKEEPER_PORT
    try:
        started = start_zookeeper(
            directory, port=port, host=host, heap_mb=heap_mb, deadline_s=START_SECONDS, cancelled=stop.is_set
        )
    except ZooKeeperFailed:
        if stop.is_set():
            return
        raise
    with started as server:
        uri = f"zk://{server.address}/ledgers"
        if as_json:
            emit({"host": host, "port": server.port, "pid": server.pid, "uri": uri})
        else:
            click.echo(f"ZooKeeper serves at {server.address}, process {server.pid}; log: {server.log}")
            click.echo(f"a cluster on it: buckram cluster init --metadata {uri}")
        while not stop.wait(0.2):
            if not server.alive:
                words = server.directory.last_words()
                raise ZooKeeperFailed(f"ZooKeeper in {directory} ended with code {server.exit_code}: {words}")
