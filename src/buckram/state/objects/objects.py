"""Objects: the handle from `client.objects(namespace)`. Immutable bytes under names, put as a whole or not at all.

Not here: bytes (`state/objects/writing.py`, `state/objects/reading.py`), the index (`core/objects/index.py`).
"""

from __future__ import annotations

import asyncio
import builtins
import hashlib
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from itertools import islice
from types import TracebackType
from typing import Any, Self

from buckram.client.ledger_client import LedgerClient
from buckram.client.shared.handles import NotBlocking
from buckram.core.objects.index import MAX_PARTS, ObjectIndex
from buckram.core.objects.rows import LOG, ObjectRow, check_object_name
from buckram.core.objects.tree import Directory
from buckram.core.streams.names import StreamId
from buckram.core.streams.policy import merged
from buckram.errors import (
    CommandRefused,
    DataLost,
    InvalidArgument,
    MirrorStream,
    NoSuchObject,
    ObjectChanged,
    ObjectDamaged,
)
from buckram.runtime.process.tasks import TaskScope
from buckram.state.machine.opening import open_machine
from buckram.state.machine.settings import MachineSettings
from buckram.state.objects.garbage_collection import Sweeper
from buckram.state.objects.index_client import IndexClient
from buckram.state.objects.reading import ObjectReaders
from buckram.state.objects.refusals import NO_DIRECTORY, absent, refused
from buckram.state.objects.rewriting import Rewriter
from buckram.state.objects.values import (
    Data,
    DirectoryInfo,
    ObjectInfo,
    PartInfo,
    UploadInfo,
    condition,
    extra,
    info_of,
    node_of,
    pieces_of,
    told,
    upload_info,
)
from buckram.state.objects.writing import SMALL_BYTES, LedgerMaker, Packs, Stored, write_large
from buckram.streams.namespace import StreamNamespace
from buckram.streams.shared.namespaces import Namespaces

_HASH_BESIDE = 128 * 1024
_MAX_LISTED = 10_000
_MAX_GRACE_S = 86_400.0
_TRIES = 2


