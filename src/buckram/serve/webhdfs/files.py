"""Files: the rules of Hadoop's file systems on the objects of namespaces.

A file is seen when all of it is there. A rename is one step and, unless asked to, replaces nothing; directories stay
when their last file goes. Not here: HTTP (`server.py`), names and directories themselves (`core/objects/`).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from buckram.cluster import Client
from buckram.errors import (
    BuckramError,
    HandleClosed,
    NameBlocked,
    NoSuchNamespace,
    NoSuchObject,
    ObjectExists,
    ReplicaStopped,
)
from buckram.errors.streams import StreamError
from buckram.runtime.process.handle_cache import BorrowedHandle, HandleCache
from buckram.serve.webhdfs.limits import FileLimits
from buckram.serve.webhdfs.paths import FilePath
from buckram.serve.webhdfs.problems import RemoteProblem
from buckram.serve.webhdfs.protocol_names import ABSENT, ACCESS, EXISTS, FILLED, INPUT_OUTPUT, NO_DIRECTORY
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo, Objects
from buckram.streams.shared.namespaces import all_namespaces

Info = ObjectInfo | DirectoryInfo
CREATED = "webhdfs.created"
"""Metadata key of a file: the name under which it was created. It identifies a rename that is repeated because its
answer was lost.
"""
ATTEMPTED = "webhdfs.attempt"
"""Metadata key of a file that was to replace nothing: the request that created it, so that its repetition succeeds."""
_REFUSALS = (RemoteProblem, ObjectExists, NameBlocked, NoSuchObject)
"""Errors of a change that is not possible, or no longer since it was looked at."""


class Files:
    """The files of all namespaces. `shelf` has their objects open; opening raises NoSuchNamespace."""

    def __init__(self, client: Client, limits: FileLimits, shelf: HandleCache[Objects]) -> None:
        self._client, self._limits, self._shelf = client, limits, shelf

    async def take(self, path: FilePath) -> BorrowedHandle[Objects]:
        """The objects that a path is of, until `give` is called. Raises NoSuchNamespace."""
        return await self._shelf.take(path.namespace)

    @asynccontextmanager
    async def _objects(self, path: FilePath) -> AsyncIterator[Objects]:
        async with self._shelf.use(path.namespace) as objects:
            yield objects

    async def cause(self, path: FilePath, error: BuckramError) -> BuckramError:
        """Return the error for the client: an index that stopped because its namespace was deleted becomes that
        reason.
        """
        if path.namespace and isinstance(error, HandleClosed | ReplicaStopped | StreamError):
            try:
                await self._client.namespaces.get(path.namespace)
            except NoSuchNamespace as gone:
                return gone
            except BuckramError:
                pass
        return error

    # -- looking ------------------------------------------------------------------------------------------

    async def namespaces(self) -> list[str]:
        """All namespaces, in order."""
        return [name async for name in all_namespaces(self._client.namespaces)]

    async def status(self, path: FilePath) -> Info:
        """Return the file or directory at a path below the root. Raises RemoteProblem."""
        async with self._objects(path) as objects:
            return await _needed(objects, path)

    async def file(self, path: FilePath) -> ObjectInfo:
        """The same of a file. Raises RemoteProblem."""
        info = await self.status(path)
        if isinstance(info, DirectoryInfo):
            raise RemoteProblem(ABSENT, f"{path} is a directory and no file")
        return info

    async def page(self, path: FilePath, after: str) -> tuple[list[Info], int]:
        """Entries of a directory after the name `after`, of one moment, and how many there may be behind them."""
        async with self._objects(path) as objects:
            last = (await objects.statuses(path.child(after).name))[0] if after else None
            if after and last is None:
                # It went meanwhile: begin where it was, as a file.
                last = ObjectInfo(path.child(after).name, 0, 0, "", 0, None, {})
            found = await objects.entries(path.name, after=last, limit=self._limits.page)
            more = len(found) == self._limits.page
            return found, int(more and bool(await objects.entries(path.name, after=found[-1], limit=1)))

    async def pages(self, path: FilePath) -> AsyncIterator[list[Info]]:
        """All entries of a directory; those of a page are of one moment."""
        async with self._objects(path) as objects:
            page = await objects.entries(path.name, limit=self._limits.page)
            while page:
                yield page
                if len(page) < self._limits.page:
                    return
                page = await objects.entries(path.name, after=page[-1], limit=self._limits.page)

    async def summary(self, path: FilePath, sees: Callable[[str], bool]) -> tuple[int, int, int]:
        """Files, directories and bytes at a path and below, as far as the names may be seen. Raises RemoteProblem."""
        info = await self.status(path)
        if isinstance(info, ObjectInfo):
            return 1, 0, info.size
        files, directories, size = 0, 1, 0
        waiting = [path]
        while waiting:
            async for page in self.pages(waiting.pop()):
                for one in page:
                    if not sees(one.name):
                        continue
                    if isinstance(one, DirectoryInfo):
                        directories += 1
                        waiting.append(FilePath(path.namespace, one.name))
                    else:
                        files += 1
                        size += one.size
        return files, directories, size

    # -- changing -----------------------------------------------------------------------------------------

    async def check_new(self, path: FilePath, overwrite: bool) -> None:
        """Check before the bytes are sent that a file can be created. Raises RemoteProblem, and ObjectExists for a
        file that exists already and is not to be replaced.
        """
        _check_is_below(path)

        async def check(proven: bool) -> None:
            present, *above = await objects.statuses(path.name, *_directories_above(path), proven=proven)
            if isinstance(present, DirectoryInfo):
                raise RemoteProblem(EXISTS, f"{path} is a directory")
            if present is not None and not overwrite:
                raise ObjectExists(str(path), "is there already; overwrite=true replaces it")
            _check_directories(path, above)

        async with self._objects(path) as objects:
            await _refused_with_proof(check)

    async def create(
        self, path: FilePath, pieces: AsyncIterable[bytes], overwrite: bool, attempt: str = ""
    ) -> ObjectInfo:
        """Put a file and the directories above it. Nothing is created if `pieces` raises. Raises RemoteProblem.

        `attempt`: an id of this request, which may be repeated; a file that the same request put is no conflict then.
        """
        _check_is_below(path)
        async with self._objects(path) as objects:
            (above,) = await objects.statuses(path.parent.name, proven=False)
            await _keep(objects, path.parent, above)
            about = {CREATED: path.name} | ({ATTEMPTED: attempt} if attempt and not overwrite else {})
            try:
                return await objects.put(path.name, pieces, if_absent=not overwrite, metadata=about)
            except ObjectExists:
                (present,) = await objects.statuses(path.name)
                if attempt and isinstance(present, ObjectInfo) and present.metadata.get(ATTEMPTED) == attempt:
                    return present
                raise
            except NameBlocked:
                (present,) = await objects.statuses(path.name)
                if isinstance(present, DirectoryInfo):
                    raise RemoteProblem(EXISTS, f"{path} is a directory") from None
                raise

    async def mkdirs(self, path: FilePath) -> None:
        """Make a directory and all above it; one that is there stays. Raises RemoteProblem."""
        if not path.namespace:
            return
        async with self._objects(path) as objects:
            for left in (1, 0):
                (present,) = await objects.statuses(path.name)
                if isinstance(present, ObjectInfo):
                    raise RemoteProblem(EXISTS, f"{path} is a file")
                try:
                    await _keep(objects, path, present)
                    return
                except RemoteProblem:  # It may have become a file since the look.
                    if not left:
                        raise

    async def delete(self, path: FilePath, recursive: bool, *, repeated: bool = False) -> bool:
        """Delete a file or a directory in one step; return False if there was none. Raises RemoteProblem.

        `repeated`: the request was sent before, so a path that is absent counts as deleted by it.
        """
        if not path.name:
            raise RemoteProblem(
                ACCESS, f"{path} is a namespace or the root: `buckram namespace delete` deletes a namespace"
            )
        async with self._objects(path) as objects:
            present, above = await objects.statuses(path.name, path.parent.name, proven=False)
            if present is None:
                present, above = await objects.statuses(path.name, path.parent.name)
            if present is None:
                return repeated
            if not recursive:
                await _check_is_bare(objects, path, present)
            await _keep(objects, path.parent, above)
            try:
                await objects.remove(path.name, recursive=recursive)
            except NoSuchObject:
                return repeated
            return True

    async def rename(self, source: FilePath, target: FilePath, *, replace: bool, repeated: bool = False) -> None:
        """Rename as `rename2` does: the target must be free, or with `replace` a file or an empty directory.

        Raises RemoteProblem. A rename of a created file that was done already is no error. `repeated`: this was sent
        before, so a target that is there without its source was renamed by it, also a directory.
        """
        _check_rename(source, target)

        async def attempt(proven: bool) -> None:
            around = await _around(objects, source, target, proven)
            info, present = around.source, around.target
            if info is None:
                if proven and (_was_renamed(present, source) or (repeated and present is not None)):
                    return
                raise RemoteProblem(ABSENT, f"rename: {source} does not exist")
            if source == target:
                raise RemoteProblem(EXISTS, f"rename: source and target are both {source}")
            if present is not None and not replace:
                raise RemoteProblem(EXISTS, f"rename: {target} is there already")
            _check_above_target(around.above_target, target)
            if present is not None:
                await _make_way(objects, target, present, info)
            await _move(objects, source, target, around, replace)

        async with self._objects(source) as objects:
            await _refused_with_proof(attempt)

    async def rename_into(self, source: FilePath, target: FilePath, *, repeated: bool = False) -> bool:
        """Rename as `rename` does: into a directory that is there, and False where it cannot be done."""
        try:
            _check_rename(source, target)
        except RemoteProblem:
            return False
        async with self._objects(source) as objects:
            for proven in (False, True):
                if await _rename_into(objects, source, target, proven=proven, repeated=repeated):
                    return True
            return False


class Around(NamedTuple):
    """State of the paths that a rename concerns, read at one moment."""

    source: Info | None
    target: Info | None
    above_source: Info | None
    above_target: Info | None


async def _around(objects: Objects, source: FilePath, target: FilePath, proven: bool) -> Around:
    paths = (source, target, source.parent, target.parent)
    return Around(*await objects.statuses(*(path.name for path in paths), proven=proven))


async def _refused_with_proof(attempt: Callable[[bool], Awaitable[None]]) -> None:
    """Attempt a change by the state known to this process, as the change itself proves the leadership; before
    refusing, attempt it once more by proven state, which also has what came between the look and the change.
    """
    try:
        await attempt(False)
    except _REFUSALS:
        await attempt(True)


async def _rename_into(objects: Objects, source: FilePath, target: FilePath, *, proven: bool, repeated: bool) -> bool:
    around = await _around(objects, source, target, proven)
    if proven and repeated and around.source is None and around.target is not None:
        return True
    if isinstance(around.target, DirectoryInfo) and source != target:
        target = target.child(source.name.rpartition("/")[2])
        around = await _around(objects, source, target, proven)
    if around.source is None:
        return proven and _was_renamed(around.target, source)
    if source == target:
        return proven and isinstance(around.source, ObjectInfo)
    if around.target is not None or target.within(source):
        return False
    try:
        _check_above_target(around.above_target, target)
        await _move(objects, source, target, around, False)
    except _REFUSALS:
        return False
    return True


def _was_renamed(present: Info | None, source: FilePath) -> bool:
    """Return whether the present file was created under the name of the source, so that the rename was done before."""
    return isinstance(present, ObjectInfo) and present.metadata.get(CREATED) == source.name


def _check_above_target(found: Info | None, target: FilePath) -> None:
    above = target.parent
    if found is None:
        raise RemoteProblem(ABSENT, f"rename: {above} does not exist, so nothing can be in it: make it first")
    if isinstance(found, ObjectInfo):
        raise RemoteProblem(NO_DIRECTORY, f"rename: {above} is a file and no directory")


async def _move(objects: Objects, source: FilePath, target: FilePath, around: Around, replace: bool) -> None:
    for path, found in {source.parent: around.above_source, target.parent: around.above_target}.items():
        await _keep(objects, path, found)
    await objects.rename(source.name, target.name, if_absent=not replace)


def _check_is_below(path: FilePath) -> None:
    if not path.name:
        raise RemoteProblem(EXISTS, f"{path} is a directory: files are in namespaces, as in /default/orders/part")


def _check_rename(source: FilePath, target: FilePath) -> None:
    if not source.name or not target.namespace:
        raise RemoteProblem(ACCESS, f"rename: {source} to {target}: namespaces and the root cannot be renamed")
    if source.namespace != target.namespace:
        raise RemoteProblem(INPUT_OUTPUT, f"rename: {source} and {target} are of two namespaces: copy it, and delete")
    if target.within(source):
        raise RemoteProblem(INPUT_OUTPUT, f"rename: {target} is below {source}")


async def _needed(objects: Objects, path: FilePath) -> Info:
    (found,) = await objects.statuses(path.name)
    if found is None:
        raise RemoteProblem(ABSENT, f"File does not exist: {path}")
    return found


async def _check_is_bare(objects: Objects, path: FilePath, present: Info) -> None:
    """Raises RemoteProblem for a directory with anything in it, also an empty one, which objects remove with it."""
    if isinstance(present, DirectoryInfo) and present.children:
        (present_now,) = await objects.statuses(path.name)
        if isinstance(present_now, DirectoryInfo) and present_now.children:
            raise RemoteProblem(FILLED, f"directory {path} is not empty, so only a recursive delete removes it")


def _directories_above(path: FilePath) -> list[str]:
    """Their names, the nearest first."""
    parts = path.name.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]


def _check_directories(path: FilePath, above: Sequence[Info | None]) -> None:
    """Raises RemoteProblem if a file is where a directory has to be."""
    for info in above:
        if isinstance(info, ObjectInfo):
            raise RemoteProblem(NO_DIRECTORY, f"{path}: /{path.namespace}/{info.name} is a file and no directory")


async def _keep(objects: Objects, path: FilePath, found: Info | None) -> None:
    """Make a directory explicit, so that it stays when it is empty; `found` is what is there."""
    if not path.name or (isinstance(found, DirectoryInfo) and found.kept):
        return
    try:
        await objects.mkdirs(path.name)
    except NameBlocked as error:
        raise RemoteProblem(NO_DIRECTORY, str(error)) from None


async def _make_way(objects: Objects, target: FilePath, present: Info, info: Info) -> None:
    """Prepare a rename that replaces the target: raise RemoteProblem if file and directory would replace each other or
    the directory is not empty; remove an empty one.
    """
    if isinstance(present, DirectoryInfo) != isinstance(info, DirectoryInfo):
        kinds = [("directory" if isinstance(one, DirectoryInfo) else "file") for one in (present, info)]
        raise RemoteProblem(INPUT_OUTPUT, f"rename: {target} is a {kinds[0]}, and a {kinds[1]} cannot replace it")
    if isinstance(present, DirectoryInfo):
        if present.children:
            raise RemoteProblem(FILLED, f"rename: directory {target} is not empty, so nothing can replace it")
        await objects.remove(target.name)
