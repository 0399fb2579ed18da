"""Runs one bookie as a process: production disk, metadata store, event loop, pages of metrics.

What a process does to the store of a bookie that is stopped is here as well: it clears limbo after an operator confirms
that the bookie's ledgers were repaired. Not here: the order in which a bookie starts and stops (`bookie/process.py`);
printing and signals (`cli/bookie/run.py`), for which the command line passes hooks.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from buckram.addresses import join, parse_address
from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.bookie.pages.http_thread import OtherLoop, beside
from buckram.bookie.pages.status_pages import Figures, Gauges, StatusPages, figures_of
from buckram.bookie.process import Bookie
from buckram.bookie.registration import running_host
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.bookie.storage import superblock
from buckram.bookie.storage.store import Store
from buckram.bookie.trust.cookie import refuse_lost
from buckram.config import AuthConfig, BookieConfig, NetConfig, StoreConfig, TelemetryConfig, TlsConfig
from buckram.core.placement.topology import HOST_PROPERTY
from buckram.errors import (
    ClusterNotInitialised,
    ConfigError,
    CorruptStore,
    InvalidArgument,
    MetadataUnavailable,
    WrongCookie,
)
from buckram.metadata.uri import open_store
from buckram.runtime.disk.descriptors import shares_of_bookie
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.disk.neighbours import Neighbours
from buckram.runtime.net.http_server import Handler, serve_http
from buckram.runtime.net.tcp import TcpNetwork
from buckram.runtime.process.process_setup import loop_factory
from buckram.runtime.process.stats import NullStats, PrometheusStats
from buckram.runtime.production import production_runtime
from buckram.seams import Disk, MetadataStore
from buckram.types import BookieInfo

if TYPE_CHECKING:
    from buckram.runtime.telemetry.telemetry import Telemetry

DISK_VARIABLE = "BUCKRAM_DISK"
NO_TLS, NO_AUTH, NO_TELEMETRY = TlsConfig(), AuthConfig(), TelemetryConfig()
SWITCH_S = 0.0005
GAUGES_S = 2.0
"""Time the sender of metrics waits for the bookie's loop, seconds."""


class ReadyHook(Protocol):
    """Called once, when the bookie is registered and serves."""

    def __call__(self, info: BookieInfo, http: str, /) -> None:
        """Return a context with the handler of pages."""
        ...


class AdminPages(Protocol):
    """Makes the pages that --http serves beyond the status pages (`serve/admin/serving.py`, above this package)."""

    def __call__(self, site: Site, /) -> AbstractAsyncContextManager[Handler]: ...


class Site(NamedTuple):
    """The bookie, its status pages and its settings: what pages are made from, in the thread that serves them."""

    bookie: OtherLoop[Bookie]
    status: StatusPages
    metadata_uri: str
    directory: str
    settings: Mapping[str, Any]
    """The sections of the configuration that are in force, by name."""
    guarded: bool
    """True if the bookie uses TLS or asks its peers for logins."""


class StopBookie(Protocol):
    """Stops the bookie in order; to be called on its loop, any number of times."""

    def __call__(self) -> None: ...


class LoopHook(Protocol):
    """Called first, on the bookie's loop: install signal handlers there that call `stop`."""

    def __call__(self, loop: asyncio.AbstractEventLoop, stop: StopBookie, /) -> None: ...


class AuditTrail(Protocol):
    """Writes the events of a running bookie down, meanwhile (`cli/security/audit_writer.py:writing`)."""

    def __call__(
        self, bookie: Bookie, events: AuditLog, store: MetadataStore, uri: str, tls: TlsConfig, auth: AuthConfig, /
    ) -> AbstractAsyncContextManager[None]: ...


