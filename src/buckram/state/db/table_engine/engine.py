"""Engine: the thread that owns a replica's files: it applies the log, and executes the leader's transactions.

Everything is a job, done in the order in which the event loop submits it. Not here: the leader's transactions
(`state/db/table_engine/execution.py`), the log (`state/db/commits/state_machine.py`), whose turn it is
(`state/db/commits/write_queue.py`), reading (`state/db/table_engine/readers.py`).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import apsw

from buckram.core.db.digest import EMPTY_DIGEST, page_hash, patched, replaced
from buckram.core.db.group import Group
from buckram.errors import BuckramError, DatabaseBusy, DatabaseFailed, HandleClosed
from buckram.runtime.process.tasks import thread_ended
from buckram.seams import THREADS, StartedThread, Threads
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine.directories import Directory
from buckram.state.db.table_engine.execution import Execution, Pending
from buckram.state.db.table_engine.wal_files import FilesGone, Image, WalFiles

T = TypeVar("T")
_log = logging.getLogger("buckram.db")
_MOST_QUEUED_BYTES = 64 * 1024 * 1024
_LOOK_S = 1.0
"""Interval of the check that the local files still exist, seconds."""
_GROUP_BYTES = 64
"""Overhead of a queued group in bytes, besides the pages that it changes."""
_UNWRITTEN = 2
"""New pages of a group that it need not have: the page of SQLite's locks, and page 1, which a copy writes last."""
Done = Callable[[Any, BaseException | None], None]


class _Wanted(NamedTuple):
    """A requested image: the group after which it is taken, the number of file replacements, and its future."""

    sequence: int
    replacement: int
    future: asyncio.Future[Image]


class EngineEvents(Protocol):
    """Events of the engine; called on the event loop."""

    def commit_wanted(self, pending: Pending) -> None:
        """Write the group into the log, then decide."""
        ...

    def engine_failed(self, error: DatabaseFailed) -> None:
        """Learn that the engine has stopped for good."""
        ...


