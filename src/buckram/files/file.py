"""BuckramFile: one file of BuckramFileSystem, read in ranges or written in blocks and put when it is closed.

A small file is put at once, a larger one is uploaded in parts, so that memory is bounded by the block.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile

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

if TYPE_CHECKING:
    from buckram.files.filesystem import BuckramFileSystem

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
