"""Runs one bookie as a process: production disk, metadata store, event loop, pages of metrics.

Not here: the order in which a bookie starts and stops (`bookie/process.py`); printing and signals
(`cli/bookie_run.py`), for which the command line passes hooks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from buckram.bookie.http_pages import parse_address, serve_pages
from buckram.bookie.process import Bookie
from buckram.bookie.service.door import Door
from buckram.bookie.status_pages import status_pages
from buckram.config import AuthConfig, BookieConfig, NetConfig, StoreConfig, TlsConfig
from buckram.disk.descriptors import shares_of_bookie
from buckram.disk.local import LocalDisk
from buckram.errors import ConfigError, CorruptStore, WrongCookie
from buckram.metadata.uri import open_store
from buckram.net.loop import loop_factory
from buckram.net.runtime import production_runtime
from buckram.net.stats import NullStats, PrometheusStats
from buckram.seams import Disk, Listener
from buckram.types import BookieInfo

DISK_VARIABLE = "BUCKRAM_DISK"
NO_TLS, NO_AUTH = TlsConfig(), AuthConfig()


class ReadyHook(Protocol):
    """Called once, when the bookie is registered and serves."""

    def __call__(self, info: BookieInfo, /) -> None: ...


class StopBookie(Protocol):
    """Stops the bookie in order; to be called on its loop, any number of times."""

    def __call__(self) -> None: ...


class LoopHook(Protocol):
    """Called first, on the bookie's loop: install signal handlers there that call `stop`."""

    def __call__(self, loop: asyncio.AbstractEventLoop, stop: StopBookie, /) -> None: ...


async def serve_bookie(
    directory: str,
    metadata_uri: str,
    bookie_config: BookieConfig,
    store_config: StoreConfig,
    net_config: NetConfig,
    *,
    tls_config: TlsConfig = NO_TLS,
    auth_config: AuthConfig = NO_AUTH,
    environment: Mapping[str, str],
    on_ready: ReadyHook,
    stop: asyncio.Event,
) -> None:
    """Run one bookie on the production runtime until `stop` is set.

    Raises what kept it from starting (see `Bookie.start`), or the error of its store.
    """
    available = shares_of_bookie()
    guarded = tls_config.mode != "off" or auth_config.logins
    door = Door(tls_config, auth_config) if guarded else None
    stats = PrometheusStats() if bookie_config.metrics else NullStats()
    runtime = production_runtime(stats=stats)
    disk = open_disk(directory, store_config.disk_mode, environment.get(DISK_VARIABLE, ""))
    page: Listener | None = None
    try:
        metadata = await open_store(metadata_uri, runtime)
        try:
            bookie = Bookie(
                runtime,
                disk,
                metadata,
                bookie_config,
                store_config,
                net_config,
                shares=available,
                door=door,
                open_store=partial(open_store, metadata_uri, runtime),
            )
            if isinstance(stats, PrometheusStats):
                where = parse_address(bookie_config.metrics, "metrics")
                page = await serve_pages(runtime.network, where, status_pages(bookie, stats))
            try:
                on_ready(await _start_in(directory, bookie))
                stopping = asyncio.ensure_future(stop.wait())
                await asyncio.wait((stopping, bookie.failed), return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
            finally:
                await bookie.stop()
            if bookie.failed.done():
                raise bookie.failed.result()
        finally:
            await metadata.close()
    finally:
        if page is not None:
            await page.close()
        disk.close()


async def _start_in(directory: str, bookie: Bookie) -> BookieInfo:
    """Start the bookie; errors about the directory name it, because the parts above the disk do not know its name."""
    try:
        return await bookie.start()
    except (WrongCookie, CorruptStore) as error:
        raise type(error)(f"{directory}: {error}") from error


def open_disk(directory: str, mode: str, layer: str = "") -> Disk:
    """The production disk, or for tests the layer that BUCKRAM_DISK names:

    `withhold:SEED` loses or tears unsynced writes when the process is killed, `withhold-nosync:SEED` never syncs;
    `faults:FILE` fails as the file says.
    """
    if not layer:
        return LocalDisk(directory, mode)
    kind, _, seed = layer.partition(":")
    if kind == "faults" and seed:
        from buckram.disk.faulty import FaultyDisk

        return FaultyDisk(directory, seed, mode)
    if kind not in ("withhold", "withhold-nosync") or not seed.isdigit():
        raise ConfigError(
            f"{DISK_VARIABLE} = {layer!r}: needs withhold:SEED, withhold-nosync:SEED or faults:FILE, or nothing"
        )
    from buckram.disk.withholding import WithholdingDisk  # imported only by tests that name it

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
            environment=environment,
            on_ready=on_ready,
            stop=stop,
        )

    with asyncio.Runner(loop_factory=loop_factory(environment)) as runner:
        runner.run(main())
