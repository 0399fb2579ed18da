"""Execution: the leader's transactions, computed by SQLite up to their commits, which wait for the log.

All of it is in the engine's thread. Not here: the thread, and what others wrote (`state/db/table_engine/engine.py`);
the log (`state/db/commits/committing.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import apsw

from buckram.core.db.digest import LOCK_PAGE, differences, page_hash, replaced
from buckram.core.db.group import Group, PageChange, Receipt, encode_group
from buckram.core.db.sql import SqlResult, Statement, encode_counts
from buckram.core.db.wal_format import PAGE_BYTES
from buckram.core.streams.records.codecs import Codec
from buckram.errors import BuckramError, CommitUnknown, DatabaseFailed, NotLeader, SqlError, TransactionTooLarge
from buckram.seams import Signal, Threads
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine.capture_vfs import Captured, CaptureVfs
from buckram.state.db.table_engine.row_images import RowImages
from buckram.state.db.table_engine.statements import Executor, is_vacuum, may_return_changes, outcome_function
from buckram.state.db.table_engine.wal_files import WalFiles

_FOREIGN_KEYS = 787
_CACHE_KIB = 16 * 1024
Given = list[SqlResult] | Exception
"""Outcome of a unit: the results of its statements, or the error that rolled it back."""


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
    decided: Signal = field(default_factory=threading.Event)

    def decide(self, error: BuckramError | None) -> None:
        """Commit, or roll back with this error. Later calls are ignored."""
        if not self.decided.is_set():
            self.error = error
            self.decided.set()


class Host(Protocol):
    """The engine, as the leader's transactions need it."""

    database: str
    limits: DatabaseLimits
    files: WalFiles
    sequence: int
    digest: int
    outcome: Callable[[str], str]
    threads: Threads

    def advance(self, sequence: int, digest: int) -> None:
        """Note that the files have the next group."""
        ...

    def ask_for_commit(self, pending: Pending) -> None:
        """Have the loop write the group into the log, and wait until it has decided."""
        ...

    def keep_files(self) -> None:
        """Make the files anew if they were deleted."""
        ...

    @property
    def superseded(self) -> bool:
        """Return whether groups of other processes wait to be applied: then a running transaction cannot commit."""
        ...

    def without_removed(self, digest: int, size: int) -> int:
        """Return the digest without the pages beyond a size."""
        ...


