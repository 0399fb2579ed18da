"""A place of history in the simulator: a file system whose unsynced files a loss of power takes, or a store of objects.

The same files have two faces: `PosixFace` is PlainFiles of `runtime/disk/plain_files.py`, which needs syncs for files
and for the names in a directory; `ObjectFace` is a file system of fsspec, where a file is there as a whole and durable
at once. Faults are set at the place: calls that fail or come late, bytes that change on their way in, listings that
lack what is new, a place that is not mounted. `ops` counts changes, in any of which the process that makes it may die.
"""

from __future__ import annotations

import errno
import io
import posixpath
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, cast

from fsspec import AbstractFileSystem

from simulator.engine.loop import PROCESS, Crashed, SimLoop

ROOT = "/history"
"""The mount of the place, as one that is synced like a directory."""
SCHEME = "archive"
BUCKET = "archive://bucket"


class PlacedFile:
    """A file: the bytes that readers get, and those that a loss of power leaves; None if it was never synced."""

    __slots__ = ("data", "synced")

    def __init__(self, data: bytes = b"", synced: bytes | None = None) -> None:
        self.data, self.synced = data, synced


class Place:
    """The files of one life, by path. `removed` is told of each file that loses its name by a removal."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.files: dict[str, PlacedFile] = {}
        self.durable: dict[str, PlacedFile] = {}
        """The names that a loss of power leaves."""
        self.directories: dict[str, None] = {ROOT: None}
        self.durable_directories: dict[str, None] = {ROOT: None}
        self.removed: Callable[[str, str], None] = lambda who, path: None
        self.ops = 0
        self.crash_at_op: int | None = None
        self.fail_writes = self.fail_reads = self.change_bytes = self.late_chance = 0.0
        self.late_s = self.lag_s = 0.0
        self.away = False
        self.appeared: dict[str, float] = {}
        self.hidden: dict[str, None] = {}
        """Names that a listing lacked because they were new: whoever removes what is listed leaves them."""
        self.faults_met: dict[str, int] = {}

    # -- faults

    def met(self, what: str) -> None:
        self.faults_met[what] = self.faults_met.get(what, 0) + 1

    def heal(self) -> None:
        self.fail_writes = self.fail_reads = self.change_bytes = self.late_chance = self.late_s = self.lag_s = 0.0
        self.away, self.crash_at_op = False, None

    def job_late_s(self) -> float:
        """Return by how much the next job of a thread is late."""
        if not self.late_chance or self.rng.random() >= self.late_chance:
            return 0.0
        self.met("late")
        return self.rng.random() * self.late_s

    def changing(self) -> bool:
        """Count a change; raise OSError if it fails. Return whether its process dies in it, once it is made."""
        self.reachable()
        self.ops += 1
        if self.rng.random() < self.fail_writes:
            self.met("write failed")
            raise OSError(self.rng.choice((errno.EIO, errno.ENOSPC)), "the place fails")
        return self.crash_at_op is not None and self.ops >= self.crash_at_op

    def die(self, dies: bool) -> None:
        if dies:
            self.crash_at_op = None
            self.met("died")
            process = PROCESS.get(self.loop.world)
            process.crash()
            raise Crashed(process.name)

    def reading(self) -> None:
        self.reachable()
        if self.rng.random() < self.fail_reads:
            self.met("read failed")
            raise OSError(errno.EIO, "the place fails")

    def reachable(self) -> None:
        PROCESS.get(self.loop.world).check_alive()
        if self.away:
            self.met("away")
            raise OSError(errno.ENOTCONN, "the place is not mounted")

    def written(self, data: bytes) -> bytes:
        """Return the bytes that arrive when these are written."""
        if data and self.rng.random() < self.change_bytes:
            self.met("bytes changed")
            at = self.rng.randrange(len(data))
            return data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]
        return data

    def lose_power(self) -> None:
        """Forget what was not synced: of names and bytes that were not, the seed chooses which are left."""
        rng, before = self.rng, self.files
        kept = dict(self.durable)
        for path in {**before, **self.durable}:
            if before.get(path) is not self.durable.get(path) and rng.random() < 0.5:
                self.met("names lost")
                if path in before:
                    kept[path] = before[path]
                else:
                    kept.pop(path, None)
        self.directories = {path: None for path in self.directories if self.is_durable_directory(path)}
        self.durable_directories = dict(self.directories)
        self.files = {path: self._survivor(file) for path, file in kept.items() if self._has_parent(path)}
        self.durable = dict(self.files)

    def is_durable_directory(self, path: str) -> bool:
        """Return whether a directory is there after a loss of power: its own name is durable, and those above it."""
        while path != ROOT:
            if path not in self.durable_directories:
                return False
            path = posixpath.dirname(path)
        return True

    def durable_bytes(self, path: str) -> bytes | None:
        """Return what a loss of power leaves of a file for certain; None if that is nothing."""
        file = self.durable.get(path)
        if file is None or not (path.startswith(BUCKET) or self.is_durable_directory(posixpath.dirname(path))):
            return None
        return file.synced

    def _survivor(self, file: PlacedFile) -> PlacedFile:
        if file.synced == file.data:
            return file
        self.met("bytes lost")
        data = self.rng.choice((file.synced or b"", file.data[: self.rng.randrange(len(file.data) + 1)], file.data))
        return PlacedFile(data, data)

    def _has_parent(self, path: str) -> bool:
        return path.startswith(BUCKET) or posixpath.dirname(path) in self.directories

    # -- names

    def list(self, directory: str) -> list[str]:
        """Return the names right below a directory; with a lag those of new files are not among them."""
        since, found = self.loop.time() - self.lag_s, dict[str, None]()
        for path in self.files:
            if not path.startswith(f"{directory}/"):
                continue
            if self.appeared.get(path, 0.0) > since:
                self.hidden[path] = None
                self.met("listed late")
                continue
            found[path[len(directory) + 1 :].split("/")[0]] = None
        for path in self.directories:
            if path.startswith(f"{directory}/"):
                found[path[len(directory) + 1 :].split("/")[0]] = None
        return list(found)

    def take_name(self, path: str, *, removal: bool) -> None:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del self.files[path]
        if removal:
            self.removed(PROCESS.get(self.loop.world).name, path)


class PosixFace:
    """PlainFiles of the place."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def open(self, path: str, mode: str) -> BinaryIO:
        place = self.place
        if mode == "rb":
            place.reading()
            if path not in place.files:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            return io.BytesIO(place.files[path].data)
        dies = place.changing()
        if posixpath.dirname(path) not in place.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        file = place.files[path] = PlacedFile()
        place.die(dies)
        return cast(BinaryIO, _Written(place, file))

    def sync(self, opened: BinaryIO) -> None:
        dies, file = self.place.changing(), cast(_Written, opened).file
        file.synced = file.data
        self.place.die(dies)

    def sync_directory(self, path: str) -> None:
        place = self.place
        dies = place.changing()
        for name in [name for name in place.durable if posixpath.dirname(name) == path and name not in place.files]:
            del place.durable[name]
        place.durable |= {name: file for name, file in place.files.items() if posixpath.dirname(name) == path}
        below = {name: None for name in place.directories if posixpath.dirname(name) == path}
        gone = [name for name in place.durable_directories if posixpath.dirname(name) == path and name not in below]
        place.durable_directories |= below
        for name in gone:
            del place.durable_directories[name]
        place.die(dies)

    def is_directory(self, path: str) -> bool:
        return not self.place.away and path in self.place.directories

    def names(self, path: str) -> list[str]:
        self.place.reading()
        if path not in self.place.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return self.place.list(path)

    def make_directories(self, path: str) -> None:
        place = self.place
        dies = place.changing()
        while path not in place.directories:
            place.directories[path] = None
            path = posixpath.dirname(path)
        place.die(dies)

    def replace(self, path: str, other: str) -> None:
        place = self.place
        dies = place.changing()
        if path not in place.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        place.files[other] = place.files.pop(path)
        place.appeared[other] = place.loop.time()
        place.die(dies)

    def link(self, path: str, other: str) -> None:
        place = self.place
        dies = place.changing()
        if other in place.files:
            raise FileExistsError(errno.EEXIST, "there is such a file", other)
        place.files[other] = place.files[path]
        place.die(dies)

    def unlink(self, path: str) -> None:
        dies = self.place.changing()
        self.place.take_name(path, removal=True)
        self.place.die(dies)

    def rmdir(self, path: str) -> None:
        place = self.place
        dies = place.changing()
        if path not in place.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if any(name.startswith(f"{path}/") for name in (*place.files, *place.directories)):
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        del place.directories[path]
        place.die(dies)

    def remove_tree(self, path: str) -> None:
        place = self.place
        dies = place.changing()
        if path not in place.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        for name in [name for name in place.files if name.startswith(f"{path}/")]:
            place.take_name(name, removal=True)
        for name in [name for name in place.directories if name == path or name.startswith(f"{path}/")]:
            del place.directories[name]
        place.die(dies)


