"""The client without async, under the same names: `with buckram.sync.connect(uri) as client: ...`.

One background thread with its own event loop per client does the work; calls from any number of threads, also from
inside a running event loop (a notebook), wait for it. After a fork a client is of no use in the child: ForkedClient.
Cancelling or interrupting a wait has the meaning it has in the async client: it never takes back a write.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from buckram import cluster as _cluster
from buckram.client.ledger_client import client_config
from buckram.client.maintain.repair_report import RepairProgress, RepairReport
from buckram.client.read.reader import Reader as _Reader
from buckram.client.shared import unclosed_warnings as leftover
from buckram.client.shared.handles import NotAsync
from buckram.client.write.writer import Writer as _Writer
from buckram.config import ClientConfig, EncryptionConfig, NetConfig, TelemetryConfig, TlsConfig
from buckram.errors import BuckramError
from buckram.metadata.default import default_uri
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.state.machine.settings import MachineSettings
from buckram.sync.faces import pages
from buckram.sync.ledgers import Reader, Tail, Writer
from buckram.sync.machines import Machine, Objects
from buckram.sync.records import Bulk, BulkLedger, StreamReader, StreamWriter
from buckram.sync.streams import Namespace, Namespaces
from buckram.sync.thread import LoopThread
from buckram.types import DigestType, LedgerId, LedgerMetadata

__all__ = [
    "Bulk",
    "BulkLedger",
    "Client",
    "Machine",
    "Namespace",
    "Namespaces",
    "Objects",
    "Reader",
    "StreamReader",
    "StreamWriter",
    "Tail",
    "Writer",
    "connect",
]

T = TypeVar("T")
_EXIT_WAIT_S = 5.0
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def connect(
    metadata: str | MetadataStore | None = None,
    *,
    config: ClientConfig | None = None,
    net: NetConfig | None = None,
    tls: TlsConfig | None = None,
    token: str = "",
    encryption: EncryptionConfig | None = None,
    telemetry: TelemetryConfig | None = None,
) -> Client:
    """Return a client of the cluster that `metadata` names (a URI; None: that of BUCKRAM_METADATA or of `buckram up`
    here).

    Arguments and errors as those of buckram.connect, ClusterNotInitialised first of all. Raises ConfigError where
    gevent or eventlet has patched threads or sockets.
    """
    settings = config or client_config()
    where = metadata if metadata is not None else default_uri(os.environ, Path.cwd())
    thread = LoopThread()
    try:

        async def start() -> _cluster.Client:
            return await _cluster.connect(
                where,
                config=settings,
                net=net,
                tls=tls,
                token=token,
                encryption=encryption,
                telemetry=telemetry,
            )

        return Client(thread, thread.run(start), settings)
    except BaseException:
        thread.stop()
        raise


class Client(NotAsync):
    """See buckram.Client. Safe to use from several threads; `with` or close()."""

    def __init__(self, thread: LoopThread, client: _cluster.Client, config: ClientConfig) -> None:
        self._thread = thread
        self._client = client
        self._config = config
        _clients.add(self)

    def __repr__(self) -> str:
        return repr(self._client).replace("<", "<sync.", 1)

    def create(
        self,
        *,
        ensemble: int | str | Sequence[int] = (3, 3, 2),
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: str | DigestType = DigestType.CRC32C,
        password: bytes | str = b"",
        custom_metadata: Mapping[str, bytes | str] | None = None,
        ledger_id: LedgerId | None = None,
        explicit_ids: bool = False,
        deferred_sync: bool = False,
        degraded: bool = True,
        placement: str | None = None,
        encrypt: bool = False,
    ) -> Writer:
        """Return a new ledger and its writer; arguments as in buckram.Client.create."""

        async def start() -> tuple[_Writer, TaskScope]:
            writer = await self._client.create(
                ensemble=ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest=digest,
                password=password,
                custom_metadata=custom_metadata,
                ledger_id=ledger_id,
                explicit_ids=explicit_ids,
                deferred_sync=deferred_sync,
                degraded=degraded,
                placement=placement,
                encrypt=encrypt,
            )
            return writer, TaskScope(f"sync writer {writer.ledger_id}")

        return Writer(self._thread, *self._thread.run(start), self._config)

    def open(
        self, ledger_id: LedgerId, *, password: bytes | str = b"", digest: str | DigestType | None = None
    ) -> Reader:
        """Return a reader of a ledger as it is; never fences."""

        async def start() -> _Reader:
            return await self._client.open(ledger_id, password=password, digest=digest)

        return Reader(self._thread, self._thread.run(start))

    def recover(
        self, ledger_id: LedgerId, *, password: bytes | str = b"", digest: str | DigestType | None = None
    ) -> Reader:
        """Fence the writer, close the ledger, and give a reader of it. RecoveryFailed: too few bookies, try later."""

        async def start() -> _Reader:
            return await self._client.recover(ledger_id, password=password, digest=digest)

        return Reader(self._thread, self._thread.run(start))

    def delete(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes | str = b"",
        digest: str | DigestType | None = None,
        force: bool = False,
    ) -> None:
        """Delete a ledger, after recovering it if it is not closed."""
        self._thread.run(lambda: self._client.delete(ledger_id, password=password, digest=digest, force=force))

    def list(self) -> Iterator[LedgerId]:
        """Yield all ledger ids, ascending."""
        return pages(self._thread, self._client.list)

    def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Read a ledger's metadata from the metadata store. Raises NoSuchLedger if there is none."""
        return self._thread.run(lambda: self._client.metadata(ledger_id))

    def repair(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes | str = b"",
        digest: str | DigestType | None = None,
        progress: RepairProgress | None = None,
    ) -> RepairReport:
        """Copy missing or bad entries from good replicas. `progress` is called in the client's thread."""
        return self._thread.run(
            lambda: self._client.repair(ledger_id, password=password, digest=digest, progress=progress)
        )

    def namespace(self, name: str = "default") -> Namespace:
        """Return a namespace of streams: `with client.namespace("shop").writer("orders") as writer: ...`."""
        return Namespace(self._thread, self._thread.run(_given(lambda: self._client.namespace(name))), self._config)

    def objects(
        self, namespace: str = "default", *, process: str = "", settings: MachineSettings | None = None, **policy: Any
    ) -> Objects:
        """Return the objects of a namespace: `with client.objects("shop") as objects: objects.put("a/b", data)`."""

        async def start() -> Objects:
            opening = self._client.objects(namespace, process=process, settings=settings, **policy)
            return Objects(self._thread, await opening)

        return self._thread.run(start)

    @property
    def namespaces(self) -> Namespaces:
        """Create, list, set and delete namespaces."""
        return Namespaces(self._thread, self._thread.run(_given(lambda: self._client.namespaces)))

    def close(self) -> None:
        """Close every handle and end the thread; open ledgers are not sealed. In a forked child: nothing."""
        self._thread.stop(self._client.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _given(make: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    """Wrap a call that makes an object on the loop without waiting as a coroutine function."""

    async def main() -> T:
        return make()

    return main


def _close_all() -> None:
    """Close all clients at the end of the interpreter: first their writers, then their connections in order."""
    leftover.close_all()  # while their clients are there
    for client in list(_clients):
        try:
            client._thread.stop(client._client.close, _EXIT_WAIT_S)
        except (BuckramError, TimeoutError, RuntimeError):
            continue


atexit.register(_close_all)
