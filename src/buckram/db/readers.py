"""Readers: threads that read one replica's files with SQLite, while others write them.

Not here: whether the state is new enough for a read (`db/database.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import Any

import apsw

from buckram.core.db.sql import SqlResult, Statement
from buckram.db.engine import Engine
from buckram.db.statements import Executor, outcome_function
from buckram.db.waiting import Room
from buckram.db.wal_files import WalFiles
from buckram.errors import SqlError
from buckram.net.tasks import thread_ended
from buckram.seams import StartedThread

_THREADS = 2
_AT_ONCE = 32
_LARGE_BYTES = 1024 * 1024
"""Rows of more bytes are handed over before the next statement is executed."""


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
        """The connection on the present files. Raises DatabaseFailed."""
        while self._executor is None or self._engine.files is not self._files:
            self.close()
            files = self._engine.files
            try:
                connection = files.connect()
            except apsw.CantOpenError:
                self._engine.check()
                if files is self._engine.files:
                    raise
                continue  # The files were replaced at this moment.
            connection.execute("PRAGMA query_only = 1").fetchall()
            connection.execute(f"PRAGMA mmap_size = {2**30}").fetchall()
            limits = self._engine.limits
            self._executor = Executor(
                self._engine.database, connection, limits.result_bytes, limits.query_s, self._engine.threads.now
            )
            outcome_function(connection, lambda token: self._engine.outcome(token))
            self._files = files
        self._engine.check()
        return self._executor

    def execute(self, statement: Statement) -> SqlResult:
        executor = self.executor()
        executor.given_bytes, executor.guard.deadline = 0, self._engine.threads.now() + self._engine.limits.query_s
        try:
            return executor.execute(statement)
        finally:
            if executor.connection.in_transaction:
                # A savepoint: whoever reads next must not see the state of today for ever.
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


_Job = tuple[Callable[[Reading], Any], "asyncio.Future[Any]"]


class Readers:
    """The reading threads of one database; they begin with the first read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._jobs = engine.threads.queue()
        self._threads: list[StartedThread] = []
        self._busy = 0
        self._room = Room(engine.database, engine.limits, "reads")

    def execute(self, statement: Statement) -> asyncio.Future[SqlResult]:
        """Execute a statement that reads. Raises DatabaseBusy if too many wait."""
        size = self._room.take((statement,))
        future = self.run(lambda reading: reading.execute(statement))
        future.add_done_callback(lambda done: self._room.give(size))
        return future

    def run(self, work: Callable[[Reading], Any]) -> asyncio.Future[Any]:
        """Do something with a reading connection, in one of the threads."""
        if self._busy >= len(self._threads) < _THREADS:
            self._threads.append(self._engine.threads.start(self._run, f"reader of {self._engine.database}"))
        future: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        self._jobs.put((work, future))
        return future

    def _run(self) -> None:
        reading = Reading(self._engine)
        jobs = self._jobs
        job: _Job | None
        try:
            while (job := jobs.get()) is not None:
                answers = [self._answer(reading, job)]
                with suppress(Empty):
                    while len(answers) < _AT_ONCE and reading.given_bytes < _LARGE_BYTES:
                        another = jobs.get_nowait()
                        if another is None:
                            jobs.put(None)
                            break
                        answers.append(self._answer(reading, another))
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._deliver, answers)
        finally:
            reading.close()

    def _answer(self, reading: Reading, job: _Job) -> tuple[asyncio.Future[Any], Any, Exception | None]:
        work, future = job
        if future.cancelled():
            return future, None, None
        try:
            return future, work(reading), None
        except Exception as error:
            return future, None, error

    def _deliver(self, answers: list[tuple[asyncio.Future[Any], Any, Exception | None]]) -> None:
        self._busy -= len(answers)
        for future, result, error in answers:
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    async def close(self) -> None:
        """End the threads after what they do. Idempotent."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            await thread_ended(thread)


__all__ = ["Reading", "Readers"]
