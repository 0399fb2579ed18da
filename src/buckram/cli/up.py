"""`buckram up`: a whole cluster on this machine, bookies as child processes on the embedded metadata store."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import click

from buckram.cli.options import json_option, run_async
from buckram.cli.output import emit, remark
from buckram.errors import ConfigError, InvalidArgument
from buckram.processes import BookieProcess, ChildFailed, stop_all

FORMAT_VERSION = 1
DESCRIPTION = "cluster.json"
MAX_BOOKIES = 100


@click.command()
@click.option("--bookies", type=int, help="How many; default 3, or as many as the directory has.")
@click.option("--data", "directory", default="buckram-data", show_default=True, metavar="DIR", help="Where it lives.")
@click.option("--zookeeper", is_flag=True, help="Metadata in a ZooKeeper of its own (not there yet).")
@json_option
def up(bookies: int | None, directory: str, zookeeper: bool, as_json: bool) -> None:
    """Start a cluster here and keep it running until Ctrl-C.

    The bookies are child processes with their data under DIR. The same DIR again starts the same cluster again.
    A bookie that is killed stays down: start it again with `buckram bookie run`, or `up` as a whole.

    \b
    Example:
      buckram up --bookies 3 --data ./buckram-data
    """
    if zookeeper:
        raise ConfigError("--zookeeper: the ZooKeeper metadata store is not there yet; leave the option out")
    root = Path(directory).absolute()
    root.mkdir(parents=True, exist_ok=True)
    with _only_one(root):
        count = _count(root, bookies)
        uri = f"sqlite://{root / 'metadata.db'}"
        run_async(_prepare(uri))
        ports = {str(n): _known_port(root, n) for n in range(1, count + 1)}
        # Before the first bookie makes its directory: a start that is cut short must not lose count of them.
        _describe(root, count, ports)
        children = [
            BookieProcess(uri, root / f"bookie-{n}", bookie_id=f"bookie-{n}", port=ports[str(n)])
            for n in range(1, count + 1)
        ]
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        try:
            _start(children, root, uri, as_json)
            _watch(children, stop)
        finally:
            stop_all(children)


@contextlib.contextmanager
def _only_one(root: Path) -> Iterator[None]:
    descriptor = os.open(root / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{root}: a `buckram up` runs this cluster; stop it or choose another --data") from None
        yield
    finally:
        os.close(descriptor)


def _description(root: Path) -> dict[str, object]:
    path = root / DESCRIPTION
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.get("format_version") != FORMAT_VERSION:
        raise ConfigError(f"{path}: format version {FORMAT_VERSION} is needed; another version of buckram made it")
    return found


def _describe(root: Path, count: int, ports: dict[str, int]) -> None:
    draft = root / (DESCRIPTION + ".new")
    draft.write_text(json.dumps({"format_version": FORMAT_VERSION, "bookies": count, "ports": ports}))
    draft.replace(root / DESCRIPTION)


def _count(root: Path, asked: int | None) -> int:
    known = _description(root).get("bookies", 0)
    assert isinstance(known, int)
    if asked is not None and not 1 <= asked <= MAX_BOOKIES:
        raise InvalidArgument(f"--bookies {asked}: needs 1 to {MAX_BOOKIES}")
    if asked is not None and asked < known:
        raise InvalidArgument(f"--bookies {asked}: {root} has {known} bookies with data; leave the option out")
    return asked or known or 3


def _known_port(root: Path, number: int) -> int:
    ports = _description(root).get("ports", {})
    assert isinstance(ports, dict)
    port = ports.get(str(number), 0)
    return port if isinstance(port, int) and _is_free(port) else 0


def _is_free(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def _prepare(uri: str) -> None:
    from buckram.metadata.uri import init_cluster, open_store

    store = await open_store(uri)
    try:
        await init_cluster(store)
    finally:
        await store.close()


def _start(children: list[BookieProcess], root: Path, uri: str, as_json: bool) -> None:
    for child in children:
        child.start()
    ready = [child.wait_ready() for child in children]
    _describe(root, len(children), {str(n): line.port for n, line in enumerate(ready, 1)})
    if as_json:
        emit({"uri": uri, "bookies": [line.as_json() for line in ready], "zookeeper": None})
        return
    click.echo(f"cluster {uri}")
    for line in ready:
        click.echo(f"  {line.bookie_id} at {line.host}:{line.port}, process {line.pid}")
    click.echo("ready; Ctrl-C stops it")


def _watch(children: list[BookieProcess], stop: threading.Event) -> None:
    """Until told to stop; says once which child ended, and gives up when none is left."""
    reported: set[int] = set()
    while not stop.wait(0.2):
        for n, child in enumerate(children, 1):
            if n not in reported and not child.alive:
                reported.add(n)
                remark(f"bookie-{n} ended with code {child.exit_code}; it is not started again. Log: {child.log}")
        if len(reported) == len(children):
            raise ChildFailed("all bookies have ended; their logs say why")