async def serve_bookie(
    directory: str,
    metadata_uri: str,
    bookie_config: BookieConfig,
    store_config: StoreConfig,
    net_config: NetConfig,
    *,
    tls_config: TlsConfig = NO_TLS,
    auth_config: AuthConfig = NO_AUTH,
    admin: AdminPages | None = None,
    audit: AuditTrail | None = None,
    telemetry_config: TelemetryConfig = NO_TELEMETRY,
    environment: Mapping[str, str],
    on_ready: ReadyHook,
    stop: asyncio.Event,
) -> None:
    """Run one bookie on the production runtime until `stop` is set.

    Raises what kept it from starting (see `Bookie.start`), or the error of its store.
    """
    available = shares_of_bookie()
    guarded = tls_config.mode != "off" or bool(auth_config.logins)
    door = ConnectionGate(tls_config, auth_config) if guarded else None
    pages = bool(bookie_config.metrics or bookie_config.http)
    telemetry = _telemetry(telemetry_config, bookie_config.bookie_id or directory)
    stats = telemetry.stats if telemetry is not None else PrometheusStats() if pages else NullStats()
    runtime = replace(production_runtime(stats=stats), files=Neighbours(in_threads=True))
    if telemetry is not None:
        runtime = replace(runtime, traces=telemetry.traces)
    disk = open_disk(directory, store_config.disk_mode, environment.get(DISK_VARIABLE, ""))
    async with AsyncExitStack() as cleanup:
        cleanup.callback(disk.close)
        if telemetry is not None:
            cleanup.push_async_callback(telemetry.close)
        metadata = await open_store(metadata_uri, runtime)
        cleanup.push_async_callback(metadata.close)
        with suppress(MetadataUnavailable):  # the start below tries for a while
            await refuse_lost(metadata, [Path(directory)])
        events = None if audit is None else AuditLog(runtime.clock, stats)
        bookie = Bookie(
            runtime,
            disk,
            metadata,
            bookie_config,
            store_config,
            net_config,
            properties={HOST_PROPERTY: running} if (running := running_host()) else None,
            shares=available,
            door=door,
            events=events,
            mixed_logins=auth_config.mixed == "allowed",
            open_store=partial(open_store, metadata_uri, runtime),
        )
        http = ""
        if telemetry is not None:
            telemetry.start(_refresher(bookie, telemetry.stats))
        if pages and isinstance(stats, PrometheusStats):
            here = OtherLoop(bookie, asyncio.get_running_loop())
            settings = {"bookie": bookie_config, "store": store_config, "net": net_config, "tls": tls_config}
            tokens = "token" in door.logins if door is not None else False
            status = StatusPages(here, stats, bookie_config.metrics_names, directory, tokens=tokens)
            site = Site(here, status, metadata_uri, directory, settings, bool(auth_config.logins))
            http = await cleanup.enter_async_context(_served(site, bookie_config, admin, environment))
        cleanup.push_async_callback(bookie.stop)
        info = await _start_in(directory, bookie, metadata)
        if audit is not None and events is not None:
            await cleanup.enter_async_context(audit(bookie, events, metadata, metadata_uri, tls_config, auth_config))
        on_ready(info, http)
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((stopping, bookie.failed), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if bookie.failed.done():
            error = bookie.failed.result()
            raise WrongCookie(f"{directory}: {error}") if isinstance(error, WrongCookie) else error


def _telemetry(config: TelemetryConfig, instance: str) -> Telemetry | None:
    """Return the sender of traces and metrics of a bookie; None without an endpoint. Raises ConfigError without the
    extra."""
    if not config.endpoint:
        return None
    from buckram.runtime.telemetry.telemetry import Telemetry

    return Telemetry(config, "buckram-bookie", instance=instance)


def _refresher(bookie: Bookie, stats: PrometheusStats) -> Callable[[], None]:
    """Return a function that brings the gauges of a bookie up to date, from another thread."""
    loop, gauges = asyncio.get_running_loop(), Gauges(stats)

    async def look() -> Figures:
        bookie.server.refresh_gauges()
        return figures_of(bookie)

    def refresh() -> None:
        gauges.show(asyncio.run_coroutine_threadsafe(look(), loop).result(GAUGES_S))

    return refresh


@asynccontextmanager
async def _served(
    site: Site, config: BookieConfig, admin: AdminPages | None, environment: Mapping[str, str]
) -> AsyncIterator[str]:
    """Serve the pages in a thread of their own for as long as the context lasts. Yields HOST:PORT of those of
    --http."""

    async def serving(started: Callable[[Any], None]) -> None:
        network = TcpNetwork()
        http = ""
        async with AsyncExitStack() as open_here:
            if config.metrics:
                listener = await serve_http(network, parse_address(config.metrics, "metrics"), site.status)
                open_here.push_async_callback(listener.close)
            if config.http:
                handler: Handler = site.status
                if admin is not None:
                    handler = await open_here.enter_async_context(admin(site))
                where = parse_address(config.http, "http")
                listener = await serve_http(network, where, handler)
                open_here.push_async_callback(listener.close)
                http = join(where.host, listener.port)
            started(http)
            await asyncio.Event().wait()

    before = sys.getswitchinterval()
    # While a page is made, the bookie's loop gets the interpreter back after this time instead of after 5 ms.
    sys.setswitchinterval(SWITCH_S)
    try:
        async with beside("http", serving, environment) as http:
            yield http
    finally:
        sys.setswitchinterval(before)


async def _start_in(directory: str, bookie: Bookie, metadata: MetadataStore) -> BookieInfo:
    """Start the bookie; errors about the directory name it, because the parts above the disk do not know its name."""
    try:
        return await bookie.start()
    except ClusterNotInitialised:
        await refuse_lost(metadata, [Path(directory)])
        raise
    except (WrongCookie, CorruptStore) as error:
        raise type(error)(f"{directory}: {error}") from error


def open_disk(directory: str, mode: str, layer: str = "") -> Disk:
    """Return the production disk, or for tests the layer that BUCKRAM_DISK names: `withhold:SEED` loses or tears
    unsynced writes when the process is killed, `withhold-nosync:SEED` never syncs; `faults:FILE` fails as the file
    says."""
    if not layer:
        return LocalDisk(directory, mode)
    kind, _, seed = layer.partition(":")
    if kind == "faults" and seed:
        from buckram.runtime.disk.faulty import FaultyDisk

        return FaultyDisk(directory, seed, mode)
    if kind not in ("withhold", "withhold-nosync") or not seed.isdigit():
        raise ConfigError(
            f"{DISK_VARIABLE} = {layer!r}: needs withhold:SEED, withhold-nosync:SEED or faults:FILE, or nothing"
        )
    from buckram.runtime.disk.withholding import WithholdingDisk  # imported only by tests that name it

    return WithholdingDisk(directory, int(seed), sync_does_nothing=kind == "withhold-nosync")


def run_bookie(
    directory: str,
    metadata_uri: str,
    bookie_config: BookieConfig,
    store_config: StoreConfig,
    net_config: NetConfig,
    *,
    tls_config: TlsConfig = NO_TLS,
    auth_config: AuthConfig = NO_AUTH,
    admin: AdminPages | None = None,
    audit: AuditTrail | None = None,
    telemetry_config: TelemetryConfig = NO_TELEMETRY,
    environment: Mapping[str, str],
    on_ready: ReadyHook,
    on_loop: LoopHook,
) -> None:
    """Run one bookie in an event loop of its own until it is stopped; the process form of `serve_bookie`.

    The loop is uvloop where it is installed; BUCKRAM_LOOP=asyncio in `environment` chooses asyncio's own.
    """

    async def main() -> None:
        stop = asyncio.Event()
        on_loop(asyncio.get_running_loop(), stop.set)
        await serve_bookie(
            directory,
            metadata_uri,
            bookie_config,
            store_config,
            net_config,
            tls_config=tls_config,
            auth_config=auth_config,
            admin=admin,
            audit=audit,
            telemetry_config=telemetry_config,
            environment=environment,
            on_ready=on_ready,
            stop=stop,
        )

    with asyncio.Runner(loop_factory=loop_factory(environment)) as runner:
        runner.run(main())


_SEALED_S, _PAUSE_S = 120.0, 0.01


async def newest_loss(directory: str, config: StoreConfig, *, environment: Mapping[str, str]) -> int:
    """Return the number of the newest loss if the bookie is in limbo, else 0.

    Opens its store, which may find another loss. Raises like `clear_limbo`.
    """
    return await _open(directory, config, environment, None)


async def clear_limbo(directory: str, config: StoreConfig, loss: int, *, environment: Mapping[str, str]) -> int:
    """Clear limbo durably if `loss` is the newest one, and return that. Returns 0 if the bookie is not in limbo.

    Raises InvalidArgument (a newer loss, or no store), OSError (the bookie runs, the disk fails) or CorruptStore.
    """
    return await _open(directory, config, environment, loss)


async def _open(directory: str, config: StoreConfig, environment: Mapping[str, str], loss: int | None) -> int:
    if not Path(directory).is_dir():  # noqa: ASYNC240
        raise InvalidArgument(f"{directory}: no such directory; name the data directory of a bookie")
    disk = open_disk(directory, config.disk_mode, environment.get(DISK_VARIABLE, ""))
    try:
        disk.lock()
        return await _run(directory, disk, config, loss)
    finally:
        disk.close()


async def _sealed(store: Store) -> None:
    """Wait until every log file but the newest has a footer.

    Each start scans files without one, and would find their damaged blocks again.
    """
    async with asyncio.timeout(_SEALED_S):
        while (now := store.stats())["sealed_segments"] < now["segments"] - 1:
            if store.failed is not None:
                raise store.failed
            await asyncio.sleep(_PAUSE_S)


async def _run(directory: str, disk: Disk, config: StoreConfig, loss: int | None) -> int:
    runtime = production_runtime()
    try:
        if superblock.read_superblock(disk) is None:
            raise InvalidArgument(f"{directory}: this is not the data directory of a bookie")
        store = Store.open(disk, config, runtime.stats, runtime.rng)
    except CorruptStore as error:
        raise CorruptStore(f"{directory}: {error}") from error
    try:
        found = store.loss if store.limbo else 0
        if found and loss is not None:
            await _sealed(store)
            store.clear_limbo(loss)
    finally:
        await store.close()
    written = superblock.read_superblock(disk)
    if loss is not None and (written is None or written.limbo):
        raise OSError(errno.EIO, f"{directory}: the disk did not accept the change; nothing was changed")
    return found