class Engine:
    """The table engine of one replica. Its methods are called on the loop unless they say otherwise."""

    def __init__(
        self,
        database: str,
        limits: DatabaseLimits,
        events: EngineEvents,
        directory: Path | None,
        threads: Threads = THREADS,
    ) -> None:
        self.database, self.limits, self.threads = database, limits, threads
        self._loop, self._events = asyncio.get_running_loop(), events
        try:
            self._directory = Directory(directory)
        except OSError as error:
            raise self._no_files(error) from error
        self._jobs = threads.queue()
        self._thread: StartedThread
        self._generation = 0
        try:
            self.files = WalFiles(self._new_path())
            """The files of the present state. Readers open others when these are replaced."""
        except (OSError, apsw.Error) as error:
            self._directory.close()
            raise self._no_files(error) from error
        self.sequence, self.digest = 0, EMPTY_DIGEST
        """The number of groups in the files, and the digest of all pages. Set by the thread."""
        self.failure: DatabaseFailed | None = None
        self.outcome: Callable[[str], str] = lambda token: "unknown"
        """Answers the SQL function buckram_outcome(token). Any thread."""
        self._replacements = self._replaced = 0
        """Number of replacements of the files that were ordered, and of those that are done."""
        self._counting = threading.Lock()
        """Guards the counters that both the loop and the thread change."""
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        """Conditions that callers await, with their futures."""
        self._wanted: deque[_Wanted] = deque()
        self._queued = 0
        """The bytes of groups that the thread has not applied."""
        self.execution = Execution(self)
        """Transactions of the leader; call its methods through `run`."""
        self._closed = False
        self._thread = threads.start(self._run, f"database {database}")
        self._parent = directory
        self._look_again = self._loop.call_later(_LOOK_S, self._look)

    def _no_files(self, error: Exception) -> DatabaseFailed:
        return DatabaseFailed(self.database, f"its files cannot be made: {error}")

    def _new_path(self) -> Path:
        self._generation += 1
        place = self._directory.path / str(self._generation)
        place.mkdir()
        return place / "main.db"

    # -- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        job: tuple[Callable[[], Any], Done | None] | None
        self._directory.sweep()
        while (job := self._jobs.get()) is not None:
            work, done = job
            result, failed = None, None
            try:
                if self.failure is not None:
                    raise self.failure
                result = work()
            except BaseException as error:
                failed = error
                if done is None or isinstance(error, DatabaseFailed):
                    self._fail(error)
            if done is not None:
                self._tell(done, result, failed)
        self._fail_images(HandleClosed(f"database {self.database}: it is closed; open it again"))
        self.execution.discard()
        with suppress(Exception):
            self.files.close()
        self._directory.close()

    def _tell(self, done: Callable[..., None], *args: Any) -> bool:
        """Call something on the loop, if that still runs."""
        try:
            self._loop.call_soon_threadsafe(done, *args)
        except RuntimeError:
            return False
        return True

    def _fail(self, error: BaseException) -> None:
        """Stop for good: the files are not what the log says."""
        if self.failure is None:
            text = f"its table engine stopped: {error}. Close it and open it again to begin from a snapshot"
            self.failure = error if isinstance(error, DatabaseFailed) else DatabaseFailed(self.database, text)
            known = isinstance(error, BuckramError | OSError | apsw.Error)
            _log.error("%s", self.failure, exc_info=None if known else error)
            self._tell(self._events.engine_failed, self.failure)
        self._fail_images(self.failure)
        self._tell(self._wake)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have the thread do something after all earlier jobs; only the caller sees a failure. HandleClosed."""
        if self._closed:
            raise HandleClosed(f"database {self.database}: it is closed; open it again")
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._jobs.put((work, done))
        return future

    def advance(self, sequence: int, digest: int, replaced: int = 0) -> None:
        """Note that the files have the next group, or were replaced."""
        self.digest = digest
        self.sequence = sequence
        self._replaced += replaced
        if self._wanted:
            self._take_images()
        if self._waiting:
            self._tell(self._wake)

    def _wake(self) -> None:
        left: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        for holds, future in self._waiting:
            if future.done():
                continue
            if self.failure is not None:
                future.set_exception(self.failure)
            elif holds():
                future.set_result(None)
            else:
                left.append((holds, future))
        self._waiting = left

    def _has(self, sequence: int) -> bool:
        return self._replaced == self._replacements and self.sequence >= sequence

    async def settled(self, sequence: int) -> None:
        """Return when the files have everything up to this group. Raises DatabaseFailed."""
        if not self._has(sequence):
            await self._until(lambda: self._has(sequence))

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.check()
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((holds, future))
            self._wake()
            await future

    def check(self) -> None:
        """Raise the error that stopped the engine, if it has stopped."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def ask_for_commit(self, pending: Pending) -> None:
        """Have the loop write a group into the log, and wait until it has decided. Thread."""
        self._tell(self._events.commit_wanted, pending)
        pending.decided.wait()
        # Image requests from the decision on are for the state after it. The files have the one before: this is the
        # last moment for earlier requests.
        if self._wanted:
            self._take_images()

    @property
    def superseded(self) -> bool:
        """Return whether groups of other processes wait to be applied: then a running transaction cannot commit."""
        return self._queued > 0 or self._replaced != self._replacements

    # -- deleted files ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Check regularly that the files exist: temporary folders, the default place, are cleaned by other programs."""
        if self._closed or self.failure is not None:
            return
        if not self.files.intact:
            self._jobs.put((self.keep_files, None))
        self._look_again = self._loop.call_later(_LOOK_S, self._look)

    def keep_files(self) -> None:
        """Make the files anew from the open ones if they were deleted. Thread.

        An open transaction ends before that: its connection has all that it needs. Raises DatabaseFailed.
        """
        before = self.files
        if before.intact or self.execution.open:
            return
        self.execution.discard()
        try:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            directory, self._directory = self._directory, Directory(self._parent)
            self.files = WalFiles(self._new_path(), before.contents())
        except (OSError, apsw.Error) as error:
            text = (
                f"its files in {before.path} were deleted, and cannot be made anew: {error}. Close it and open it again"
            )
            raise DatabaseFailed(self.database, text) from error
        before.close()
        directory.close()
        _log.warning(
            "database %s: its files in %s were deleted, and are made anew in %s; choose a place that is not cleaned up",
            self.database,
            directory.path,
            self._directory.path,
        )

    # -- what is in the log -------------------------------------------------------------------------------

    def room(self) -> Awaitable[None] | None:
        """Return None if another group can be queued now; else an awaitable that ends when there is room for one."""
        return None if self._has_room() else self._until(self._has_room)

    def _has_room(self) -> bool:
        return self._queued <= _MOST_QUEUED_BYTES or self.failure is not None

    def apply(self, offset: int, group: Group) -> None:
        """Queue a group of another process to be applied. A reader of the log awaits `room` before."""
        size = _GROUP_BYTES + sum(len(data) for page in group.pages for _, data in page.ranges)
        with self._counting:
            self._queued += size
        self._jobs.put((lambda: self._apply(offset, group, size), None))

    def _apply(self, offset: int, group: Group, size: int) -> None:
        self.execution.roll_back()
        files, digest = self.files, self.digest
        if group.size - files.size > len(group.pages) + _UNWRITTEN:
            raise DatabaseFailed(
                self.database,
                f"the group {group.sequence} at offset {offset} makes {group.size} pages of {files.size} and has "
                f"{len(group.pages)}: no leader writes that; begin a new database from a backup",
            )
        changed: dict[int, tuple[bytes, int]] = {}
        for number, ranges in group.pages:
            old, old_hash = files.page(number)
            new = patched(old, ranges)
            new_hash = page_hash(number, new)
            changed[number] = new, new_hash
            digest = replaced(digest, old_hash, new_hash)
        digest = self.without_removed(digest, group.size)
        if group.sequence != self.sequence + 1 or digest != group.digest:
            raise DatabaseFailed(
                self.database,
                f"its pages differ from the leader's after the group {group.sequence} at offset {offset} (digest "
                f"{digest:016x}, the leader's is {group.digest:016x}); they were equal after group {self.sequence}. "
                "Close it and open it again to begin from a snapshot",
            )
        if changed or group.size != files.size:
            files.append(changed, group.size)
        with self._counting:
            self._queued -= size
        self.advance(group.sequence, digest)

    def without_removed(self, digest: int, size: int) -> int:
        """Return the digest without the pages beyond a size. Thread."""
        for number in range(size + 1, self.files.size + 1):
            digest = replaced(digest, self.files.page(number)[1], 0)
        return digest

    def restore(self, pages: Callable[[], Iterator[bytes]] | None, sequence: int, digest: int) -> None:
        """Replace everything by these pages, or by an empty database."""
        self._replacements += 1
        self._jobs.put((lambda: self._restore(pages, sequence, digest), None))

    def _restore(self, pages: Callable[[], Iterator[bytes]] | None, sequence: int, digest: int) -> None:
        self.execution.discard()
        before, self.files = self.files, WalFiles(self._new_path(), pages() if pages is not None else None)
        before.close()
        shutil.rmtree(Path(before.path).parent, ignore_errors=True)
        self.advance(sequence, digest, 1)

    def image(self, sequence: int) -> asyncio.Future[Image]:
        """Return the pages after this group, the last decided one; they are taken before a later one is applied.

        The caller closes the image; if the future was cancelled, none is left open. Raises DatabaseFailed,
        HandleClosed.
        """
        self.check()
        if self._closed:
            raise HandleClosed(f"database {self.database}: it is closed; open it again")
        wanted = _Wanted(sequence, self._replacements, self._loop.create_future())
        self._wanted.append(wanted)
        self._jobs.put((self._take_images, None))
        return wanted.future

    def _take_images(self) -> None:
        """Take the requested images of the present state. Thread."""
        for _ in range(len(self._wanted)):
            wanted = self._wanted.popleft()
            if (wanted.replacement, wanted.sequence) < (self._replaced, self.sequence):
                text = "its files were replaced, or went on, meanwhile; try again"
                self._tell(_deliver, wanted.future, DatabaseBusy(self.database, text))
            elif (wanted.replacement, wanted.sequence) != (self._replaced, self.sequence):
                self._wanted.append(wanted)
            elif not wanted.future.cancelled():
                try:
                    image: Image | Exception = self.files.image()
                except FilesGone:
                    text = "its local files were deleted, and are being made anew; try again"
                    image = DatabaseBusy(self.database, text)
                except (apsw.Error, OSError) as error:
                    image = DatabaseFailed(self.database, f"its files cannot be opened once more: {error}")
                if not self._tell(_deliver, wanted.future, image) and isinstance(image, Image):
                    image.close()

    def _fail_images(self, error: BuckramError) -> None:
        while self._wanted:
            self._tell(_deliver, self._wanted.popleft().future, error)

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the thread and remove the files. Nothing may be pending. Idempotent."""
        if not self._closed:
            self._closed = True
            self._look_again.cancel()
            self._jobs.put(None)
        await thread_ended(self._thread)


def _deliver(future: asyncio.Future[Image], given: Image | Exception) -> None:
    if isinstance(given, Exception):
        if not future.done():
            future.set_exception(given)
            future.exception()  # Mark it as retrieved: no caller may be waiting.
    elif future.done():
        given.close()
    else:
        future.set_result(given)
