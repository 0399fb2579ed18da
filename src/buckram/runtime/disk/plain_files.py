"""Files of this machine's file system by their paths: seams.PlainFiles over `os`."""

from __future__ import annotations

import os
import shutil
from typing import BinaryIO, cast

from buckram.runtime.disk.syncing import sync_directory, sync_file


class OsFiles:
    """seams.PlainFiles of the operating system."""

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
