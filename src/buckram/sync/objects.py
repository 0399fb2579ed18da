"""The blocking face of objects."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from types import TracebackType

from buckram.client.shared.handles import NotAsync
from buckram.state.objects.objects import Data, DirectoryInfo, ObjectInfo
from buckram.state.objects.objects import Objects as _Objects
from buckram.sync.thread import LoopThread, each


class Objects(NotAsync):
    """Objects without async; see buckram.Objects. Safe to use from several threads; `with` or close()."""

    def __init__(self, thread: LoopThread, objects: _Objects) -> None:
        self._thread, self._objects = thread, objects
        self.namespace = objects.namespace
        """The namespace's name."""

    def __repr__(self) -> str:
        return repr(self._objects).replace("<", "<sync.", 1)

    @property
    def ended(self) -> bool:
        """True if it was closed, or its replica of the index stopped: open the objects again."""
        return self._objects.ended

    def put(
        self,
        name: str,
        data: Data,
        *,
        if_absent: bool = False,
        if_match: int | None = None,
        metadata: Mapping[str, str] | None = None,
        expires_s: float | None = None,
    ) -> ObjectInfo:
        """Put an object, whole or not at all; a file is read in a thread of its own."""
        return self._thread.run(
            lambda: self._objects.put(
                name, data, if_absent=if_absent, if_match=if_match, metadata=metadata, expires_s=expires_s
            )
        )

    def copy(self, source: str, name: str, *, if_absent: bool = False, if_match: int | None = None) -> ObjectInfo:
        """Put an object under another name as well, without reading its bytes."""
        return self._thread.run(lambda: self._objects.copy(source, name, if_absent=if_absent, if_match=if_match))

    def rename(self, source: str, name: str, *, if_absent: bool = False) -> None:
        """Give an object, or a directory with all that is in it, another name in one step."""
        self._thread.run(lambda: self._objects.rename(source, name, if_absent=if_absent))

    def delete(self, name: str, *, if_match: int | None = None) -> None:
        """Delete an object."""
        self._thread.run(lambda: self._objects.delete(name, if_match=if_match))

    def begin_upload(self, name: str) -> int:
        """Begin an object that is put in parts; returns the upload's number."""
        return self._thread.run(lambda: self._objects.begin_upload(name))

    def put_part(self, upload: int, number: int, data: Data) -> None:
        """Put part `number` of an upload."""
        self._thread.run(lambda: self._objects.put_part(upload, number, data))

    def complete_upload(
        self,
        upload: int,
        parts: int,
        *,
        if_absent: bool = False,
        if_match: int | None = None,
        metadata: Mapping[str, str] | None = None,
        expires_s: float | None = None,
    ) -> ObjectInfo:
        """Make the object of the parts 0 to parts-1, in one step."""
        return self._thread.run(
            lambda: self._objects.complete_upload(
                upload, parts, if_absent=if_absent, if_match=if_match, metadata=metadata, expires_s=expires_s
            )
        )

    def abort_upload(self, upload: int) -> None:
        """Give an upload up."""
        self._thread.run(lambda: self._objects.abort_upload(upload))

    def info(self, name: str) -> ObjectInfo:
        """Return the metadata of an object."""
        return self._thread.run(lambda: self._objects.info(name))

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return an object's bytes, or `length` of them from `start` on."""
        return self._thread.run(lambda: self._objects.get(name, start=start, length=length))

    def read(
        self, name: str, *, start: int = 0, length: int | None = None, version: int | None = None
    ) -> Iterator[bytes]:
        """Iterate over an object's bytes in pieces; `version`: raises ObjectChanged unless it has this one."""
        self._thread.check()
        pieces = self._objects.read(name, start=start, length=length, version=version)

        async def step() -> bytes | None:
            return await anext(pieces, None)

        return each(self._thread, step, pieces)

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> builtins.list[ObjectInfo]:
        """Objects in the order of their names; an empty list is the end."""
        return self._thread.run(lambda: self._objects.list(prefix=prefix, after=after, limit=limit))

    def mkdirs(self, path: str) -> bool:
        """Make a directory and all above it, to stay when they are empty. False: it was there."""
        return self._thread.run(lambda: self._objects.mkdirs(path))

    def status(self, path: str = "") -> ObjectInfo | DirectoryInfo:
        """Return the metadata of an object or a directory."""
        return self._thread.run(lambda: self._objects.status(path))

    def entries(
        self, path: str = "", *, after: ObjectInfo | DirectoryInfo | None = None, limit: int = 1000
    ) -> builtins.list[ObjectInfo | DirectoryInfo]:
        """Return the objects and directories directly in a directory; an empty list is the end."""
        return self._thread.run(lambda: self._objects.entries(path, after=after, limit=limit))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete an object or a directory in one step; a filled directory with `recursive`."""
        self._thread.run(lambda: self._objects.remove(path, recursive=recursive))

    def sweep(self, *, grace_s: float = 0.0) -> int:
        """Give space back now; returns the number of ledgers deleted."""
        return self._thread.run(lambda: self._objects.sweep(grace_s=grace_s))

    def close(self) -> None:
        """Seal what this process wrote and give the index up. Idempotent."""
        self._thread.run(self._objects.close)

    def __enter__(self) -> Objects:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread.forked:
            self.close()
