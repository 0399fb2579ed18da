"""BuckramFileSystem: the objects of all namespaces of a cluster as one fsspec file system.

`fsspec.open("buckram://shop/2026/a.parquet", metadata=URI)`. The first part of a path is the namespace. A file appears
when it is closed, as a whole. Not here: writing and reading one file (`files/file.py`).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from glob import has_magic
from typing import Any

from buckram import sync
from buckram.errors import (
    BuckramError,
    ObjectExists,
)
from buckram.extras import needed_for
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo

with needed_for("buckram.files.filesystem", "fsspec"):
    from fsspec import AbstractFileSystem

    from buckram.files.file import BuckramFile, translated

_PAGE = 1000


class BuckramFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files are objects, directories those of objects. `metadata`: the cluster, as for `buckram.connect`.

    Renaming a file or a directory and deleting a directory with all that is in it are single steps within a namespace.
    """

    protocol = "buckram"
    root_marker = ""

    def __init__(self, metadata: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._metadata = metadata
        self._lock = threading.Lock()
        self._client: sync.Client | None = None
        self._objects: dict[str, sync.Objects] = {}

    # -- the cluster --------------------------------------------------------------------------------------

    def objects(self, namespace: str) -> sync.Objects:
        """The objects of a namespace, opened once, and again where they ended. Raises FileNotFoundError."""
        with self._lock:
            found = self._objects.get(namespace)
            if found is None or found.ended:
                with translated(namespace):
                    opened = self._objects[namespace] = self._connected().objects(namespace)
                if found is not None:
                    with suppress(BuckramError):
                        found.close()
                return opened
            return found

    def _connected(self) -> sync.Client:
        if self._client is None:
            self._client = sync.connect(self._metadata)
        return self._client

    def close(self) -> None:
        """Let go of the cluster; the next call connects again. Programs that just end need not call it."""
        with self._lock:
            objects, self._objects = self._objects, {}
            client, self._client = self._client, None
        for one in objects.values():
            one.close()
        if client is not None:
            client.close()

    def place(self, path: str) -> tuple[sync.Objects, str]:
        """A path's objects and the name among them. Raises FileNotFoundError, IsADirectoryError for a namespace."""
        namespace, _, name = self._strip_protocol(path).partition("/")
        if not name:
            raise IsADirectoryError(errno.EISDIR, "is a namespace and no file", path)
        return self.objects(namespace), name

    # -- looking ------------------------------------------------------------------------------------------

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Return the description of a path: `name`, `size`, `type`, and for an object also `digest`, `version`,
        `created`.
        """
        namespace, _, name = self._strip_protocol(path).partition("/")
        if not namespace:
            return {"name": "", "size": 0, "type": "directory"}
        with translated(path):
            return _described(namespace, self.objects(namespace).status(name))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Return the children of a directory, or the file itself if the path is one; names only with `detail=False`."""
        path = self._strip_protocol(path)
        namespace, _, name = path.partition("/")
        found: list[dict[str, Any]]
        if not namespace:
            spaces: list[str] = []
            with self._lock:
                while page := self._connected().namespaces.list(after=spaces[-1] if spaces else ""):
                    spaces += page
            found = [{"name": space, "size": 0, "type": "directory"} for space in spaces]
        else:
            found = self._children(namespace, name, path)
        return found if detail else [one["name"] for one in found]

    def _children(self, namespace: str, name: str, path: str) -> list[dict[str, Any]]:
        objects = self.objects(namespace)
        found: list[dict[str, Any]] = []
        with translated(path):
            status = objects.status(name)
            if isinstance(status, ObjectInfo):
                return [_described(namespace, status)]
            page = objects.entries(name, limit=_PAGE)
            while page:
                found += [_described(namespace, one) for one in page]
                page = objects.entries(name, after=page[-1], limit=_PAGE)
        return found

    def created(self, path: str) -> datetime:
        """Return when a file was put."""
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        """Return when a file was put, or when a child of a directory was last added or removed."""
        found: datetime = self.info(path)["created"]
        return found

    def checksum(self, path: str) -> str:
        """The digest of a file's bytes."""
        return str(self.info(path)["digest"])

    # -- changing -----------------------------------------------------------------------------------------

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Make a directory, or a namespace. Raises FileExistsError."""
        namespace, _, name = self._strip_protocol(path).partition("/")
        if not name:
            with translated(path), self._lock:
                self._connected().namespaces.create(namespace)
            return
        objects = self.objects(namespace)
        above = name.rpartition("/")[0]
        with translated(path):
            if not create_parents and above:
                objects.status(above)
            if not objects.mkdirs(name):
                raise FileExistsError(errno.EEXIST, "is there", path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and all above it. Raises FileExistsError."""
        with suppress(FileExistsError) if exist_ok else _nothing():
            self.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Delete an empty directory, or an empty namespace."""
        namespace, _, name = self._strip_protocol(path).partition("/")
        if name:
            with translated(path):
                self.objects(namespace).remove(name)
            return
        with self._lock, translated(path):
            objects = self._objects.pop(namespace, None)
            if objects is not None:
                objects.close()
            self._connected().namespaces.delete(namespace)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files; with `recursive` directories, each in one step however much is in it."""
        if maxdepth is not None:
            super().rm(path, recursive, maxdepth)
            return
        for one in self.expand_path(path):
            objects, name = self.place(one)
            with translated(one):
                if not recursive and isinstance(objects.status(name), DirectoryInfo):
                    raise IsADirectoryError(errno.EISDIR, "is a directory: delete it with recursive=True", one)
                objects.remove(name, recursive=recursive)

    def _rm(self, path: str) -> None:
        objects, name = self.place(path)
        with translated(path):
            objects.remove(name)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Rename a file or a directory, in one step within a namespace. A file that is there is replaced."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if source.partition("/")[0] != target.partition("/")[0] or has_magic(source) or maxdepth is not None:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        objects, name = self.place(source)
        with translated(path1):
            objects.rename(name, self.place(target)[1])

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """Copy a file, without reading it within a namespace; of a directory, make one."""
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        source, name = self.place(path1)
        target, other = self.place(path2)
        with translated(path1):
            if source is target:
                source.copy(name, other)
            else:
                with self.open(path1, "rb") as reading, self.open(path2, "wb") as writing:
                    while piece := reading.read(reading.blocksize):
                        writing.write(piece)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Put a file of these bytes; `mode` "create": FileExistsError if it is there."""
        objects, name = self.place(path)
        with translated(path):
            objects.put(name, value, if_absent=mode == "create")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """The bytes of a file from `start` to `end`; negative ones count from the end."""
        objects, name = self.place(path)
        with translated(path):
            if (start or 0) < 0 or (end is not None and end < 0):
                status = objects.info(name)
                start, end, _ = slice(start, end).indices(status.size)
            begin = start or 0
            return objects.get(name, start=begin, length=None if end is None else max(end - begin, 0))

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        """Make an empty file, in the place of one that is there if `truncate`."""
        objects, name = self.place(path)
        with translated(path):
            try:
                objects.put(name, b"", if_absent=not truncate)
            except ObjectExists:
                objects.copy(name, name)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> BuckramFile:
        if mode not in ("rb", "wb", "xb"):
            raise ValueError(f"mode {mode!r} of {path}: objects are immutable, so choose rb, wb or xb")
        block = None if block_size in (None, "default") else int(block_size)
        options.pop("autocommit", None) if mode == "rb" else None
        return BuckramFile(self, path, mode, block, **options)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _described(namespace: str, info: ObjectInfo | DirectoryInfo) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": f"{namespace}/{info.name}".rstrip("/"),
        "created": datetime.fromtimestamp(info.time / 1e6, UTC),
    }
    if isinstance(info, DirectoryInfo):
        return {**found, "size": 0, "type": "directory"}
    more = {"digest": info.digest, "version": info.version, "metadata": dict(info.metadata)}
    return {**found, **more, "size": info.size, "type": "file"}