class Execution:
    """Transactions that one replica executes while it leads."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._codec = Codec()
        self._connections = 0
        self._vfs: CaptureVfs | None = None
        self._writing: Executor | None = None
        self.rows: RowImages | None = None
        """Collects changes of rows; None in a database without change data capture."""
        self.open = False
        """True while a transaction of one caller is open."""
        self._behind = False
        """True if others may have changed the schema since the connection read it."""
        self._keys_off = False
        """True if the last transaction began with foreign keys off."""
        self._leadership = 0
        self._receipts: list[Receipt] = []
        self._partly: set[int] = set()
        """Units of the group that failed and keep what they did: statements alone that say OR FAIL."""
        self._wrote = False
        self._captured: tuple[Captured, dict[int, tuple[bytes, int]], int] | None = None

    def _connected(self) -> Executor:
        """Open the connection, and return its executor."""
        self._connections += 1
        # The name must be unique in the process, and never be that of one that is being closed.
        self._vfs = CaptureVfs(f"buckram-{id(self):x}-{self._connections}", self)
        connection = self._host.files.connect(self._vfs.name)
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}").fetchall()
        self._writing = executor = Executor(
            self._host.database,
            connection,
            self._host.limits.result_bytes,
            self._host.limits.transaction_s,
            self._host.threads.now,
            lambda: self._host.superseded,
        )
        outcome_function(connection, lambda token: self._host.outcome(token))
        if self.rows is not None:
            self.rows.watch(connection)
        return executor

    def _execute(self, executor: Executor, statement: Statement) -> SqlResult:
        return executor.execute(statement) if self.rows is None else self.rows.execute(executor, statement)

    def discard(self) -> None:
        """Roll back what is open, and close the connection."""
        if self._writing is not None and self._vfs is not None:
            with suppress(Exception):
                self._roll_back()
            self._writing.connection.close(True)
            self._vfs.close()
        self._writing = self._vfs = None
        self.open = False

    def group(self, leadership: int, units: Sequence[Unit]) -> tuple[list[Given], bool]:
        """Execute units in one transaction. Returns the outcome of each, and whether anything was written.

        The last units are left out, and not begun, if the results of those before already have as many bytes as may be
        held. Raises the error with which the commit was refused; where some calls failed by themselves, each of the
        others has it as its outcome.
        """
        results: dict[int, Given] = {}
        self._partly.clear()
        while True:
            try:
                again, wrote = self._attempt(leadership, units, results)
            except TransactionTooLarge as error:
                if len(units) - _failed(results) + len(self._partly) > 1:
                    return self._one_by_one(leadership, units, results)
                again, wrote = False, False
                for index in range(len(units)):
                    if index in self._partly or not isinstance(results.get(index), Exception):
                        results[index] = error
            except CommitUnknown as error:
                if _failed(results) == len(self._partly):
                    raise
                # Who failed is no part of what may be committed, and failed in a state that nothing proves any more.
                for index, given in results.items():
                    results[index] = error if index in self._partly else _outcome(given, error, self._host.database)
                again, wrote = False, True
            if not again:
                return list(map(results.__getitem__, takewhile(results.__contains__, range(len(units))))), wrote

    def _one_by_one(
        self, leadership: int, units: Sequence[Unit], results: dict[int, Given]
    ) -> tuple[list[Given], bool]:
        """Execute each unit in a transaction of its own: together they are too large for one."""
        found: list[Given] = []
        partly = set(self._partly)
        all_wrote, room = True, self._host.limits.result_bytes
        for index, unit in enumerate(units):
            if room <= 0:
                break
            before = results.get(index)
            if isinstance(before, Exception) and index not in partly:
                found.append(before)
                continue
            try:
                given, wrote = self.group(leadership, [unit])
            except DatabaseFailed:
                raise
            except BuckramError as error:
                # Those before are committed and say so; those behind were not begun.
                found.append(error)
                rest = len(units) - len(found)
                return [*found, *[NotLeader(self._host.database, "") for _ in range(rest)]], all_wrote
            found += given
            all_wrote = all_wrote and wrote
            room -= self._writing.given_bytes if self._writing is not None else 0
        return found, all_wrote

    def _attempt(self, leadership: int, units: Sequence[Unit], results: dict[int, Given]) -> tuple[bool, bool]:
        """Execute units in one transaction, and add their outcomes to `results`.

        Returns whether the rest must be tried again, because one of them made SQLite roll everything back, and whether
        anything was written.
        """
        executor, room = self._begin(leadership), self._host.limits.result_bytes
        for index in [one for one, given in results.items() if one in self._partly or not isinstance(given, Exception)]:
            del results[index]
        self._partly.clear()
        try:
            for index, unit in enumerate(units):
                if isinstance(results.get(index), Exception):
                    continue
                if room <= 0:
                    break
                given = results[index] = self._unit(executor, unit, index)
                room -= executor.given_bytes
                if isinstance(given, NotLeader) or (isinstance(given, TransactionTooLarge) and len(units) > 1):
                    raise given
                if not executor.connection.in_transaction:
                    return True, False
            self._commit()
            self._record_receipts()
        finally:
            self._roll_back()
        return False, self._wrote

    def _unit(self, executor: Executor, unit: Unit, index: int) -> Given:
        connection = executor.connection
        before = connection.total_changes()
        mark = None if self.rows is None else self.rows.mark()
        executor.inside("SAVEPOINT buckram_unit")
        executor.given_bytes = 0
        connection.set_last_insert_rowid(0)
        executor.guard.deadline = self._host.threads.now() + self._host.limits.transaction_s
        try:
            given = [self._execute(executor, statement) for statement in unit.statements]
            if _deferred(connection):
                raise self._violated()
        except Exception as error:
            if connection.in_transaction:
                # A statement alone that says OR FAIL keeps what it did before it failed, as with SQLite.
                kept = isinstance(error, SqlError) and connection.total_changes() != before
                kept = kept and len(unit.statements) == 1 and unit.token is None
                if kept and _deferred(connection):
                    kept, error = False, self._violated()
                if kept:
                    self._partly.add(index)
                else:
                    executor.inside("ROLLBACK TO buckram_unit")
                executor.inside("RELEASE buckram_unit")
                if self.rows is not None and mark is not None:
                    self.rows.end_unit(mark, rolled_back=not kept)
            return error
        finally:
            executor.guard.deadline = 0.0
            if executor.guard.lent:
                executor.give_back()
        executor.inside("RELEASE buckram_unit")
        if self.rows is not None and mark is not None:
            self.rows.end_unit(mark, rolled_back=False)
        if unit.token is not None:
            self._receipts.append(Receipt(unit.token, encode_counts(given)))
        return given

    def _violated(self) -> SqlError:
        """Return the error that SQLite gives at a commit that violates a deferred foreign key."""
        text, name = "FOREIGN KEY constraint failed", "SQLITE_CONSTRAINT_FOREIGNKEY"
        return SqlError(self._host.database, text, 19, _FOREIGN_KEYS, name)

    def alone(self, leadership: int, statement: Statement, token: str | None = None) -> tuple[SqlResult, bool]:
        """Execute a statement that must not stand in a transaction, such as VACUUM. It counts no rows."""
        executor = self._prepare(leadership)
        executor.given_bytes = 0
        if token is not None:
            self._receipts = [Receipt(token, encode_counts([SqlResult()]))]
        # SQLite attaches a database of its own while it vacuums.
        executor.guard.inside = is_vacuum(statement.sql)
        executor.guard.deadline = (
            0.0 if executor.guard.inside else self._host.threads.now() + self._host.limits.transaction_s
        )
        failure: Exception | None = None
        try:
            result = self._execute(executor, statement)
        except Exception as error:
            failure = error
            raise
        finally:
            executor.guard.inside = False
            executor.guard.deadline = 0.0
            self._finish(failure)
        self._record_receipts()
        return result, self._wrote

    def begin(self, leadership: int, foreign_keys: bool = True) -> None:
        """Begin a transaction of one caller. `foreign_keys` False: they are not looked at before the commit."""
        executor = self._begin(leadership, foreign_keys)
        executor.connection.set_last_insert_rowid(0)
        # While a savepoint is open, SQLite writes every page that it adds, also those that are free again.
        executor.inside("SAVEPOINT buckram_all")
        self.open = True

    def statement(self, statement: Statement, deadline: float) -> SqlResult:
        """Execute a statement in the caller's transaction, until `deadline` of the monotonic clock."""
        executor = self._opened()
        executor.given_bytes, executor.guard.deadline = 0, deadline
        try:
            if may_return_changes(statement.sql):
                return self._all_or_nothing(executor, statement)
            return self._execute(executor, statement)
        finally:
            executor.guard.deadline = 0.0
            if self.rows is not None and self.rows.spoiled:
                self._roll_back()
            if not executor.connection.in_transaction:
                self.open = False

    def _all_or_nothing(self, executor: Executor, statement: Statement) -> SqlResult:
        """Execute a statement whose rows may be too many when all that it changes is changed.

        SQLite undoes what fails by itself, and keeps what INSERT OR FAIL did; what fails here is undone here.
        """
        mark = None if self.rows is None else self.rows.mark()
        executor.inside("SAVEPOINT buckram_statement")
        try:
            result = self._execute(executor, statement)
        except Exception as error:
            spoiled = self.rows is not None and self.rows.spoiled
            if executor.connection.in_transaction and not spoiled:
                if not isinstance(error, SqlError):
                    executor.inside("ROLLBACK TO buckram_statement")
                    if self.rows is not None and mark is not None:
                        self.rows.end_unit(mark, rolled_back=True)
                executor.inside("RELEASE buckram_statement")
            raise
        executor.inside("RELEASE buckram_statement")
        return result

    def _opened(self) -> Executor:
        if not self.open or self._writing is None:
            raise NotLeader(self._host.database, "")
        return self._writing

    def commit(self, receipt: Receipt | None = None) -> bool:
        """Commit the caller's transaction; returns whether it wrote anything. After an SqlError it is open."""
        executor = self._opened()
        self._receipts = [] if receipt is None else [receipt]
        try:
            if self._keys_off:
                self._check_keys(executor)
            self._commit()
            self._record_receipts()
        except Exception as error:
            if not isinstance(error, SqlError):
                self._roll_back()
            raise
        finally:
            if not executor.connection.in_transaction:
                self.open = False
        return self._wrote

    def _check_keys(self, executor: Executor) -> None:
        """Raise SqlError if a foreign key names a row that does not exist."""
        missing = executor.inside("PRAGMA foreign_key_check")
        if missing:
            table, row, parent, _ = missing[0]
            raise SqlError(
                self._host.database,
                f"FOREIGN KEY constraint failed: {len(missing)} rows name rows that do not exist, such as row {row} of "
                f"table {table}, of {parent} (PRAGMA foreign_key_check shows them)",
                19,
                _FOREIGN_KEYS,
                "SQLITE_CONSTRAINT_FOREIGNKEY",
            )

    def roll_back(self) -> None:
        """Roll the caller's transaction back if it is open; also done when another process's group is applied."""
        self._behind = True
        if self.open:
            self._roll_back()

    # -- transactions -------------------------------------------------------------------------------------

    def _prepare(self, leadership: int) -> Executor:
        if self._writing is None:
            self._host.keep_files()
        self._host.files.checkpoint_if_due()
        executor = self._writing or self._connected()
        if executor.guard.lent:
            executor.give_back()
        if self._keys_off:
            executor.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
            self._keys_off = False
        if self._behind and not executor.connection.in_transaction:
            # SQLite compiles by the schema that it knows, and some errors come of that before it has looked again.
            executor.inside("SELECT count(*) FROM sqlite_schema")
            self._behind = False
        assert self._vfs is not None
        self._vfs.begin()
        self._leadership, self._wrote, self._captured = leadership, False, None
        self._receipts = []
        if self.rows is not None:
            self.rows.begin()
        return executor

    def _begin(self, leadership: int, foreign_keys: bool = True) -> Executor:
        executor = self._prepare(leadership)
        if executor.connection.in_transaction:  # of a caller who was cancelled and could not end it
            self._roll_back()
        if not foreign_keys:
            self._keys_off = True
            executor.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 0)
        executor.inside("BEGIN IMMEDIATE")
        return executor

    def _commit(self) -> None:
        executor = self._writing
        assert executor is not None
        failure: Exception | None = None
        try:
            executor.inside("COMMIT")
        except Exception as error:
            failure = error
            raise executor.translated(error) from None
        finally:
            self._finish(failure)

    def _record_receipts(self) -> None:
        """Write the receipts of units that changed nothing into the log, in a group without pages."""
        if self._receipts and not self._wrote:
            pending, _, digest = self._grouped({}, self._host.files.size)
            self._have_decided(pending)
            self._host.advance(pending.sequence, digest)

    def _have_decided(self, pending: Pending) -> None:
        """Wait until the group is in the log. Raises the error if it is not."""
        self._host.ask_for_commit(pending)
        if pending.error is not None:
            raise pending.error
        self._wrote = True

    def _finish(self, failure: Exception | None) -> None:
        """Note the captured group as committed in the files, after SQLite has written it.

        Raises DatabaseFailed if SQLite has rolled it back (the disk may be full) although the log has the group: then
        the files differ from the log.
        """
        if self._captured is None:
            return
        captured, changed, digest = self._captured
        self._captured = None
        executor = self._writing
        assert executor is not None
        if failure is not None or executor.connection.in_transaction:
            text = f"a group is in the log and could not be written to the files: {failure or 'SQLite gave no reason'}"
            raise DatabaseFailed(self._host.database, f"{text}. Close it and open it again")
        self._host.files.committed(captured.frames, changed, captured.size)
        self._host.advance(self._host.sequence + 1, digest)

    def _roll_back(self) -> None:
        executor = self._writing
        self.open = False
        if executor is not None and executor.connection.in_transaction:
            executor.inside("ROLLBACK")
        if self._vfs is not None:
            self._vfs.begin()

    # -- while SQLite writes ------------------------------------------------------------------------------

    def on_spill(self, pages: int) -> None:
        if pages * PAGE_BYTES > self._host.limits.transaction_bytes:
            raise TransactionTooLarge(self._host.database, self._host.limits.transaction_bytes)

    def on_log_restarted(self) -> None:
        self._host.files.log_restarted()

    def on_commit(self, captured: Captured) -> None:
        """Write the group into the log, and wait until it is decided."""
        self.on_spill(len(captured.pages))
        pending, changed, digest = self._grouped(captured.pages, captured.size)
        self._have_decided(pending)
        self._captured = captured, changed, digest

    def _grouped(self, pages: Mapping[int, bytes], size: int) -> tuple[Pending, dict[int, tuple[bytes, int]], int]:
        """Return the group that makes these pages; the pages that differ, with their hashes; the new digest."""
        files, digest = self._host.files, self._host.digest
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
        digest = self._host.without_removed(digest, size)
        group = Group(self._leadership, self._host.sequence + 1, size, digest, self._receipts, changes)
        payload = encode_group(group, self._codec)
        pending = Pending(
            self._leadership,
            group.sequence,
            payload if self.rows is None else self.rows.with_changes(payload, self._codec),
            decided=self._host.threads.event(),
        )
        return pending, changed, digest

    def pages_group(self, leadership: int, pages: Mapping[int, bytes], size: int) -> Pending:
        """Return a group that writes whole pages and is applied like a group of another process."""
        self._leadership, self._receipts = leadership, []
        if self.rows is not None:
            self.rows.begin()
        return self._grouped(pages, size)[0]


def _deferred(connection: apsw.Connection) -> bool:
    """Return whether a deferred foreign key is violated now; SQLite checks those at the commit."""
    return bool(connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0])


def _outcome(given: Given, unknown: CommitUnknown, database: str) -> BuckramError:
    """Return what a call is told if the outcome of its group is unknown; `given`: what it would have been told."""
    return NotLeader(database, "") if isinstance(given, Exception) else unknown


def _failed(results: dict[int, list[SqlResult] | Exception]) -> int:
    return sum(isinstance(result, Exception) for result in results.values())
