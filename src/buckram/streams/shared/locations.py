"""Places: where history and backups are kept outside the cluster, any location that fsspec knows, or a local directory.

Calls block, so coroutines run them in threads (`in_thread`). A file is written under its final name only whole and
durable. Errors say which location. Not here: what is in the files (`core/streams/external/history.py`), who may delete
them (`shared/ledgers.py`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, BinaryIO, TypeVar
from uuid import uuid4

from buckram.core.streams.external.history import UNFINISHED, copy_of
from buckram.errors import BuckramError, ConfigError, NoSuchEntry, ReadFailed, WriteFailed
from buckram.extras import needs
from buckram.runtime.disk.plain_files import OsFiles, PlainFiles
from buckram.types import Buffer, LedgerId

T = TypeVar("T")
TABLE = "_iceberg"
"""The directory of the table around a stream's history, in that of its files; engines skip it by its first letter."""
_PIECE = 1024 * 1024
_LEVELS = 3
"""The number of directories of a stream's history below its location: NAMESPACE/STREAM/UID."""
FILES: PlainFiles = OsFiles()
"""The file system of this machine, on which local directories are."""
WITHIN_S = 300.0
"""Deadline of one call, seconds, after which its location counts as away: no store needs so long for one part."""


class FileLocation:
    """One directory at a location. Raises ReadFailed and WriteFailed, which name it, and ConfigError without fsspec.

    Methods take the id of the offloaded segment for what errors tell.
    """

    def __init__(self, location: str, what: str = "history") -> None:
        """`what`: what is kept there, by the word that errors use."""
        self.location, self.what = location, what
        self._local = _local_path(location)
        self._opened: tuple[Any, str] | None = None

    def read(self, file: str, copy: LedgerId) -> bytes:
        """Return the bytes of a file. ReadFailed if the location is away, NoSuchEntry if only the file is missing."""
        try:
            if self._local is not None:
                with FILES.open(os.path.join(self._local, file), "rb") as source:
                    return source.read()
            system, root = self._system()
            return bytes(system.cat_file(f"{root}/{file}"))
        except FileNotFoundError as error:
            if not self._has_files():
                raise ReadFailed(copy, f"its {self.what} at {self.location} is away: {_text(error)}") from None
            raise NoSuchEntry(copy, 0, f"file {file} of its {self.what} is missing at {self.location}") from None
        except BuckramError as error:
            raise ReadFailed(copy, f"its {self.what} at {self.location} is away: {error}") from None
        except Exception as error:  # Each file system has errors of its own.
            raise ReadFailed(copy, f"its {self.what} at {self.location} is away: {_text(error)}") from None

    def write(self, file: str, data: Buffer, copy: LedgerId) -> None:
        """Write a file, whole and durable. WriteFailed if the location is away, read-only or full."""
        try:
            if self._local is not None:
                _write_durably(self._local, file, data)
                return
            system, root = self._system()
            system.makedirs(root, exist_ok=True)
            system.pipe_file(f"{root}/{file}", bytes(data))
        except ConfigError:
            raise
        except Exception as error:
            raise WriteFailed(copy, f"its {self.what} cannot be written to {self.location}: {_text(error)}") from None

    def files(self) -> list[str]:
        """Return the names of all files of history in the directory, in order; none if it does not exist."""
        try:
            if self._local is not None:
                names = FILES.names(self._local)
            else:
                system, root = self._system()
                system.invalidate_cache()
                names = [str(path).rsplit("/", 1)[-1] for path in system.ls(root, detail=False)]
        except FileNotFoundError:
            return []
        except ConfigError:
            raise
        except Exception as error:
            raise ReadFailed(-1, f"{self.what} at {self.location} is away: {_text(error)}") from None
        return sorted(name for name in names if copy_of(name) is not None)

    def remove(self, copy: LedgerId) -> int:
        """Delete all files of an offloaded segment and return how many; those that are gone already are fine.

        The manifest goes first. WriteFailed if the location is away.
        """
        found = [name for name in self.files() if copy_of(name) == copy]
        for name in sorted(found, key=lambda name: not name.startswith("_")):
            try:
                if self._local is not None:
                    FILES.unlink(os.path.join(self._local, name))
                else:
                    system, root = self._system()
                    system.rm_file(f"{root}/{name}")
            except FileNotFoundError:
                continue
            except Exception as error:
                raise WriteFailed(copy, f"{name} cannot be deleted at {self.location}: {_text(error)}") from None
        if self._local is not None:
            self._sync_removal(copy)
            with suppress(OSError):
                FILES.rmdir(self._local)  # The last file of a stream takes its directory with it.
        return len(found)

    def _sync_removal(self, copy: LedgerId) -> None:
        """Make it durable that files are gone, also those that an earlier call has removed: nobody looks again."""
        assert self._local is not None
        try:
            FILES.sync_directory(self._local)
        except FileNotFoundError:
            return
        except OSError as error:
            raise WriteFailed(copy, f"its files cannot be deleted at {self.location}: {_text(error)}") from None

    # -- files of the table around a stream's history (`streams/maintain/history/iceberg.py`)
    # --------------------------------

    def names(self) -> list[str]:
        """Return the names of everything in the directory; none if it does not exist. ReadFailed."""
        try:
            if self._local is not None:
                return sorted(FILES.names(self._local))
            system, root = self._system()
            system.invalidate_cache()
            return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in system.ls(root, detail=False))
        except FileNotFoundError:
            return []
        except ConfigError:
            raise
        except Exception as error:
            raise ReadFailed(-1, f"{self.what} at {self.location} is away: {_text(error)}") from None

    def create(self, file: str, data: bytes) -> bool:
        """Write a file, whole and durable, unless there is one of this name: then return False. WriteFailed."""
        try:
            if self._local is not None:
                _write_durably(self._local, file, data, new=True)
            else:
                system, root = self._system()
                system.makedirs(root, exist_ok=True)
                system.pipe_file(f"{root}/{file}", data, mode="create")
        except FileExistsError:
            return False
        except ConfigError:
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and file in self.names():
                return False  # The process that has written it took this attempt for a leftover.
            raise WriteFailed(-1, f"{self.what} cannot be written to {self.location}: {_text(error)}") from None
        return True

    def check_there(self) -> None:
        """ReadFailed for a local directory that does not exist, such as a mount that is away."""
        if self._local is not None and not FILES.is_directory(self._local):
            raise ReadFailed(-1, f"{self.what} at {self.location} is away: there is no such directory")

    def put(self, file: str, source: str) -> None:
        """Copy a file of this machine to the place, whole and durable, under this name. WriteFailed.

        It may be larger than the memory.
        """
        try:
            if self._local is not None:
                _write_durably(self._local, file, source)
                return
            system, root = self._system()
            system.makedirs(root, exist_ok=True)
            system.put_file(source, f"{root}/{file}")
        except ConfigError:
            raise
        except Exception as error:
            raise WriteFailed(-1, f"its {self.what} cannot be written to {self.location}: {_text(error)}") from None

    def open(self, file: str) -> BinaryIO:
        """Return a file, open for reading anywhere in it. FileNotFoundError, ReadFailed."""
        try:
            if self._local is not None:
                return FILES.open(os.path.join(self._local, file), "rb")
            system, root = self._system()
            opened: BinaryIO = system.open(f"{root}/{file}", "rb")
            return opened
        except (FileNotFoundError, ConfigError):
            raise
        except Exception as error:
            raise ReadFailed(-1, f"{self.what} at {self.location} is away: {_text(error)}") from None

    def delete(self, file: str) -> None:
        """Delete one file; it may be gone already. WriteFailed."""
        try:
            if self._local is not None:
                FILES.unlink(os.path.join(self._local, file))
            else:
                system, root = self._system()
                system.rm_file(f"{root}/{file}")
        except FileNotFoundError:
            return
        except Exception as error:
            raise WriteFailed(-1, f"{file} cannot be deleted at {self.location}: {_text(error)}") from None

    def clear(self) -> None:
        """Delete the directory with all that is below it; it may be gone already. WriteFailed."""
        try:
            if self._local is not None:
                FILES.remove_tree(self._local)
                with suppress(OSError):
                    FILES.rmdir(os.path.dirname(self._local))
            else:
                system, root = self._system()
                system.invalidate_cache()
                if system.exists(root):
                    system.rm(root, recursive=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise WriteFailed(-1, f"{self.location} cannot be deleted: {_text(error)}") from None

    def _has_files(self) -> bool:
        try:
            return bool(self.files())
        except BuckramError:
            return False

    def _system(self) -> tuple[Any, str]:
        if self._opened is None:
            try:
                from fsspec.core import url_to_fs
            except ImportError:
                wanted = needs(f"{self.what} at {self.location}", "history")
                raise ConfigError(f"{wanted}, and what fsspec needs for this kind of location") from None
            system, root = url_to_fs(self.location)
            self._opened = system, str(root).rstrip("/")
        return self._opened


_confined: ContextVar[Callable[[str], str] | None] = ContextVar("confined", default=None)


@contextmanager
def confined(why_not: Callable[[str], str] | None) -> Iterator[None]:
    """Inside, and in tasks that begin there, `in_thread` reaches no location for which `why_not` gives a reason; None:
    all are reached."""
    before = _confined.set(why_not)
    try:
        yield
    finally:
        _confined.reset(before)


async def in_thread(copy: LedgerId, location: str, call: Callable[[], T], within_s: float | None = None) -> T:
    """Run a blocking call in a thread. ReadFailed if it takes longer than `within_s`, default WITHIN_S, ConfigError
    where this is `confined` to other locations."""
    why_not = _confined.get()
    if why_not is not None and (why := why_not(location)):
        raise ConfigError(why)
    return await answer_of(copy, location, asyncio.get_running_loop().run_in_executor(None, call), within_s)


async def answer_of(copy: LedgerId, location: str, begun: asyncio.Future[T], within_s: float | None = None) -> T:
    """Wait for a call that was begun in a thread. ReadFailed if it takes longer than `within_s`, default WITHIN_S.

    The thread goes on then, and also if this is cancelled; `begun` is done when the call has ended.
    """
    try:
        async with asyncio.timeout(within_s or WITHIN_S):
            return await asyncio.shield(begun)
    except TimeoutError:
        raise away(copy, location, within_s) from None


def forget_error(begun: asyncio.Future[Any]) -> None:
    """Retrieve the error of a call in a thread when it is done, if no caller awaits its result any more."""
    if not begun.cancelled():
        begun.exception()


def away(copy: LedgerId, location: str, within_s: float | None = None) -> ReadFailed:
    """Return the error for a location that did not answer in time."""
    return ReadFailed(copy, f"its files at {location} did not answer within {within_s or WITHIN_S:.0f} s")


def _local_path(location: str) -> str | None:
    scheme, found, rest = location.partition("://")
    if not found:
        return location
    return rest if scheme in ("file", "local") else None


def _write_durably(directory: str, file: str, data: Buffer | str, *, new: bool = False) -> None:
    """Write a file so that its name appears only with all of it on the disk. `new`: FileExistsError if there is one.

    `data` may be the path of a file to be copied. That may be large, so nothing of it stays after an error.
    """
    _make_directory(directory)
    # Several processes may write one file of the table at the same time; a file of history has one writer, and its
    # name tells whose it is if it is never finished.
    own = f".{uuid4().hex}" if copy_of(file) is None else ""
    path, unfinished = os.path.join(directory, file), os.path.join(directory, f".{file}{own}{UNFINISHED}")
    with ExitStack() as undoing, FILES.open(unfinished, "wb") as target:
        if isinstance(data, str):
            undoing.callback(FILES.unlink, unfinished)
            with open(data, "rb") as source:
                shutil.copyfileobj(source, target, _PIECE)
        else:
            target.write(data)
        FILES.sync(target)
        undoing.pop_all()
    if new:
        try:
            FILES.link(unfinished, path)  # Unlike renaming, this fails if the name is taken.
        finally:
            with suppress(FileNotFoundError):  # The process that committed first may have swept it away.
                FILES.unlink(unfinished)
    else:
        FILES.replace(unfinished, path)
    FILES.sync_directory(directory)


def _make_directory(directory: str) -> None:
    """Make a directory so that its name is durable, and those of the directories above it.

    Those of a stream's history are synced although they are there: another process may have made them and died.
    """
    above, path = list[str](), directory
    while (len(above) < _LEVELS or not FILES.is_directory(path)) and path != os.path.dirname(path):
        path = os.path.dirname(path)
        above.append(path)
    FILES.make_directories(directory)
    for path in above:
        with suppress(PermissionError):  # It was there before, and who may write below it need not read it.
            FILES.sync_directory(path)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