class Objects(NotBlocking):
    """The objects of one namespace, from `client.objects(namespace)`. `async with` or close().

    Errors: NoSuchObject, ObjectExists, ObjectChanged, NameBlocked and InvalidArgument mean that nothing was changed;
    MirrorStream (of a mirror, which is written in another cluster). NotEnoughBookies, WriteFailed, ObjectDamaged,
    HandleClosed.
    """

    def __init__(self, client: LedgerClient, ns: StreamNamespace, on_closed: Callable[[object], None]) -> None:
        self.namespace = ns.name
        """Name of the namespace."""
        self._client, self._ns, self._on_closed = client, ns, on_closed
        self._scope = TaskScope(f"objects of {ns.name}")
        self._readers: ObjectReaders

    async def start(
        self,
        *,
        process: str,
        settings: MachineSettings,
        policy: Mapping[str, Any],
        create: bool = True,
        mirror_of: str = "",
    ) -> Self:
        """Open the index. Raises NoSuchNamespace, NotMachineLog, and NoSuchStream without `create`.

        `mirror_of`: the index is kept as a mirror of the one with this uid; this process waits until it may write it.
        """
        client, ns = self._client, self._ns
        full = ns.log_name(LOG)
        await client.services.clocks.ensure()
        machine = await open_machine(
            client,
            ns,
            full,
            ObjectIndex,
            create=create,
            stand=False,
            process=process,
            settings=settings,
            policy=policy,
            mirror_of=mirror_of,
        )
        self._index = IndexClient(machine, patient=bool(mirror_of))
        try:
            head = (await ns.store.read(full)).head
            space = await Namespaces(ns.store).get(ns.name)
        except BaseException:
            await machine.close()
            raise
        self._own_policy, in_force = head.policy, merged(space.policy, head.policy)
        self._maker = LedgerMaker(client, ns.store, full, head, in_force, self._index, self._scope)
        self._packs = Packs(self._maker, self._index, self._scope)
        self._readers = ObjectReaders(client, StreamId(full, head.uid))
        rewriter = Rewriter(self._index, self._packs, self._readers)
        self._sweeper = Sweeper(client, ns.store, head.uid, self._index, rewriter)
        self._scope.keep(self._sweeper.run, "sweep")
        return self

    def __repr__(self) -> str:
        return f"<Objects {self.namespace}>"

    @property
    def ended(self) -> bool:
        """Return whether the handle was closed, or its replica of the index stopped: open the objects again."""
        return self._scope.closed or self._index.machine.role == "stopped"

    # -- writing ------------------------------------------------------------------------------------------

    async def put(
        self,
        name: str,
        data: Data,
        *,
        if_absent: bool = False,
        if_match: int | None = None,
        metadata: Mapping[str, str] | None = None,
        expires_s: float | None = None,
    ) -> ObjectInfo:
        """Put an object, replacing one of this name. Readers see either all of it, or the object before.

        `if_absent`: ObjectExists if the name is taken; `if_match`: ObjectChanged unless it has this version.
        `expires_s`: it goes by itself after so many seconds. If `data` raises an error, nothing is put. DataLost: this
        process passed for dead, and its bytes were given up; bytes are put again by themselves.
        """
        check_object_name(name)
        self._client.services.guard()
        when = condition(if_absent, if_match)
        more = extra(metadata, expires_s)
        for left in reversed(range(_TRIES)):
            stored = await self._store(data)
            put = {"size": stored.size, "digest": stored.digest, "extents": stored.extents, "sealed": stored.sealed}
            try:
                return told(
                    name, await self._name(name, stored, ["put", name, {**put, **more, **self._in_doubt()}, when])
                )
            except DataLost:
                self._packs.forget(stored.extents)
                if not left or not isinstance(data, bytes | bytearray | memoryview):
                    raise
        raise AssertionError("unreachable")

    async def _name(self, name: str, stored: Stored, command: builtins.list[Any]) -> Any:
        """Execute the command that puts stored bytes under a name. If that fails, nothing puts them there later."""
        try:
            return await self._execute(name, command)
        except BaseException:
            self._maker.give_up(stored.sealed)
            raise

    async def _store(self, data: Data) -> Stored:
        """Make the bytes durable, under no name yet."""
        pieces = pieces_of(data)
        first: list[bytes] = []
        size = 0
        async for piece in pieces:
            first.append(piece)
            size += len(piece)
            if size > SMALL_BYTES:
                return await write_large(self._maker, b"".join(first), pieces)
        whole = b"".join(first)
        digest = f"sha256:{hashlib.sha256(whole).hexdigest()}"
        return Stored(size, digest, [await self._packs.put(whole)] if whole else [])

    async def copy(self, source: str, name: str, *, if_absent: bool = False, if_match: int | None = None) -> ObjectInfo:
        """Put an object under another name as well, without reading its bytes."""
        check_object_name(name)
        command = ["copy", check_object_name(source), name, condition(if_absent, if_match)]
        return told(name, await self._execute(source, command))

    async def rename(self, source: str, name: str, *, if_absent: bool = False) -> None:
        """Give an object, or a directory with all that is in it, another name in one step.

        A directory's new name must be free: ObjectExists.
        """
        check_object_name(name)
        await self._execute(source, ["rename", check_object_name(source), name, condition(if_absent, None)])

    async def delete(self, name: str, *, if_match: int | None = None) -> None:
        """Delete an object. Raises NoSuchObject, ObjectChanged."""
        await self._execute(name, ["delete", check_object_name(name), condition(False, if_match)])

    # -- in parts -----------------------------------------------------------------------------------------

    async def begin_upload(self, name: str) -> int:
        """Begin an object that is put in parts, by any number of processes; returns the upload's number.

        Raises TooManyUploads when as many are open as the namespace may have.
        """
        space = await Namespaces(self._ns.store).get(self.namespace)
        most = merged(space.policy, self._own_policy).max_uploads
        return int(await self._execute(name, ["upload", check_object_name(name), most, *self._in_doubt().values()]))

    async def put_part(self, upload: int, number: int, data: Data) -> None:
        """Put part `number` (0 to 9999) of an upload, in the place of one of this number. Raises NoSuchObject."""
        await self.new_part(upload, number, data)

    async def new_part(self, upload: int, number: int, data: Data) -> PartInfo:
        """Put a part as `put_part` does, and return its information."""
        for what, value in (("upload", upload), ("number", number)):
            if type(value) is not int or value < 0:
                raise InvalidArgument(f"{what} {value!r}: needs an int from 0 on")
        stored = await self._store(data)
        part = ["part", upload, number, stored.size, stored.digest, stored.extents, stored.sealed]
        await self._name(f"upload {upload}", stored, part)
        return PartInfo(number, stored.size, stored.digest)

    async def complete_upload(
        self,
        upload: int,
        parts: int,
        *,
        if_absent: bool = False,
        if_match: int | None = None,
        metadata: Mapping[str, str] | None = None,
        expires_s: float | None = None,
    ) -> ObjectInfo:
        """Make the object of the parts 0 to parts-1, in one step. Raises UploadIncomplete, NoSuchObject."""
        if type(parts) is not int or not 1 <= parts <= MAX_PARTS:
            raise InvalidArgument(f"parts {parts!r}: needs an int from 1 to {MAX_PARTS}")
        put = {**extra(metadata, expires_s), "parts": parts, **self._in_doubt()}
        when = condition(if_absent, if_match)
        name, *row = await self._execute(f"upload {upload}", ["complete", upload, put, when])
        return told(name, row)

    async def abort_upload(self, upload: int) -> None:
        """Give an upload up; its space is freed. No-op if it does not exist."""
        await self._execute(f"upload {upload}", ["abort", upload])

    async def upload_name(self, upload: int) -> str | None:
        """Return the name of the object that an upload is for; None if there is no such upload."""
        return await self._index.look(lambda state: one.name if (one := state.uploads.get(upload)) else None)

    async def parts(self, upload: int, *, after: int = -1, limit: int = 1000) -> builtins.list[PartInfo]:
        """Return the parts of an upload so far, by number; an empty list at the end, or if there is no upload."""
        _check_limit(limit)

        def look(state: ObjectIndex) -> builtins.list[PartInfo]:
            parts = state.uploads[upload].parts if upload in state.uploads else {}
            numbers = heapq.nsmallest(limit, (number for number in parts if number > after))
            return [PartInfo(number, *parts[number][:2]) for number in numbers]

        return await self._index.look(look)

    async def uploads(self, *, prefix: str = "", after: int = 0, limit: int = 1000) -> builtins.list[UploadInfo]:
        """Uploads of objects whose names begin with `prefix`, in the order in which they began; an empty list is the
        end."""
        _check_limit(limit)

        def look(state: ObjectIndex) -> builtins.list[UploadInfo]:
            found = (one for one in state.uploads.items() if one[0] > after and one[1].name.startswith(prefix))
            return [upload_info(*one) for one in islice(found, limit)]

        return await self._index.look(look)

    # -- reading ------------------------------------------------------------------------------------------

    async def info(self, name: str) -> ObjectInfo:
        """Return an object's name, version, size, digest, times and metadata. Raises NoSuchObject."""
        return info_of(name, await self._row(name))

    async def _row(self, name: str) -> ObjectRow:
        check_object_name(name)
        row = await self._index.look(lambda state: state.node(name))
        if not isinstance(row, ObjectRow) or self._has_expired(row.expires_us or None):
            full = f"{self.namespace}/{name}"
            raise NoSuchObject(full, absent(full, "is a directory" if isinstance(row, Directory) else ""))
        return row

    def _has_expired(self, at_us: int | None) -> bool:
        return at_us is not None and self._client.services.clocks.ended(at_us)

    def _in_doubt(self) -> dict[str, int]:
        """Return the field of a command for a time in doubt, the latest that it may be; empty if it is certain.

        An object with an expiry then lives longer by as much, until the time is certain.
        """
        moment = self._client.services.clocks.moment()
        return {"latest_us": moment.high} if moment.why else {}

    async def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return an object's bytes, or `length` of them from `start` on (fewer at its end). Raises NoSuchObject."""
        return b"".join([piece async for piece in self.read(name, start=start, length=length)])

    async def read(
        self, name: str, *, start: int = 0, length: int | None = None, version: int | None = None
    ) -> AsyncIterator[bytes]:
        """Iterate over an object's bytes in pieces: `async for piece in objects.read(name)`.

        The whole object is compared with its digest while it is read: ObjectDamaged at the end if it differs.
        `version`: ObjectChanged at the beginning unless it has this one.
        """
        _, pieces = await self.reading(name, start=start, length=length, version=version)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def reading(
        self, name: str, *, start: int = 0, length: int | None = None, version: int | None = None
    ) -> tuple[ObjectInfo, AsyncGenerator[bytes, None]]:
        """Return the information on an object, and its bytes as `read` yields them, both of the same version."""
        for what, value in (("start", start), ("length", 0 if length is None else length)):
            if type(value) is not int or value < 0:
                raise InvalidArgument(f"{what} {value!r}: needs an int from 0 on")
        row = await self._row(name)
        stop = row.size if length is None else min(start + length, row.size)
        full = f"{self.namespace}/{name}"
        if version is not None and row.version != version:
            raise ObjectChanged(full, f"has version {row.version}, and {version} was to be read; read it again")
        return info_of(name, row), self._pieces(full, row, start, stop)

    async def _pieces(self, full: str, row: ObjectRow, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        kind, _, wanted = row.digest.partition(":")
        digest = hashlib.sha256() if kind == "sha256" and start == 0 and stop == row.size else None
        async for piece in self._readers.pieces(full, row, start, stop):
            if digest is not None and len(piece) >= _HASH_BESIDE:
                # Beside the loop, which receives the next pieces meanwhile.
                await asyncio.get_running_loop().run_in_executor(None, digest.update, piece)
            elif digest is not None:
                digest.update(piece)
            yield piece
        if digest is not None and digest.hexdigest() != wanted:
            raise ObjectDamaged(full, f"its bytes have the digest {digest.hexdigest()}, and {wanted} was put")

    async def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> builtins.list[ObjectInfo]:
        """Return objects whose names begin with `prefix` and are greater than `after`, in the order of their names.

        An empty list is the end. `limit`: 1 to 10,000.
        """
        _check_limit(limit)
        rows = await self._index.look(lambda state: state.listed(prefix, after, limit))
        return [info_of(name, row) for name, row in rows]

    # -- directories --------------------------------------------------------------------------------------

    async def mkdirs(self, path: str) -> bool:
        """Make a directory and those above it, which stay when empty. Return False if it exists. Raises NameBlocked."""
        return bool(await self._execute(path, ["mkdirs", check_object_name(path)]))

    async def status(self, path: str = "") -> ObjectInfo | DirectoryInfo:
        """Return the information on an object or a directory; the empty path is the namespace. Raises NoSuchObject."""
        (found,) = await self.statuses(path)
        if found is None:
            full = f"{self.namespace}/{path}"
            raise NoSuchObject(full, absent(full))
        return found

    async def statuses(self, *paths: str, proven: bool = True) -> builtins.list[ObjectInfo | DirectoryInfo | None]:
        """Return the information on several paths at one moment; None for a path that does not exist.

        `proven=False` saves the round to the bookies: for a look before a change, which decides by what is there then.
        """
        names = [check_object_name(path) if path else path for path in paths]
        found = await self._index.look(
            lambda state: [node_of(name, node) if (node := state.node(name)) else None for name in names],
            proven=proven,
        )
        return [None if isinstance(one, ObjectInfo) and self._has_expired(one.expires) else one for one in found]

    async def entries(
        self, path: str = "", *, after: ObjectInfo | DirectoryInfo | None = None, limit: int = 1000
    ) -> builtins.list[ObjectInfo | DirectoryInfo]:
        """Return the objects and directories directly in a directory, in order; `after` the last one continues.

        All of one call are of one moment. An empty list is the end. Raises NoSuchObject if it is no directory.
        """
        _check_limit(limit)
        name, last = check_object_name(path) if path else path, ""
        if after is not None:
            last = after.name.rpartition("/")[2] + ("/" if isinstance(after, DirectoryInfo) else "")

        def look(state: ObjectIndex) -> builtins.list[ObjectInfo | DirectoryInfo] | None:
            nodes = state.children(name, last, limit)
            return None if nodes is None else [node_of(full, node) for full, node in nodes]

        found = await self._index.look(look)
        if found is None:
            raise NoSuchObject(f"{self.namespace}/{name}", NO_DIRECTORY)
        return found

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete an object or a directory in one step; a filled directory with `recursive`, however much is in it.

        Raises NoSuchObject, DirectoryNotEmpty.
        """
        await self._execute(path, ["remove", check_object_name(path), bool(recursive)])

    # -- the end ------------------------------------------------------------------------------------------

    async def sweep(self, *, grace_s: float = 0.0) -> int:
        """Free space now, and not in half a minute; returns the number of ledgers deleted.

        It is the space of deleted and expired objects, and of writers that died. Ledgers given up in the last `grace_s`
        seconds are kept, because a reader may still use them.
        """
        if not isinstance(grace_s, int | float) or not 0 <= grace_s <= _MAX_GRACE_S:
            raise InvalidArgument(f"grace_s {grace_s!r}: needs seconds from 0 to {_MAX_GRACE_S:.0f}")
        await self._packs.seal()
        return await self._sweeper.sweep(grace_s, at_once=True)

    async def close(self) -> None:
        """Seal what this process wrote and give the index up. Idempotent."""
        if not self._scope.closed:
            self._client.services.check_loop()
        try:
            if not self._scope.closed:
                with suppress(MirrorStream):  # A side that was superseded by a mirror seals nothing any more.
                    await self._packs.seal()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Stop without sealing, as a crash would; what was put stays. Later sweeps seal what this process wrote."""
        await self._scope.close()
        await self._maker.presence.close()
        await self._readers.close()
        await self._index.machine.close()
        self._on_closed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _execute(self, name: str, command: builtins.list[Any]) -> Any:
        try:
            return await self._index.execute(command)
        except CommandRefused as refusal:
            raise refused(f"{self.namespace}/{name}", refusal) from None


def _check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= _MAX_LISTED:
        raise InvalidArgument(f"limit {limit!r}: needs an int from 1 to {_MAX_LISTED}")


__all__ = ["LOG", "Data", "DirectoryInfo", "ObjectInfo", "Objects"]
