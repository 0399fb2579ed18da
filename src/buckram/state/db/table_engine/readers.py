"""Readers: threads that read one replica's files with SQLite, while others write them.

Not here: whether the state is new enough for a read (`state/db/database.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import apsw

from buckram.core.db.sql import SqlResult, Statement
from buckram.errors import BuckramError, DatabaseBusy, HandleClosed, SqlError
from buckram.runtime.process.tasks import thread_ended
from buckram.seams import StartedThread
from buckram.state.db.table_engine.call_limits import CallLimits
from buckram.state.db.table_engine.engine import Engine
from buckram.state.db.table_engine.statements import Executor, outcome_function
from buckram.state.db.table_engine.wal_files import FilesGone, WalFiles

_THREADS = 2
_AT_ONCE = 64
_FEW = 4
"""Maximum number of waiting statements that run without a shared transaction; more share one."""
_ANEW_S, _PAUSE_S = 8.0, 0.02
"""Longest wait of a reader for files that are being made anew, and the interval of its checks, seconds."""
_LARGE_BYTES = 1024 * 1024
"""Result size above which rows are delivered before the next statement is executed."""
_SLOW_S = 0.005
"""Time without an answer after which a thread is taken to run a slow statement, seconds."""


class Reading:
    """A connection that only reads, for one thread; it follows when the files are replaced."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._files: WalFiles | None = None
        self._executor: Executor | None = None
        self._lock = threading.Lock()
        self._running = self._interrupted = False

    @property
    def given_bytes(self) -> int:
        """The bytes of the rows of the last statement."""
        return self._executor.given_bytes if self._executor is not None else 0

    def executor(self) -> Executor:
        """Return the executor on the present files. Raises DatabaseFailed."""
        while self._executor is None or self._engine.files is not self._files:
            self.close()
            files = self._engine.files
            try:
                connection = files.connect()
            except FilesGone:
                self._await_others(files)
                continue
            connection.execute("PRAGMA query_only = 1").fetchall()
            connection.execute(f"PRAGMA mmap_size = {2**30}").fetchall()
            limits = self._engine.limits
            self._executor = Executor(
                self._engine.database,
                connection,
                limits.result_bytes,
                limits.query_s,
                self._engine.threads.now,
                limit="query_s",
            )
            outcome_function(connection, lambda token: self._engine.outcome(token))
            self._files = files
        self._engine.check()
        return self._executor

    def _await_others(self, files: WalFiles) -> None:
        """Wait until files that cannot be opened have been replaced: either is under way, or they were deleted.

        Raises DatabaseBusy after _ANEW_S.
        """
        threads = self._engine.threads
        until = threads.now() + _ANEW_S
        while files is self._engine.files:
            self._engine.check()
            if threads.now() > until:
                text = "its local files were deleted, and are not made anew while a transaction is open; try again"
                raise DatabaseBusy(self._engine.database, text)
            threads.sleep(_PAUSE_S)

    def execute(self, statement: Statement) -> SqlResult:
        executor, engine = self.executor(), self._engine
        executor.given_bytes, executor.guard.deadline = 0, engine.threads.now() + engine.limits.query_s
        try:
            return executor.read(statement)
        finally:
            if not executor.pinned and executor.connection.in_transaction:
                # A savepoint: the next reader must not see the state of today for ever.
                self.close()

    def pin(self) -> Callable[[Statement], SqlResult]:
        """Let the statements until `unpin` read one state, which has everything that was committed before.

        Returns the function that executes them.
        """
        executor, engine = self.executor(), self._engine
        executor.pin()
        read, guard, now, query_s = executor.read, executor.guard, engine.threads.now, engine.limits.query_s

        def execute(statement: Statement) -> SqlResult:
            executor.given_bytes, guard.deadline = 0, now() + query_s
            return read(statement)

        return execute

    def unpin(self) -> None:
        """End the pinned state. The connection is closed if the state cannot be ended."""
        if self._executor is not None:
            try:
                self._executor.unpin()
            except apsw.Error:
                self.close()

    def execute_pinned(self, statement: Statement) -> SqlResult:
        """Execute a statement in the state that the first one saw."""
        with self._lock:
            if self._interrupted:
                raise SqlError(self._engine.database, "interrupted", 9, 9, "SQLITE_INTERRUPT")
            self._running = True
        try:
            executor = self._executor
            if executor is None:
                executor = self.executor()
                executor.inside("BEGIN")
                executor.inside("SELECT count(*) FROM sqlite_schema")
            executor.given_bytes, executor.guard.deadline = 0, self._engine.threads.now() + self._engine.limits.query_s
            return executor.execute(statement)
        finally:
            self._statement_ended()

    def _statement_ended(self) -> None:
        with self._lock:
            self._running = False
            if self._interrupted:
                self.close()

    def interrupt(self) -> None:
        """Stop the statement that runs, and close the connection. Any thread."""
        with self._lock:
            self._interrupted = True
            if not self._running:
                self.close()
            elif self._executor is not None:
                with suppress(apsw.Error):
                    self._executor.connection.interrupt()

    def close(self) -> None:
        if self._executor is not None:
            with suppress(apsw.Error):
                self._executor.connection.close(True)
        self._executor = self._files = None


