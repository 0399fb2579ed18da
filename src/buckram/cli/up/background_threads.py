"""Background threads of `buckram up`, each with an event loop of its own: the janitor, autorecovery and the gateway.

The gateway serves the console, too, at an address of this machine. A thread that fails never ends the cluster.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from buckram.cli.gateway import check_installed, history_places
from buckram.cli.shared.options import connected, oidc_issuer, run_async
from buckram.cli.shared.output import remark
from buckram.config import TlsConfig
from buckram.errors import BuckramError, ConfigError

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.serve.http.server import Listening

ORPHANS_S = 600.0
"""Seconds between two scans of all ledgers of the cluster."""
STOP_S = 10.0
_POLL_S = 0.02
BEGUN_S = 10.0
"""Seconds to wait for visible background work before the cluster is reported as ready."""
AGAIN_S = 5.0
"""After a failure, before the work begins anew with another client."""

Work = Callable[["Client", "ClusterThread"], Awaitable[None]]
"""Runs until it is cancelled."""


# -- one thread -------------------------------------------------------------------------------------------


class ClusterThread:
    """`with ClusterThread(name, uri, work):` runs work beside the caller. Its problems are reported once on standard
    error."""

    def __init__(self, name: str, uri: str, work: Work, *, otherwise: str) -> None:
        """`otherwise`: what people have to do when the thread has ended."""
        self._name, self._uri, self._work_on, self._otherwise = name, uri, work, otherwise
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready, self._said = threading.Event(), ""
        self.begun = threading.Event()
        """Set by work that is to be waited for, when others can see that it is done."""
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def __enter__(self) -> ClusterThread:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:  # its loop has ended by itself
                return
            self._thread.join(STOP_S)

    def say(self, trouble: str) -> None:
        """Empty: all is well again."""
        if trouble and trouble != self._said:
            remark(f"{self._name}: put off: {trouble}")
        self._said = trouble

    def _main(self) -> None:
        try:
            run_async(self._serve())
        except Exception as error:  # whatever it is, the bookies go on
            remark(f"{self._name} ended: {error!r}; {self._otherwise}")
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        stopped = asyncio.ensure_future(self._stop.wait())
        work = asyncio.ensure_future(self._work())
        await asyncio.wait((stopped, work), return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, work):
            task.cancel()
        await asyncio.wait((stopped, work))
        if not work.cancelled():
            work.result()

    async def _work(self) -> None:
        while True:
            try:
                async with connected(self._uri) as client:
                    await self._work_on(client, self)
            except Exception as error:  # also a disk that is full for a time: it goes on when that is over
                self.say(str(error) if isinstance(error, BuckramError) else repr(error))
            await asyncio.sleep(AGAIN_S)


# -- janitor and autorecovery -----------------------------------------------------------------------------


def janitor_thread(uri: str, every_s: float) -> ClusterThread:
    """Return a thread that carries out retention, removes leftovers of crashes and makes backups, again and again.
    Raises ConfigError for a wrong list of places."""
    from buckram.cli.stream.janitor import janitor_places

    places, history = janitor_places()

    async def clean(client: Client, thread: ClusterThread) -> None:
        from buckram.state.db.backups import Backups
        from buckram.streams.maintain.janitor import Janitor

        loop, worker = asyncio.get_running_loop(), Janitor(client, None, Backups(client, places), history)
        looked = loop.time()
        while True:
            orphans = loop.time() - looked > ORPHANS_S
            looked = loop.time() if orphans else looked
            report = await worker.clean(orphans=orphans, whole=False)
            thread.say("; ".join(report.problems[:3]))
            await asyncio.sleep(every_s)

    otherwise = "streams keep their space until one runs: `buckram stream janitor`"
    return ClusterThread("janitor", uri, clean, otherwise=otherwise)


async def _auditor_seen(client: Client, thread: ClusterThread) -> None:
    """Say that there is an auditor: without one a cluster is not healthy, and `up` is ready when its cluster is."""
    from buckram.metadata.records.auditor_election import Election

    store = client.services.store
    while not await Election(store.keys, store.root, "").votes():  # noqa: ASYNC110 - of this process and of others
        await asyncio.sleep(_POLL_S)
    thread.begun.set()


def healing_thread(uri: str, delay_s: float) -> ClusterThread:
    """Return a thread with an auditor and a replicator; `delay_s`: how long a bookie may be away before its ledgers are
    copied."""

    async def work(client: Client, thread: ClusterThread) -> None:
        from buckram.config import load
        from buckram.healing.daemon import heal

        config, _ = load("healing", {"healing": {"lost_bookie_delay_s": delay_s}}, os.environ)
        seen = asyncio.ensure_future(_auditor_seen(client, thread))
        try:
            await heal(client, f"up-{os.getpid()}", config)
        finally:
            seen.cancel()

    otherwise = "lost bookies' ledgers are copied when one runs: `buckram autorecovery run`"
    return ClusterThread("autorecovery", uri, work, otherwise=otherwise)


# -- the gateway ------------------------------------------------------------------------------------------


@contextmanager
def running_gateway(uri: str, port: int, *, tls: TlsConfig | None) -> Iterator[str | None]:
    """Run a gateway during the block; yield its URL, or None if it cannot run, which is reported. Port 0 is any. With
    `tls` it requires tokens, too."""
    try:
        check_installed()
        from buckram.serve.http.server import bind, url_of

        listening = bind("127.0.0.1", port, "the gateway's address")
    except ConfigError as error:
        remark(f"there is no gateway and no console: {error}")
        yield None
        return
    url = url_of(listening, "http" if tls is None else "https")
    with listening, _thread(uri, listening, url, tls):
        yield url


def _thread(uri: str, listening: Listening, url: str, tls: TlsConfig | None) -> ClusterThread:
    async def serve(client: Client, thread: ClusterThread) -> None:
        from buckram.serve.gateway.server import Gateway
        from buckram.serve.http.tokens import ClusterTokens

        async with AsyncExitStack() as stack:
            store, clocks = client.services.store, client.services.clocks
            known = None if tls is None else ClusterTokens(store, clocks, oidc_issuer())
            if known is not None:
                await stack.enter_async_context(known)
            places = history_places(tls is not None)
            gateway = Gateway(client, listening.dup(), advertise=url, tokens=known, tls=tls, history=places)
            await stack.enter_async_context(gateway)
            await asyncio.Event().wait()

    return ClusterThread("gateway", uri, serve, otherwise="run one: `buckram gateway`")
