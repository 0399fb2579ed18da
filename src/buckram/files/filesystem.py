"""BuckramFileSystem: the objects of all namespaces of a cluster as one fsspec file system, and BuckramFile, one of its
files.

`fsspec.open("buckram://shop/2026/a.parquet", metadata=URI)`. The first part of a path is the namespace. A file is read
in ranges or written in blocks, and appears when it is closed, as a whole: a small one is put at once, a larger one is
uploaded in parts, so that memory is bounded by the block.
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
from buckram.core.objects.index import MAX_PARTS
from buckram.errors import (
    BuckramError,
    DirectoryNotEmpty,
    NameBlocked,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchObject,
    ObjectExists,
)
from buckram.extras import needed_for
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo

with needed_for("buckram.files.filesystem", "fsspec"):
    from fsspec import AbstractFileSystem
    from fsspec.spec import AbstractBufferedFile

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


BLOCK_BYTES = 16 * 1024 * 1024
"""Default size of one part of an upload, bytes."""
AHEAD_BYTES = 4 * 1024 * 1024
"""Default read-ahead of a file that is open for reading, bytes."""
_LARGEST_BLOCK = 1024 * 1024 * 1024


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Errors of objects as those that programs expect of files."""
    try:
        yield
    except (NoSuchObject, NoSuchNamespace) as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from error
    except (ObjectExists, NamespaceExists) as error:
        raise FileExistsError(errno.EEXIST, str(error), path) from error
    except (DirectoryNotEmpty, NamespaceNotEmpty) as error:
        raise OSError(errno.ENOTEMPTY, str(error), path) from error
    except NameBlocked as error:
        kind = IsADirectoryError if "is a directory" in str(error) else NotADirectoryError
        raise kind(errno.EISDIR if kind is IsADirectoryError else errno.ENOTDIR, str(error), path) from error


class BuckramFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is open for reading (rb) or writing (wb; xb: it must not exist when it is closed)."""

    fs: BuckramFileSystem

    def __init__(self, fs: BuckramFileSystem, path: str, mode: str, block_size: int | None, **options: Any) -> None:
        self._objects, self._name = fs.place(path)
        self._new = mode == "xb"
        self._upload: int | None = None
        self._parts = 0
        self._whole: bytes | None = None
        if self._new and fs.exists(path):
            raise FileExistsError(errno.EEXIST, "is there", path)
        self.blocksize: int = block_size or (AHEAD_BYTES if mode == "rb" else BLOCK_BYTES)
        super().__init__(fs, path, mode, self.blocksize, **options)
        if mode == "rb" and self.details["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)

    def _fetch_range(self, start: int, end: int) -> bytes:
        with translated(self.path):
            return self._objects.get(self._name, start=start, length=max(end - start, 0))

    def _initiate_upload(self) -> None:
        """Do nothing: the upload begins with the second block, as a file of one block needs none."""

    def _upload_chunk(self, final: bool = False) -> bool:
        """Send what is in the buffer; the last one makes the file, unless a transaction does that later."""
        data = self.buffer.getvalue()
        if final and self._upload is None:
            self._whole = data
        else:
            if self._upload is None:
                self._upload = self._objects.begin_upload(self._name)
            if data or not self._parts:
                self._objects.put_part(self._upload, self._parts, data)
                self._parts += 1
            if self._parts >= MAX_PARTS // 2:
                # Very large files go on in larger blocks, as an upload has so many parts at most.
                self.blocksize = min(2 * self.blocksize, _LARGEST_BLOCK)
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Put the written bytes as an object, so that the file exists."""
        with translated(self.path):
            if self._upload is not None:
                self._objects.complete_upload(self._upload, self._parts, if_absent=self._new)
            elif self._whole is not None:
                self._objects.put(self._name, self._whole, if_absent=self._new)

    def close(self) -> None:
        """Put the written bytes as an object and close the file, which is closed even if that fails: a retry is the
        caller's decision.
        """
        try:
            super().close()
        finally:
            self.closed = True

    def discard(self) -> None:
        """Discard the written bytes without making a file."""
        self._whole = None
        upload, self._upload = self._upload, None
        if upload is not None:
            self._objects.abort_upload(upload)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Close the file; if the block failed, discard what was written instead."""
        if error is not None and self.mode != "rb":
            self.closed = True
            try:
                self.discard()
            except BuckramError:
                return  # The error of the block is the one to report; an upload that was left goes after a week.
            return
        super().__exit__(kind, error, trace)
