"""The blocking face of namespaces: create, list, inspect, truncate, cursors. Writers and readers are sync/records."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from buckram.client.shared.handles import NotCopied
from buckram.config import ClientConfig
from buckram.core.streams.metadata.head import Segment
from buckram.core.streams.records.batch import Record
from buckram.core.tenants.quotas import Quotas
from buckram.namespace import Namespace as _Namespace
from buckram.runtime.process.tasks import TaskScope
from buckram.state.machine.machine import M
from buckram.state.machine.settings import MachineSettings
from buckram.streams.info import StreamInfo
from buckram.streams.maintain.fork import StreamFork
from buckram.streams.read.cursors import CursorInfo
from buckram.streams.read.reader import Time, Truncated
from buckram.streams.shared.namespaces import NamespaceInfo
from buckram.streams.shared.namespaces import Namespaces as _Namespaces
from buckram.streams.shared.record_values import RecordCodec
from buckram.streams.write.writer import StreamWriter as _StreamWriter
from buckram.sync.bulk import Bulk
from buckram.sync.machine import Machine
from buckram.sync.records import StreamReader, StreamWriter
from buckram.sync.thread import LoopThread, each, flatten
from buckram.types import Offset

if TYPE_CHECKING:
    from buckram.core.db.changes import Change
    from buckram.state.db.transfer import Verified

_PAGE = 1000


class Namespaces(NotCopied):
    """See buckram.Client.namespaces."""

    def __init__(self, thread: LoopThread, spaces: _Namespaces) -> None:
        self._thread, self._spaces = thread, spaces

    def create(self, name: str, **policy: Any) -> NamespaceInfo:
        """NamespaceExists."""
        return self._thread.run(lambda: self._spaces.create(name, **policy))

    def get(self, name: str) -> NamespaceInfo:
        """NoSuchNamespace."""
        return self._thread.run(lambda: self._spaces.get(name))

    def list(self, *, prefix: str = "", after: str = "", limit: int = _PAGE) -> builtins.list[str]:
        """Names in order, those greater than `after`; empty at the end."""
        return self._thread.run(lambda: self._spaces.list(prefix=prefix, after=after, limit=limit))

    def set(self, name: str, **policy: Any) -> NamespaceInfo:
        """Change settings; None takes one back."""
        return self._thread.run(lambda: self._spaces.set(name, **policy))

    def delete(self, name: str) -> None:
        """NamespaceNotEmpty while it has streams."""
        self._thread.run(lambda: self._spaces.delete(name))

    def quotas(self, name: str) -> Quotas:
        """Return the quotas of the namespace."""
        return self._thread.run(lambda: self._spaces.quotas(name))

    def set_quotas(self, name: str, **quotas: int | None) -> Quotas:
        """Change quotas; None takes one back. For administrators of the cluster."""
        return self._thread.run(lambda: self._spaces.set_quotas(name, **quotas))


class Namespace(NotCopied):
    """See the async one: `client.namespace(name)`. Safe to use from several threads."""

    def __init__(self, thread: LoopThread, namespace: _Namespace, config: ClientConfig) -> None:
        self._thread, self._namespace, self._config = thread, namespace, config
        self.name = namespace.name
        """The name of the namespace."""

    def __repr__(self) -> str:
        return repr(self._namespace).replace("<", "<sync.", 1)

    # -- streams ------------------------------------------------------------------------------------------

    def create(self, stream: str, *, properties: Mapping[str, str] | None = None, **policy: Any) -> StreamInfo:
        """Make a stream. Raises StreamExists."""
        return self._thread.run(lambda: self._namespace.create(stream, properties=properties, **policy))

    def exists(self, stream: str) -> bool:
        """Return whether there is a stream of this name."""
        return self._thread.run(lambda: self._namespace.exists(stream))

    def list(self, *, prefix: str = "", after: str = "", limit: int = _PAGE) -> builtins.list[str]:
        """Bare names in order, those greater than `after`; empty at the end."""
        return self._thread.run(lambda: self._namespace.list(prefix=prefix, after=after, limit=limit))

    def fork_stream(
        self, source: str, name: str, *, offset: int | None = None, time: Time | None = None, **policy: Any
    ) -> StreamFork:
        """Make a stream of the records of another one below an offset, or before a time; as in the async one."""
        return self._thread.run(lambda: self._namespace.fork_stream(source, name, offset=offset, time=time, **policy))

    def info(self, stream: str) -> StreamInfo:
        """Return the current state of a stream. Raises NoSuchStream."""
        return self._thread.run(lambda: self._namespace.info(stream))

    def delete(self, stream: str, *, force: bool = False, purpose: str = "records") -> None:
        """Delete a stream and all that belongs to it; its writer is fenced, or RecoveryFailed unless `force`.

        `purpose`: that of a stream which is not for records, as in the async one.
        """
        self._thread.run(lambda: self._namespace.delete(stream, force=force, purpose=purpose))

    def set_policy(self, stream: str, **policy: Any) -> StreamInfo:
        """Change settings of one stream; None takes one back to the namespace's."""
        return self._thread.run(lambda: self._namespace.set_policy(stream, **policy))

    def set_properties(self, stream: str, properties: Mapping[str, str | None]) -> StreamInfo:
        """Set properties; None removes one."""
        return self._thread.run(lambda: self._namespace.set_properties(stream, properties))

    def set_schema(self, stream: str, schema: str) -> int:
        """Add a version to the schema of the stream's values, Avro's JSON of a record; its number."""
        return self._thread.run(lambda: self._namespace.set_schema(stream, schema))

    def schema(self, stream: str) -> RecordCodec | None:
        """Return the codec of the stream's current schema; None if it has none."""
        return self._thread.run(lambda: self._namespace.schema(stream))

    def segments(self, stream: str) -> Iterator[Segment]:
        """Yield the segment list, oldest first."""
        self._thread.check()
        rows = self._namespace.segments(stream)

        async def page() -> Sequence[Segment] | None:
            found: builtins.list[Segment] = []
            async for row in rows:
                found.append(row)
                if len(found) == _PAGE:
                    break
            return found or None

        return flatten(self._thread, page, rows)

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
            writer = await self._namespace.writer(
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
                self._namespace.read(
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

    def get(self, stream: str, offset: Offset) -> Record:
        """Return one record. Raises OffsetOutOfRange, OffsetTruncated."""
        return self._thread.run(lambda: self._namespace.get(stream, offset))

    def truncate(
        self,
        stream: str,
        *,
        before: int | None = None,
        before_time: Time | None = None,
        keep_bytes: int | None = None,
        before_cursors: bool = False,
        trim_now: bool = True,
    ) -> int:
        """Drop the oldest records; the new earliest offset."""
        return self._thread.run(
            lambda: self._namespace.truncate(
                stream,
                before=before,
                before_time=before_time,
                keep_bytes=keep_bytes,
                before_cursors=before_cursors,
                trim_now=trim_now,
            )
        )

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
            opening = self._namespace.machine(
                name, factory, create=create, stand=stand, process=process, settings=settings, **policy
            )
            return Machine(self._thread, await opening)

        return self._thread.run(start)

    # -- databases ----------------------------------------------------------------------------------------
    # The blocking way to open one is DB-API 2.0: `buckram.db.connect`.

    def create_database(self, name: str, *, cdc: bool = False, **policy: Any) -> None:
        """Create an empty database without opening it; `cdc`: it keeps changes of rows. Raises DatabaseExists."""
        self._thread.run(lambda: self._namespace.create_database(name, cdc=cdc, **policy))

    def database_changes(self, name: str, from_offset: int | None = None, *, follow: bool = False) -> Iterator[Change]:
        """`for change in ns.database_changes("main")`; arguments and errors as in the async one."""
        self._thread.check()
        changes = self._namespace.database_changes(name, from_offset, follow=follow)

        async def next_one() -> Change | None:
            return await anext(changes, None)

        return each(self._thread, next_one, changes)

    def fork_database(
        self, source: str, name: str, *, offset: int | None = None, time: Time | None = None, **policy: Any
    ) -> int:
        """Make a database of an earlier state of another one, and return the offset; see the async one."""
        return self._thread.run(lambda: self._namespace.fork_database(source, name, offset=offset, time=time, **policy))

    def backup_database(
        self, name: str, path: str, *, offset: int | None = None, time: Time | None = None
    ) -> tuple[int, int]:
        """Write a database into a file of SQLite's, and return the offset and the bytes; see the async one."""
        return self._thread.run(lambda: self._namespace.backup_database(name, path, offset=offset, time=time))

    def restore_database(self, path: str, name: str, **policy: Any) -> None:
        """Make the database `name` of a file of SQLite's. Raises DatabaseExists, InvalidArgument, OSError."""
        self._thread.run(lambda: self._namespace.restore_database(path, name, **policy))

    def load_database(self, path: str, name: str) -> int:
        """Fill a database that has nothing in it with a file of SQLite's. As Namespace.load_database."""
        return self._thread.run(lambda: self._namespace.load_database(path, name))

    def verify_database(self, name: str) -> Verified:
        """Read all that is kept of a database and compare every digest. Raises StateLost, NotDatabase."""
        return self._thread.run(lambda: self._namespace.verify_database(name))

    # -- cursors ------------------------------------------------------------------------------------------

    def cursors(self, stream: str, *, after: str = "", limit: int = _PAGE) -> Sequence[CursorInfo]:
        """Return the stream's cursors in order of their names, each with its lag."""
        return self._thread.run(lambda: self._namespace.cursors(stream, after=after, limit=limit))

    def move_cursor(self, stream: str, cursor: str, offset: Offset) -> None:
        """Make a cursor, or move it up."""
        self._thread.run(lambda: self._namespace.move_cursor(stream, cursor, offset))

    def delete_cursor(self, stream: str, cursor: str) -> None:
        """NoSuchCursor."""
        self._thread.run(lambda: self._namespace.delete_cursor(stream, cursor))

    # -- bulk ---------------------------------------------------------------------------------------------

    def bulk(
        self, stream: str, *, application: str, version: int, query: str = "", place: str = "", new_epoch: bool = False
    ) -> Bulk:
        """Return a bulk step: ledgers that become segments in one compare-and-set, once per (application, version)."""

        async def begin() -> Bulk:
            return Bulk(
                self._thread,
                await self._namespace.bulk(
                    stream, application=application, version=version, query=query, place=place, new_epoch=new_epoch
                ),
            )

        return self._thread.run(begin)
