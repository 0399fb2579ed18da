"""Files and directories by their paths: the interface, which the simulator has as well, and the operating system's."""

from __future__ import annotations

import os
import shutil
from typing import BinaryIO, Protocol, cast

from buckram.runtime.disk.syncing import sync_directory, sync_file


class PlainFiles(Protocol):
    """Files and directories by their paths, as places of history on a machine's own file system use them.

    Calls block, and raise OSError as those of `os` do.
    """

    def open(self, path: str, mode: str) -> BinaryIO:
        """Open a file, "rb" to read it or "wb" to write it anew."""
        ...

    def sync(self, opened: BinaryIO) -> None:
        """Make an open file durable; its name is durable only after `sync_directory`."""
        ...

    def sync_directory(self, path: str) -> None: ...
    def is_directory(self, path: str) -> bool: ...
    def names(self, path: str) -> list[str]: ...
    def make_directories(self, path: str) -> None: ...
    def replace(self, path: str, other: str) -> None:
        """Give a file another name, which may be that of a file: that one is gone then."""
        ...

    def link(self, path: str, other: str) -> None:
        """Give a file a second name. FileExistsError if the name is taken."""
        ...

    def unlink(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def remove_tree(self, path: str) -> None: ...


class OsFiles:
    """PlainFiles of the operating system."""

    def open(self, path: str, mode: str) -> BinaryIO:
        return cast(BinaryIO, open(path, mode))

    def sync(self, opened: BinaryIO) -> None:
        opened.flush()
        sync_file(opened.fileno())

    def sync_directory(self, path: str) -> None:
        sync_directory(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def replace(self, path: str, other: str) -> None:
        os.replace(path, other)

    def link(self, path: str, other: str) -> None:
        os.link(path, other)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)
