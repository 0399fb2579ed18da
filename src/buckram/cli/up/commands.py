"""`buckram up`: a whole cluster on this machine, its bookies (and its ZooKeeper or etcd) as child processes."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click

from buckram.addresses import host_port, join
from buckram.cli.shared import values
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import json_option, run_async
from buckram.cli.shared.output import counted, emit, remark
from buckram.cli.shared.serving import leave_start_to_itself
from buckram.cli.up.background_threads import BEGUN_S, healing_thread, janitor_thread, running_gateway
from buckram.cli.up.cluster_directory import GATEWAY, GATEWAY_URL, LOCK, ClusterDirectory, only_one
from buckram.cli.up.security_files import FOLDER, Renewing, SecureDirectory, SecureStore
from buckram.errors import ChildFailed, ConfigError, EtcdFailed, InvalidArgument, ZooKeeperFailed
from buckram.launch.etcd_server import EtcdServer, start_etcd
from buckram.launch.processes import BookieProcess, ReadyLine, stop_all
from buckram.launch.zookeeper_server import ZooKeeperServer, start_zookeeper
from buckram.metadata.default import DATA_DIR, DATABASE, DESCRIPTION, sqlite_uri
from buckram.runtime.disk.new_directory import removed_on_failure
from buckram.serve.webhdfs.limits import files_url

MAX_BOOKIES = 100
SERVER_SECONDS = 120.0
LOST_BOOKIE_DELAY_S = 10.0
"""Grace period for lost bookies of a trial cluster, seconds: they return at once or not at all."""
NAMES = {"sqlite": "the embedded metadata database", "zookeeper": "ZooKeeper", "etcd": "etcd"}


@click.command()
@click.option("--bookies", type=int, help="Number of bookies; default 3, or as many as DIR has.")
@click.option(
    "--data",
    "directory",
    default=DATA_DIR,
    show_default=True,
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Directory of the cluster.",
)
@click.option(
    "--disks",
    metavar="A,B,...",
    help="Put one bookie on each of these disks (existing directories); more bookies go on them in rotation.",
)
@click.option(
    "--zookeeper", is_flag=True, help="Keep metadata in a ZooKeeper server of its own, under DIR (needs Java)."
)
@click.option("--etcd", is_flag=True, help="Keep metadata in an etcd server of its own, under DIR (needs etcd 3.5).")
@click.option(
    "--janitor", default="10s", show_default=True, metavar="TIME", help="Interval of the streams' janitor, or `never`."
)
@click.option(
    "--autorecovery/--no-autorecovery",
    default=True,
    show_default=True,
    help="Copy the ledgers of a bookie that is away for 10 s to others.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve metrics and health of the first bookie there, and of each other one on the next port.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve the HTTP API of the first bookie there, of each other one on the next port; with metrics and health.",
)
@click.option(
    "--gateway/--no-gateway",
    default=True,
    show_default=True,
    help="Run a gateway: HTTP for any language, and a web console.",
)
@click.option("--secure", is_flag=True, help="Use TLS, tokens and grants; certificates and tokens are made under DIR.")
@json_option
def up(
    bookies: int | None,
    directory: str,
    disks: str | None,
    zookeeper: bool,
    etcd: bool,
    janitor: str,
    autorecovery: bool,
    metrics: str | None,
    http: str | None,
    gateway: bool,
    secure: bool,
    as_json: bool,
) -> None:
    """Start a cluster here and keep it running until Ctrl-C.

    The bookies are child processes with their data under DIR. The same DIR again starts the same cluster again.
    A bookie that is killed stays down: start it again with `buckram bookie run`, or `up` as a whole.
    While it runs, DIR/gateway.url has the address of its gateway, for scripts.

    With --disks a disk that fails is a bookie that fails, and nothing else: DIR then holds the metadata and remembers
    which bookie is where.

    \b
    Examples:
      buckram up --bookies 3 --data ./buckram-data
      buckram up --disks /mnt/a,/mnt/b,/mnt/c --data ./buckram-data
    """
    every = None if janitor == "never" else max(values.duration("--janitor", janitor), 0.1)
    if zookeeper and etcd:
        raise InvalidArgument("--zookeeper --etcd: metadata are in one place; leave one of them out")
    kind = "zookeeper" if zookeeper else "etcd" if etcd else None
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    root = Path(directory).absolute()
    try:
        with removed_on_failure(root, lock=LOCK, whole=True, unless=DESCRIPTION), only_one(root):
            place = ClusterDirectory.read(root)
            place.check_is_ours()
            if disks is not None:
                place.disks = _disks(disks)
            _choose_security(place, secure)
            _run(place, bookies, kind, every, autorecovery, metrics, http, gateway, as_json, stop)
    except (ChildFailed, ZooKeeperFailed, EtcdFailed):
        if not stop.is_set():
            raise


def _run(
    place: ClusterDirectory,
    bookies: int | None,
    kind: str | None,
    janitor_s: float | None,
    healing: bool,
    metrics: str | None,
    http: str | None,
    gateway: bool,
    as_json: bool,
    stop: threading.Event,
) -> None:
    count = _count(place, bookies)
    scraped, served = _pages("--metrics", metrics, count), _pages("--http", http, count)
    pages = served or scraped
    _choose_kind(place, kind)
    _say_shared(place.disks)
    guard = SecureDirectory(place.root / FOLDER) if place.secure else None
    inner = None if guard is None or place.kind == "sqlite" else SecureStore(guard, place.kind)
    with ExitStack() as cleanup:
        server: ZooKeeperServer | EtcdServer | None = None
        users = 0
        if place.kind != "sqlite":
            if inner is not None:
                inner.prepare()
                users = inner.users_version()
            server = _start_server(place, inner, stop)
            cleanup.callback(server.stop)
        if inner is not None:
            os.environ.update(inner.settings())  # for this process, and the bookies
        uri = place.metadata or sqlite_uri(place.root / DATABASE)
        run_async(_check_not_lost(uri, place))
        # Before the first bookie makes its directory: a start that is cut short must not lose count of them.
        place.place(count)
        before, place.bookies = place.bookies, count
        place.write()
        run_async(_prepare(uri, before, count, guard))
        if guard is not None:
            os.environ.update(guard.admin_settings())  # for the threads below, which are clients, too
        children = {
            n: BookieProcess(
                uri,
                place.bookie(n),
                bookie_id=f"bookie-{n}",
                port=place.free_port(n),
                options=_options(("--metrics", scraped.get(n)), ("--http", served.get(n))),
                environment={} if guard is None else guard.bookie_settings(),
                log=place.root / f"bookie-{n}.log",  # a disk that fails must not take the reason with it
            )
            for n in range(1, count + 1)
        }
        cleanup.callback(stop_all, list(children.values()))
        _start(children, place, stop)
        if janitor_s is not None:
            cleanup.enter_context(janitor_thread(uri, janitor_s))
        if healing:
            cleanup.enter_context(healing_thread(uri, LOST_BOOKIE_DELAY_S)).begun.wait(BEGUN_S)
        opening = None if inner is None else inner.write_settings(uri)
        console = _gateway(place, uri, guard, cleanup) if gateway else None
        _report(children, uri, place.kind, server, pages, guard, console, opening, as_json)
        leave_start_to_itself()
        renewing = None if guard is None else Renewing(guard.certificates, remark)
        _watch(children, NAMES[place.kind], server, None if inner is None else _Users(inner, users), renewing, stop)


def _gateway(place: ClusterDirectory, uri: str, guard: SecureDirectory | None, cleanup: ExitStack) -> str | None:
    """Start the gateway, at the port that it had before if that is free. Returns its URL."""
    tls = None if guard is None else guard.gateway_tls()
    url = cleanup.enter_context(running_gateway(uri, place.free_port(GATEWAY), tls=tls))
    if url is not None:
        place.ports[GATEWAY] = urlsplit(url).port or 0
        place.write()
        address = place.root / GATEWAY_URL
        address.write_text(f"{url}\n")
        cleanup.callback(address.unlink, missing_ok=True)
    return url


def _disks(given: str) -> list[Path]:
    """Return the directories that --disks names. Raises InvalidArgument for one that is not there, or there twice."""
    found: list[Path] = []
    for name in given.split(","):
        path = Path(name.strip()).absolute()
        if not name.strip() or not path.is_dir():
            raise InvalidArgument(
                f"--disks {given}: {name.strip() or 'an empty name'} is no directory: mount the disk, or make it"
            )
        if any(path.samefile(other) for other in found):
            raise InvalidArgument(f"--disks {given}: {path} is named twice; each disk gets its bookies by one name")
        found.append(path)
    return found


def _say_shared(disks: list[Path]) -> None:
    """Remark which directories share a file system: they are not separate disks, which is fine for a trial."""
    by_device: dict[int, list[str]] = {}
    for path in disks:
        if path.is_dir():
            by_device.setdefault(path.stat().st_dev, []).append(str(path))
    for names in by_device.values():
        if len(names) > 1:
            remark(f"{', '.join(names)} are on one file system: if that fails, all their bookies do")


def _count(place: ClusterDirectory, asked: int | None) -> int:
    if asked is not None and not 1 <= asked <= MAX_BOOKIES:
        raise InvalidArgument(f"--bookies {asked}: needs 1 to {MAX_BOOKIES}")
    if asked is not None and asked < place.bookies:
        raise InvalidArgument(
            f"--bookies {asked}: {place.root} has {place.bookies} bookies with data; leave the option out"
        )
    return asked or place.bookies or len(place.disks) or 3


def _options(*pairs: tuple[str, str | None]) -> tuple[str, ...]:
    return tuple(word for name, value in pairs if value is not None for word in (name, value))


def _pages(option: str, given: str | None, count: int) -> dict[int, str]:
    """Where each bookie serves its pages: HOST:PORT, and the ports after it."""
    if given is None:
        return {}
    host, port = host_port(given, f"{option} {given!r}")
    if not 0 < port <= 65_535 - count:
        raise InvalidArgument(f"{option} {given!r}: needs a port from 1 to {65_535 - count}, one for each bookie")
    return {n: join(host, port + n - 1) for n in range(1, count + 1)}


def _choose_kind(place: ClusterDirectory, kind: str | None) -> None:
    """Keep the metadata store that was chosen when the directory was made. Raises ConfigError for another one."""
    if not place.made:
        place.kind = kind or "sqlite"
    elif kind is None and place.kind != "sqlite":
        remark(f"{place.root} was made with --{place.kind}: starting its {NAMES[place.kind]}, too")
    elif kind is not None and kind != place.kind:
        raise ConfigError(
            f"--{kind}: {place.root} was made with {NAMES[place.kind]}; leave the option out, or choose another --data"
        )


def _start_server(
    place: ClusterDirectory, secured: SecureStore | None, stop: threading.Event
) -> ZooKeeperServer | EtcdServer:
    server: ZooKeeperServer | EtcdServer
    if secured is not None:
        server = secured.start(place.root / place.kind, SERVER_SECONDS, stop.is_set)
        uri = secured.uri(server)
    elif place.kind == "zookeeper":
        server = start_zookeeper(place.root / "zookeeper", deadline_s=SERVER_SECONDS, cancelled=stop.is_set)
        uri = f"zk://{server.address}/ledgers"
    else:
        server = start_etcd(place.root / "etcd", deadline_s=SERVER_SECONDS, cancelled=stop.is_set)
        uri = f"etcd://{server.address}/buckram"
    if place.metadata and place.metadata != uri:
        remark(f"the port of {place.metadata} is in use by another program: this cluster is {uri} from now on")
    place.metadata = uri
    return server


def _choose_security(place: ClusterDirectory, secure: bool) -> None:
    """Keep the security with which the directory was made: a secure cluster stays secure, and --secure raises
    ConfigError for another one."""
    if secure and place.made and not place.secure:
        raise ConfigError(
            f"--secure: {place.root} was made without it; docs/explanation/security.md says how to turn it on"
        )
    place.secure = place.secure or secure
    if place.secure:  # Other users of this machine see neither the data nor the logs.
        os.umask(0o077)
        with suppress(FileNotFoundError):
            place.root.chmod(0o700)


async def _check_not_lost(uri: str, place: ClusterDirectory) -> None:
    """Raise WrongCluster if bookies have data and the metadata do not know their cluster."""
    from buckram.bookie.trust.cookie import refuse_lost
    from buckram.metadata.uri import open_store

    advice = ""
    if place.kind != "sqlite":
        data = place.root / place.kind
        advice = f"This {NAMES[place.kind]} runs alone with `buckram {place.kind} run --data {data}`. "
    store = await open_store(uri)
    try:
        await refuse_lost(store, place.bookie_directories(), advice)
    finally:
        await store.close()


async def _prepare(uri: str, before: int, count: int, guard: SecureDirectory | None) -> None:
    from buckram.metadata.uri import init_cluster, open_store
    from buckram.streams.shared.metadata import StreamStore
    from buckram.streams.shared.namespaces import fit_namespaces

    store = await open_store(uri)
    try:
        await init_cluster(store)
        await fit_namespaces(StreamStore(store), before, count)
        if guard is not None:
            await guard.prepare(store)
    finally:
        await store.close()


@dataclass
class _Users:
    """The users that ZooKeeper was started with."""

    store: SecureStore
    version: int

    def changed(self) -> bool:
        before, self.version = self.version, self.store.users_version()
        return self.version != before


def _start_again(server: ZooKeeperServer, stop: threading.Event) -> None:
    """Restart ZooKeeper, which reads its users when it starts. Sessions go on, except those of a removed login."""
    remark("the logins of ZooKeeper have changed: starting it again")
    server.kill()
    try:
        server.start()
        server.wait_ready(SERVER_SECONDS, stop.is_set)
    except ZooKeeperFailed as error:
        if not stop.is_set():
            remark(str(error))


def _why_not(place: ClusterDirectory, number: int, more: str) -> str:
    """Return why a bookie cannot be started in its place, and what to do; empty if no reason is known."""
    try:
        disk = place.missing_disk(number)
        if disk is not None:
            return f"its disk {disk} is not there. Mount it and start again; or, if it is lost for good, {more}"
        if place.lost(number):
            return (
                f"its data in {place.bookie(number)} is gone. Put the directory back and start again; or, if it is "
                f"lost for good, {more}"
            )
    except OSError as error:
        return f"{place.bookie(number)} cannot be read: {error.strerror}. If its disk is lost for good, {more}"
    return ""


def _start(children: dict[int, BookieProcess], place: ClusterDirectory, stop: threading.Event) -> None:
    """Start all that can be started; report for each other one what can be done. Raises ChildFailed if none is left."""
    problems = []
    more = f"start again with --bookies {len(children) + 1}, then `buckram ledger repair` each ledger"
    for n, child in children.items():
        why = _why_not(place, n, more)
        if why:
            problems.append(f"bookie-{n} is not started: {why}")
        else:
            child.start()
    for n, child in children.items():
        if child.pid:
            try:
                place.ports[n] = child.wait_ready(cancelled=stop.is_set).port
            except ChildFailed as error:
                foreign = child.exit_code == Exit.REFUSED
                child.kill()
                what = f". Put the right directory at {child.directory}; or {more}" if foreign else ""
                problems.append(f"bookie-{n} did not start: {error}{what}")
    if stop.is_set():
        raise ChildFailed(f"{place.root}: stopped before the cluster was ready")
    place.write()
    if not any(child.alive for child in children.values()):
        raise ChildFailed(f"no bookie of {place.root} can be started: {'; '.join(problems)}")
    for problem in problems:
        remark(problem)


def _report(
    children: dict[int, BookieProcess],
    uri: str,
    kind: str,
    server: ZooKeeperServer | EtcdServer | None,
    pages: dict[int, str],
    guard: SecureDirectory | None,
    console: str | None,
    opening: Path | None,
    as_json: bool,
) -> None:
    """Print the addresses of the cluster. `opening`: the file with the credentials of the metadata store, if it
    requires them."""
    lines: list[tuple[ReadyLine, str | None]] = [
        (child.ready, pages.get(n)) for n, child in children.items() if child.ready is not None
    ]
    service = f"buckram{'+tls' if guard else ''}://{','.join(join(line.host, line.port) for line, _ in lines)}/"
    if as_json:
        missing = [f"bookie-{n}" for n, child in children.items() if child.ready is None]
        address = server.address if server is not None else None
        emit(
            {
                "uri": uri,
                "service": service,
                "bookies": [{**line.as_json(), "http": page} for line, page in lines],
                "zookeeper": address if kind == "zookeeper" else None,
                "etcd": address if kind == "etcd" else None,
                "not_started": missing,
                "gateway": console,
                "files": None if console is None else files_url(console),
                "webhdfs": None if console is None else console.partition("://")[2],
                "client": None if guard is None else {"token": guard.client_token, "ca": str(guard.ca)},
                "store_settings": None if opening is None else str(opening),
            }
        )
        return
    click.echo(f"cluster {uri}")
    click.echo(f"  for other users and machines, through its bookies: {service}")
    if server is not None:
        click.echo(f"  {NAMES[kind]} at {server.address}, process {server.pid}")
    if opening is not None:
        click.echo(f"  administrators of this machine open it with what is in {opening}: run `. {opening}` in a shell")
    for line, page in lines:
        told = f", metrics at http://{page}/metrics" if page else ""
        click.echo(f"  {line.bookie_id} at {join(line.host, line.port)}, process {line.pid}{told}")
    if console is not None:
        click.echo(f"  console and HTTP for any language: {console}")
        click.echo(f"  files and checkpoints for Spark: {files_url(console)}/")
    if guard is not None:
        click.echo(
            "  a client needs this line; its token may use namespace default (see `buckram acl`, `buckram token`):"
        )
        click.echo(f"  export BUCKRAM_METADATA={service} BUCKRAM_CA={guard.ca} BUCKRAM_TOKEN={guard.client_token}")
    click.echo("ready; Ctrl-C stops it")


def _watch(
    children: dict[int, BookieProcess],
    name: str,
    server: ZooKeeperServer | EtcdServer | None,
    users: _Users | None,
    renewing: Renewing | None,
    stop: threading.Event,
) -> None:
    """Watch the processes until `stop` is set; reports once what ended, and gives up when no bookie is left."""
    running = {n: child for n, child in children.items() if child.ready is not None}
    while not stop.wait(0.5):
        if isinstance(server, ZooKeeperServer) and users is not None and users.changed():
            _start_again(server, stop)
        if renewing is not None:
            renewing.look()
        for n, child in list(running.items()):
            if not child.alive:
                del running[n]
                remark(f"bookie-{n} ended with code {child.exit_code}; it is not started again. Log: {child.log}")
        if not running:
            raise ChildFailed("all bookies have ended; their logs say why")
        if server is not None and not server.alive:
            remark(
                f"{name} ended with code {server.exit_code}; it is not started again: open ledgers can be written "
                f"and read, nothing else. Stop this command and start it again. Log: {server.log}"
            )
            server = None
    remark(f"stopping {counted(len(running), 'bookie')}; `buckram up` with the same --data starts them again")