_Job = tuple[Statement | Callable[[Reading], Any], "asyncio.Future[Any]", int, int]
"""A queued job: its statement or function, its future, the bytes that it takes while it waits, and its number."""
_Answer = tuple["asyncio.Future[Any]", int, Any, Exception | None]


class Readers:
    """The reading threads of one database; they begin with the first read.

    One thread serves all jobs of one turn of the event loop and wakes the loop once when all are done. A second thread
    helps only when the first one is kept by a slow statement: together they would wait for each other.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._calls = engine.threads.queue()
        """One item for each thread that is to work on the queued jobs; None ends a thread."""
        self._threads: list[StartedThread] = []
        self._room = CallLimits(engine.database, engine.limits, "reads")
        self._awake = 0
        """Number of threads that were called and have not found the queue empty yet."""
        self._waiting: deque[_Job] = deque()
        self._newest = 0
        """Number of the newest job."""
        self._done: deque[_Answer] = deque()
        self._asked = False
        self._delivered = self._delivered_before = 0
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False

    def execute(self, statement: Statement) -> asyncio.Future[SqlResult]:
        """Execute a statement that reads. Raises DatabaseBusy if too many wait, and HandleClosed."""
        self._check_open()
        return self._ask(statement, self._room.take((statement,)))

    def run(self, work: Callable[[Reading], Any]) -> asyncio.Future[Any]:
        """Do something with a reading connection, in one of the threads. Raises HandleClosed."""
        self._check_open()
        return self._ask(work, 0)

    def _check_open(self) -> None:
        if self._closed:  # A query that was asked before may come to its reading only now.
            raise HandleClosed(f"database {self._engine.database}: it is closed; open it again")

    def _ask(self, work: Statement | Callable[[Reading], Any], size: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._newest += 1
        self._waiting.append((work, future, size, self._newest))
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._begin)
        return future

    def _begin(self) -> None:
        self._asked = False
        if self._closed:
            return  # Closing has called a thread for what waits; another one would take the place of one that ends.
        if not self._awake:
            self._call_thread()
        if self._watch is None:
            self._watch = self._loop.call_later(_SLOW_S, self._look)

    def _call_thread(self) -> None:
        if self._awake >= len(self._threads) < _THREADS:
            self._threads.append(self._engine.threads.start(self._run, f"reader of {self._engine.database}"))
        self._awake += 1
        self._calls.put(True)

    def _look(self) -> None:
        """Check regularly while jobs wait: deliver results stuck behind a slow statement, and let others pass it."""
        self._watch = None
        self._deliver(False)
        if self._waiting and self._awake < _THREADS and self._delivered == self._delivered_before:
            self._call_thread()
        self._delivered_before = self._delivered
        if self._awake:
            self._watch = self._loop.call_later(_SLOW_S, self._look)

    def _run(self) -> None:
        reading = Reading(self._engine)
        try:
            while self._calls.get() is not None:
                self._work(reading)
        finally:
            reading.close()

    def _work(self, reading: Reading) -> None:
        """Execute the queued jobs. Thread."""
        waiting = self._waiting
        while count := min(len(waiting), _AT_ONCE):
            # What is asked from now on may have to see a later state, and is not of this transaction.
            newest = self._newest
            pinned = _pinned(reading) if count > _FEW else None
            if pinned is not None:
                try:
                    count = self._work_off(reading, count, newest, pinned)
                finally:
                    reading.unpin()
            if count:
                self._work_off(reading, count, None, reading.execute)
            if waiting:
                self._tell(False)
        self._tell(True)

    def _work_off(
        self, reading: Reading, count: int, newest: int | None, execute: Callable[[Statement], SqlResult]
    ) -> int:
        """Execute up to `count` queued jobs, none newer than number `newest`. Returns how many of `count` are left."""
        waiting, done = self._waiting, self._done
        with suppress(IndexError):  # Another thread may have helped.
            for left in range(count, 0, -1):
                job = waiting.popleft()
                work, future, size, number = job
                if newest is not None and number > newest:
                    # Another thread has done what this one was to do, and this was asked after the state was taken.
                    waiting.appendleft(job)
                    return left
                given: Any = None
                failed: Exception | None = None
                try:
                    if not future.cancelled():
                        given = execute(work) if isinstance(work, Statement) else work(reading)
                except Exception as error:
                    failed = error
                done.append((future, size, given, failed))
                if reading.given_bytes >= _LARGE_BYTES:
                    self._tell(False)
        return 0

    def _tell(self, ended: bool) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, ended)

    def _deliver(self, ended: bool) -> None:
        """Resolve the futures of finished jobs. `ended`: a thread has found the queue empty."""
        done = self._done
        while done:
            future, size, result, error = done.popleft()
            self._delivered += 1
            if size:
                self._room.give(size)
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if ended:
            self._awake -= 1
            if self._waiting and not self._awake and not self._closed:
                self._call_thread()

    async def close(self) -> None:
        """End the threads after what they do. Idempotent."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._waiting:
            self._call_thread()
        threads, self._threads = self._threads, []
        for _ in threads:
            self._calls.put(None)
        for thread in threads:
            await thread_ended(thread)


def _pinned(reading: Reading) -> Callable[[Statement], SqlResult] | None:
    """Pin one state for several statements, which saves the locks of each; return what executes them.

    None if pinning fails: then each statement raises its own error.
    """
    try:
        return reading.pin()
    except (BuckramError, apsw.Error):
        return None
