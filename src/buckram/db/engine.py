"""Engine: the thread that has a replica's files: it applies what is in the log, and executes what the leader is asked.

A transaction of the leader is computed here, as SQLite does, up to its commit; the commit waits until its group is in
the log. Everything else is a job, in the order in which the loop asks. Not here: the log (`db/state.py`), whose turn it
is (`db/writer.py`), reading (`db/readers.py`).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import apsw

from buckram.core.db.digest import EMPTY_DIGEST, LOCK_PAGE, differences, page_hash, patched, replaced
from buckram.core.db.group import Group, PageChange, Receipt, encode_group
from buckram.core.db.sql import SqlResult, Statement, encode_counts
from buckram.core.db.wal_format import PAGE_BYTES
from buckram.core.streams.codecs import Codec
from buckram.db.capture import Captured, CaptureVfs
from buckram.db.settings import DatabaseLimits
from buckram.db.statements import Executor, is_vacuum, outcome_function
from buckram.db.wal_files import Image, WalFiles
from buckram.errors import BuckramError, DatabaseFailed, HandleClosed, NotLeader, SqlError, TransactionTooLarge

T = TypeVar("T")
_log = logging.getLogger("buckram.db")
_MOST_QUEUED_BYTES = 64 * 1024 * 1024
_FOREIGN_KEYS = 787
Done = Callable[[Any, BaseException | None], None]


@dataclass(slots=True)
class Unit:
    """Statements of one caller that are committed together, and alone if one of them fails."""

    statements: Sequence[Statement]
    token: str | None = None


@dataclass(slots=True)
class Pending:
    """A transaction that is committed when its group is in the log. `decide` is called once, by the loop."""

    leadership: int
    sequence: int
    payload: bytes
    error: BuckramError | None = None
    decided: threading.Event = field(default_factory=threading.Event)

    def decide(self, error: BuckramError | None) -> None:
        """Commit, or roll back with this error. Later calls are ignored."""
        if not self.decided.is_set():
            self.error = error
            self.decided.set()


class EngineEvents(Protocol):
    """What the loop hears; called on the loop."""

    def commit_wanted(self, pending: Pending) -> None:
        """Write the group into the log, then decide."""
        ...

    def engine_failed(self, error: DatabaseFailed) -> None:
        """The engine does nothing any more."""
        ...


class Engine:
    """The table engine of one replica. Its methods are called on the loop unless they say otherwise."""

    def __init__(self, database: str, limits: DatabaseLimits, events: EngineEvents, directory: Path | None) -> None:
        self.database, self.limits = database, limits
        self._loop, self._events = asyncio.get_running_loop(), events
        self._directory = Path(tempfile.mkdtemp(prefix="buckram-db-", dir=directory))
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Done | None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"database {database}", daemon=True)
        self._codec = Codec()
        self._generation = 0
        self.files = WalFiles(self._new_path())
        """The files of the present state. Readers open others when these are replaced."""
        self.sequence, self.digest = 0, EMPTY_DIGEST
        """The number of groups in the files, and the digest of all pages. Set by the thread."""
        self.failure: DatabaseFailed | None = None
        self.outcome: Callable[[str], str] = lambda token: "unknown"
        """What the SQL function buckram_outcome says. Any thread."""
        self._replacements = self._replaced = 0
        """How often the files were to be replaced, and how often they were."""
        self._settled = threading.Condition()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._queued = 0
        self._vfs: CaptureVfs | None = None
        self._writing: Executor | None = None
        self._open = False
        """Whether a transaction of one caller is open."""
        self._leadership = 0
        self._receipts: list[Receipt] = []
        self._wrote = False
        self._captured: tuple[Captured, dict[int, tuple[bytes, int]], int] | None = None
        self._closed = False
        self._thread.start()

    def _new_path(self) -> Path:
        self._generation += 1
        place = self._directory / str(self._generation)
        place.mkdir()
        return place / "main.db"

    # -- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            result, failed = None, None
            try:
                if self.failure is not None:
                    raise self.failure
                result = work()
            except BaseException as error:
                failed = error
                if done is None:
                    self._fail(error)
            if done is not None:
                self._tell(done, result, failed)
        self._discard_writing()
        with suppress(Exception):
            self.files.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _tell(self, done: Callable[..., None], *args: Any) -> None:
        """Call something on the loop, if that still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(done, *args)

    def _fail(self, error: BaseException) -> None:
        """Stop for good: the files are not what the log says."""
        if self.failure is None:
            text = f"its table engine stopped: {error}. Close it and open it again to begin from a snapshot"
            self.failure = error if isinstance(error, DatabaseFailed) else DatabaseFailed(self.database, text)
            _log.error("%s", self.failure, exc_info=None if isinstance(error, BuckramError) else error)
            self._tell(self._events.engine_failed, self.failure)
        with self._settled:
            self._settled.notify_all()
        self._tell(self._wake)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have the thread do something after everything before. A failure of it is the caller's alone. HandleClosed."""
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

    def _advance(self, sequence: int, digest: int, replaced: int = 0) -> None:
        """The files have the next group, or are others."""
        self.digest = digest
        with self._settled:
            self.sequence = sequence
            self._replaced += replaced
            self._settled.notify_all()
        if self._waiting:
            self._tell(self._wake)

    def _wake(self) -> None:
        left: list[tuple[int, asyncio.Future[None]]] = []
        for sequence, future in self._waiting:
            if future.done():
                continue
            if self.failure is not None:
                future.set_exception(self.failure)
            elif self._has(sequence):
                future.set_result(None)
            else:
                left.append((sequence, future))
        self._waiting = left

    def _has(self, sequence: int) -> bool:
        return self._replaced == self._replacements and self.sequence >= sequence

    async def settled(self, sequence: int) -> None:
        """Return when the files have everything up to this group. Raises DatabaseFailed."""
        while not self._has(sequence):
            self.check()
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((sequence, future))
            self._wake()
            await future

    def check(self) -> None:
        """Raise why the engine stopped."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    # -- what is in the log -------------------------------------------------------------------------------

    def apply(self, offset: int, group: Group) -> None:
        """Apply a group that somebody wrote. The loop waits only if very much is waiting already."""
        size = sum(len(data) for page in group.pages for _, data in page.ranges)
        with self._settled:
            while self._queued > _MOST_QUEUED_BYTES and self.failure is None:
                self._settled.wait(1.0)
            self._queued += size
        self._jobs.put((lambda: self._apply(offset, group, size), None))

    def _apply(self, offset: int, group: Group, size: int) -> None:
        if self._open:
            self._roll_back()
        files, digest = self.files, self.digest
        changed: dict[int, tuple[bytes, int]] = {}
        for number, ranges in group.pages:
            old, old_hash = files.page(number)
            new = patched(old, ranges)
            new_hash = page_hash(number, new)
            changed[number] = new, new_hash
            digest = replaced(digest, old_hash, new_hash)
        digest = self._without_removed(digest, group.size)
        if group.sequence != self.sequence + 1 or digest != group.digest:
            raise DatabaseFailed(
                self.database,
                f"its pages differ from the leader's after the group {group.sequence} at offset {offset} (digest "
                f"{digest:016x}, the leader's is {group.digest:016x}); they were equal after group {self.sequence}. "
                "Close it and open it again to begin from a snapshot",
            )
        files.append(changed, group.size)
        with self._settled:
            self._queued -= size
        self._advance(group.sequence, digest)

    def _without_removed(self, digest: int, size: int) -> int:
        for number in range(size + 1, self.files.size + 1):
            digest = replaced(digest, self.files.page(number)[1], 0)
        return digest

    def restore(self, pages: Callable[[], Iterator[bytes]] | None, sequence: int, digest: int) -> None:
        """Replace everything by these pages, or by an empty database."""
        self._replacements += 1
        self._jobs.put((lambda: self._restore(pages, sequence, digest), None))

    def _restore(self, pages: Callable[[], Iterator[bytes]] | None, sequence: int, digest: int) -> None:
        self._discard_writing()
        before, self.files = self.files, WalFiles(self._new_path(), pages() if pages is not None else None)
        before.close()
        shutil.rmtree(Path(before.path).parent, ignore_errors=True)
        self._advance(sequence, digest, 1)

    def image(self, sequence: int) -> Image:
        """The pages after this group, which was the last one; waits for the thread to have it, which takes no loop."""
        with self._settled:
            while not self._has(sequence) and self.failure is None:
                self._settled.wait(1.0)
        self.check()
        return self.files.image()

    # -- what the leader is asked -------------------------------------------------------------------------

    def _executor(self) -> Executor:
        if self._writing is None:
            # The name must be unique in the process, and never be that of one that is being closed.
            self._vfs = CaptureVfs(f"buckram-{id(self):x}-{self._generation}", self)
            connection = self.files.connect(self._vfs.name)
            connection.execute("PRAGMA cache_size = -16384").fetchall()
            self._writing = Executor(self.database, connection, self.limits.result_bytes, self.limits.transaction_s)
            outcome_function(connection, lambda token: self.outcome(token))
        return self._writing

    def _discard_writing(self) -> None:
        if self._writing is not None and self._vfs is not None:
            with suppress(Exception):
                self._roll_back()
            self._writing.connection.close(True)
            self._vfs.close()
        self._writing = self._vfs = None
        self._open = False

    def group(self, leadership: int, units: Sequence[Unit]) -> tuple[list[list[SqlResult] | Exception], bool]:
        """Thread: execute units in one transaction. Returns what each gave, and whether anything was written.

        Raises what decided against the commit.
        """
        results: dict[int, list[SqlResult] | Exception] = {}
        while True:
            try:
                again, wrote = self._attempt(leadership, units, results)
            except TransactionTooLarge as error:
                if len(units) - _failed(results) > 1:
                    return self._one_by_one(leadership, units, results)
                again, wrote = False, False
                for index in range(len(units)):
                    if not isinstance(results.get(index), Exception):
                        results[index] = error
            if not again:
                return [results[index] for index in range(len(units))], wrote

    def _one_by_one(
        self, leadership: int, units: Sequence[Unit], results: dict[int, list[SqlResult] | Exception]
    ) -> tuple[list[list[SqlResult] | Exception], bool]:
        """Together they are too large for one transaction."""
        found: list[list[SqlResult] | Exception] = []
        all_wrote = True
        for index, unit in enumerate(units):
            before = results.get(index)
            if isinstance(before, Exception):
                found.append(before)
                continue
            given, wrote = self.group(leadership, [unit])
            found += given
            all_wrote = all_wrote and wrote
        return found, all_wrote

    def _attempt(
        self, leadership: int, units: Sequence[Unit], results: dict[int, list[SqlResult] | Exception]
    ) -> tuple[bool, bool]:
        """Returns whether the rest must be tried again, because one of them made SQLite roll everything back."""
        executor = self._begin(leadership)
        try:
            for index, unit in enumerate(units):
                if isinstance(results.get(index), Exception):
                    continue
                given = results[index] = self._unit(executor, unit)
                if isinstance(given, TransactionTooLarge) and len(units) > 1:
                    raise given
                if not executor.connection.in_transaction:
                    return True, False
            self._commit()
        finally:
            self._roll_back()
        return False, self._wrote

    def _unit(self, executor: Executor, unit: Unit) -> list[SqlResult] | Exception:
        connection = executor.connection
        executor.inside("SAVEPOINT buckram_unit")
        executor.guard.deadline = time.monotonic() + self.limits.transaction_s
        try:
            given = [executor.execute(statement) for statement in unit.statements]
            if connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
                raise SqlError(
                    self.database, "FOREIGN KEY constraint failed", 19, _FOREIGN_KEYS, "SQLITE_CONSTRAINT_FOREIGNKEY"
                )
        except Exception as error:
            if connection.in_transaction:
                executor.inside("ROLLBACK TO buckram_unit")
                executor.inside("RELEASE buckram_unit")
            return error
        finally:
            executor.guard.deadline = 0.0
        executor.inside("RELEASE buckram_unit")
        if unit.token is not None:
            self._receipts.append(Receipt(unit.token, encode_counts(given)))
        return given

    def alone(self, leadership: int, statement: Statement) -> tuple[SqlResult, bool]:
        """Thread: execute a statement that must not stand in a transaction, such as VACUUM."""
        executor = self._prepare(leadership)
        # SQLite attaches a database of its own while it vacuums.
        executor.guard.inside = is_vacuum(statement.sql)
        executor.guard.deadline = 0.0 if executor.guard.inside else time.monotonic() + self.limits.transaction_s
        try:
            result = executor.execute(statement)
        finally:
            executor.guard.inside = False
            executor.guard.deadline = 0.0
            self._finish()
        return result, self._wrote

    def begin(self, leadership: int) -> None:
        """Thread: begin a transaction of one caller."""
        self._begin(leadership)
        self._open = True

    def statement(self, statement: Statement, deadline: float) -> SqlResult:
        """Thread: execute a statement in the caller's transaction, until `deadline` of the monotonic clock."""
        executor = self._opened()
        executor.guard.deadline = deadline
        try:
            return executor.execute(statement)
        finally:
            executor.guard.deadline = 0.0
            if not executor.connection.in_transaction:
                self._open = False

    def _opened(self) -> Executor:
        if not self._open or self._writing is None:
            raise NotLeader(self.database, "")
        return self._writing

    def commit(self, receipt: Receipt | None = None) -> bool:
        """Thread: commit the caller's transaction; returns whether it wrote anything. After an SqlError it is open."""
        executor = self._opened()
        if receipt is not None:
            self._receipts.append(receipt)
        try:
            self._commit()
        except Exception as error:
            if not isinstance(error, SqlError):
                self._roll_back()
            raise
        finally:
            if not executor.connection.in_transaction:
                self._open = False
        return self._wrote

    def roll_back(self) -> None:
        """Thread: roll the caller's transaction back, if it is open."""
        if self._open:
            self._roll_back()

    # -- transactions -------------------------------------------------------------------------------------

    def _prepare(self, leadership: int) -> Executor:
        self.files.checkpoint_if_due()
        executor = self._executor()
        assert self._vfs is not None
        self._vfs.begin()
        self._leadership, self._wrote, self._captured = leadership, False, None
        self._receipts = []
        return executor

    def _begin(self, leadership: int) -> Executor:
        executor = self._prepare(leadership)
        executor.inside("BEGIN IMMEDIATE")
        # While a savepoint is open, SQLite writes every page that it adds, also those that are free again.
        executor.inside("SAVEPOINT buckram_all")
        return executor

    def _commit(self) -> None:
        executor = self._writing
        assert executor is not None
        try:
            executor.inside("COMMIT")
        except Exception as error:
            raise executor.translated(error) from None
        finally:
            self._finish()

    def _finish(self) -> None:
        """What was captured is committed, if SQLite says so."""
        if self._captured is None:
            return
        captured, changed, digest = self._captured
        self._captured = None
        executor = self._writing
        assert executor is not None
        if executor.connection.in_transaction:
            raise DatabaseFailed(self.database, "a group is in the log and could not be written to the files")
        self.files.committed(captured.frames, changed, captured.size)
        self._advance(self.sequence + 1, digest)

    def _roll_back(self) -> None:
        executor = self._writing
        self._open = False
        if executor is not None and executor.connection.in_transaction:
            executor.inside("ROLLBACK")
        if self._vfs is not None:
            self._vfs.begin()

    # -- while SQLite writes ------------------------------------------------------------------------------

    def on_spill(self, pages: int) -> None:
        if pages * PAGE_BYTES > self.limits.transaction_bytes:
            raise TransactionTooLarge(self.database, self.limits.transaction_bytes)

    def on_log_restarted(self) -> None:
        self.files.log_restarted()

    def on_commit(self, captured: Captured) -> None:
        """Write the group into the log, and wait until it is decided."""
        self.on_spill(len(captured.pages))
        pending, changed, digest = self._grouped(captured.pages, captured.size)
        self._tell(self._events.commit_wanted, pending)
        pending.decided.wait()
        if pending.error is not None:
            raise pending.error
        self._wrote = True
        self._captured = captured, changed, digest

    def _grouped(self, pages: Mapping[int, bytes], size: int) -> tuple[Pending, dict[int, tuple[bytes, int]], int]:
        """The group that makes these pages; the pages that differ, with their hashes; the digest."""
        files, digest = self.files, self.digest
        changed: dict[int, tuple[bytes, int]] = {}
        changes: list[PageChange] = []
        for number in sorted(pages):
            old, old_hash = files.page(number)
            new = pages[number]
            if old == new and old_hash:
                continue
            new_hash = page_hash(number, new)
            changed[number] = new, new_hash
            changes.append(PageChange(number, differences(old, new)))
            digest = replaced(digest, old_hash, new_hash)
        for number in range(files.size + 1, size + 1):
            if number not in changed and number != LOCK_PAGE:
                raise AssertionError(f"page {number} was added and not written")
        digest = self._without_removed(digest, size)
        group = Group(self._leadership, self.sequence + 1, size, digest, self._receipts, changes)
        return Pending(self._leadership, group.sequence, encode_group(group, self._codec)), changed, digest

    def pages_group(self, leadership: int, pages: Mapping[int, bytes], size: int) -> Pending:
        """Thread: a group that writes whole pages, which is applied like one of somebody else's."""
        self._leadership, self._receipts = leadership, []
        return self._grouped(pages, size)[0]

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the thread and remove the files. Nothing may be pending. Idempotent."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await self._loop.run_in_executor(None, self._thread.join)


def _failed(results: dict[int, list[SqlResult] | Exception]) -> int:
    return sum(isinstance(result, Exception) for result in results.values())


def image_chunks(image: Image, pages: int, pack: Callable[[bytes], bytes]) -> Iterable[bytes]:
    """An image in pieces of so many pages, each packed."""
    try:
        numbers = range(1, image.size + 1)
        for first in range(0, len(numbers), pages):
            yield pack(b"".join(image.page(number) for number in numbers[first : first + pages]))
    finally:
        image.close()


__all__ = ["Engine", "EngineEvents", "Pending", "Unit", "image_chunks"]