class _Written:
    """A file that is open for writing."""

    def __init__(self, place: Place, file: PlacedFile) -> None:
        self.place, self.file = place, file

    def write(self, data: bytes) -> int:
        place, data = self.place, bytes(data)
        try:
            dies = place.changing()
        except OSError:
            self.file.data += data[: place.rng.randrange(len(data) + 1)]
            raise
        self.file.data += place.written(data)
        place.die(dies)
        return len(data)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing: closing a file makes nothing durable."""


class ObjectFace(AbstractFileSystem):  # type: ignore[misc]  # fsspec is not followed by mypy
    """The place as a store of objects. `current` is the place of the life that is running."""

    protocol = SCHEME
    cachable = False
    current: Place

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path)

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        place = self.current
        place.reading()
        names = [f"{path}/{name}" for name in place.list(path)]
        if not names and path not in place.files:
            raise FileNotFoundError(errno.ENOENT, "no such prefix", path)
        return [self.info(name) for name in names] if detail else names

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        place = self.current
        place.reading()
        if path in place.files:
            return {"name": path, "size": len(place.files[path].data), "type": "file"}
        if any(name.startswith(f"{path}/") for name in place.files):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(errno.ENOENT, "no such object", path)

    def find(self, path: str, *args: Any, detail: bool = False, **kwargs: Any) -> Any:
        place = self.current
        place.reading()
        found = sorted(name for name in place.files if name.startswith(f"{path}/"))
        return {name: self.info(name) for name in found} if detail else found

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        self.current.reading()
        if path not in self.current.files:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return self.current.files[path].data

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        place = self.current
        dies = place.changing()
        if mode == "create" and path in place.files:
            raise FileExistsError(errno.EEXIST, "there is such an object", path)
        data = place.written(bytes(value))
        place.files[path] = place.durable[path] = PlacedFile(data, data)
        place.appeared[path] = place.loop.time()
        place.die(dies)

    def rm_file(self, path: str) -> None:
        place = self.current
        dies = place.changing()
        place.take_name(path, removal=True)
        with suppress(KeyError):
            del place.durable[path]
        place.die(dies)

    def rm(self, path: str, recursive: bool = False, **kwargs: Any) -> None:
        for name in self.find(path):
            self.rm_file(name)

    def exists(self, path: str, **kwargs: Any) -> bool:
        self.current.reading()
        return any(name == path or name.startswith(f"{path}/") for name in self.current.files)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: prefixes need not be made."""

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return io.BytesIO(self.cat_file(path))


__all__ = ["BUCKET", "ROOT", "SCHEME", "ObjectFace", "Place", "PosixFace"]
