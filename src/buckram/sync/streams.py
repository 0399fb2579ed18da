"""The blocking face of namespaces: create, list, inspect, truncate, cursors. Writers and readers are sync/records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buckram.client.shared.handles import NotCopied
from buckram.config import ClientConfig
from buckram.namespace import Namespace as _Namespace
from buckram.runtime.process.tasks import TaskScope
from buckram.state.machine.machine import M
from buckram.state.machine.settings import MachineSettings
from buckram.streams.maintain.fork import StreamFork
from buckram.streams.read.reader import Time, Truncated
from buckram.streams.shared.namespaces import Namespaces as _Namespaces
from buckram.streams.write.writer import StreamWriter as _StreamWriter
from buckram.sync.calls.streams import NamespaceCalls, NamespacesCalls
from buckram.sync.machines import Machine
from buckram.sync.records import Bulk, StreamReader, StreamWriter
from buckram.sync.thread import LoopThread


class Namespaces(NamespacesCalls, NotCopied):
    """See buckram.Client.namespaces."""

    def __init__(self, thread: LoopThread, spaces: _Namespaces) -> None:
        super().__init__(thread, spaces)


class Namespace(NamespaceCalls, NotCopied):
    """See the async one: `client.namespace(name)`. Safe to use from several threads."""

    def __init__(self, thread: LoopThread, namespace: _Namespace, config: ClientConfig) -> None:
        super().__init__(thread, namespace)
        self._config = config
        self.name = namespace.name
        """The name of the namespace."""

    # -- streams ------------------------------------------------------------------------------------------

    def fork_stream(
        self, source: str, name: str, *, offset: int | None = None, time: Time | None = None, **policy: Any
    ) -> StreamFork:
        """Make a stream of the records of another one below an offset, or before a time; as in the async one."""
        return self._thread.run(lambda: self._handle.fork_stream(source, name, offset=offset, time=time, **policy))

    # -- writing and reading ------------------------------------------------------------------------------

    def writer(
        self,
        stream: str,
        *,
        create: bool = True,
        takeover: bool = False,
        wait: bool = False,
        name: str = "",
        linger_ms: float = 50.0,
    ) -> StreamWriter:
        """Return the stream's writer; arguments and errors as in the async one. `with ns.writer("orders") as w:
        ...`."""

        async def start() -> tuple[_StreamWriter, TaskScope]:
            writer = await self._handle.writer(
                stream, create=create, takeover=takeover, wait=wait, name=name, linger_ms=linger_ms
            )
            return writer, TaskScope(f"sync writer of stream {writer.stream}")

        return StreamWriter(self._thread, *self._thread.run(start), self._config)

    def read(
        self,
        stream: str,
        *,
        start: int | str = "earliest",
        stop: int | str | None = None,
        start_time: Time | None = None,
        stop_time: Time | None = None,
        start_txid: int | None = None,
        follow: bool = False,
        on_truncated: Truncated = "error",
        cursor: str | None = None,
    ) -> StreamReader:
        """Return a reader: `for record in ns.read("orders")`; arguments and errors as in the async one."""

        async def begin() -> StreamReader:
            return StreamReader(
                self._thread,
                self._handle.read(
                    stream,
                    start=start,
                    stop=stop,
                    start_time=start_time,
                    stop_time=stop_time,
                    start_txid=start_txid,
                    follow=follow,
                    on_truncated=on_truncated,
                    cursor=cursor,
                ),
            )

        return self._thread.run(begin)

    # -- machines -----------------------------------------------------------------------------------------

    def machine(
        self,
        name: str,
        factory: Callable[[], M],
        *,
        create: bool = True,
        stand: bool = True,
        process: str = "",
        settings: MachineSettings | None = None,
        **policy: Any,
    ) -> Machine[M]:
        """Open a replicated state machine: `with ns.machine("inventory", Inventory) as m`; see the async one."""

        async def start() -> Machine[M]:
            opening = self._handle.machine(
                name, factory, create=create, stand=stand, process=process, settings=settings, **policy
            )
            return Machine(self._thread, await opening)

        return self._thread.run(start)

    # -- databases ----------------------------------------------------------------------------------------
    # The blocking way to open one is DB-API 2.0: `buckram.db.connect`.

    # -- cursors ------------------------------------------------------------------------------------------

    # -- bulk ---------------------------------------------------------------------------------------------

    def bulk(
        self, stream: str, *, application: str, version: int, query: str = "", place: str = "", new_epoch: bool = False
    ) -> Bulk:
        """Return a bulk step: ledgers that become segments in one compare-and-set, once per (application, version)."""

        async def begin() -> Bulk:
            return Bulk(
                self._thread,
                await self._handle.bulk(
                    stream, application=application, version=version, query=query, place=place, new_epoch=new_epoch
                ),
            )

        return self._thread.run(begin)
