"""Database: the handle of a replicated SQL database, from `ns.database(name)`. SQLite is its table engine.

Nothing is committed, here or anywhere, before it is in the log. docs/explanation/databases-design.md says how. Not
here: turns (`state/db/commits/write_queue.py`), the log (`state/db/commits/committing.py`,
`state/db/commits/state_machine.py`), SQLite (`state/db/table_engine/engine.py`, `state/db/table_engine/readers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from buckram.client.shared.handles import NotBlocking
from buckram.core.db.changes import Change
from buckram.core.db.outcomes import check_token, parse_own
from buckram.core.db.sql import Described, Parameters, SqlResult
from buckram.errors import DatabaseFailed, InvalidArgument, SnapshotDamaged, SqlError, StatementRefused, TooStale
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import THREADS, Threads
from buckram.state.db.commits.changes import read_changes
from buckram.state.db.commits.committing import Committing
from buckram.state.db.commits.replica_reports import ReplicaReport, ReplicaReporter
from buckram.state.db.commits.state_machine import DatabaseState
from buckram.state.db.commits.transactions import Mode, OpenTransaction, Transactions, begin_transaction
from buckram.state.db.commits.write_queue import WriteQueue
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine.engine import Engine
from buckram.state.db.table_engine.execution import Pending, Unit
from buckram.state.db.table_engine.readers import Readers
from buckram.state.db.table_engine.row_images import RowImages
from buckram.state.db.table_engine.statements import is_vacuum, statement, text_of
from buckram.state.db.table_engine.wal_files import write_in_thread
from buckram.state.machine.machine import Consistency
from buckram.state.machine.replica import Replica, Role
from buckram.streams.namespace import StreamNamespace

Outcome = Literal["committed", "pending", "aborted"]
"""Outcome of the transaction of a token. "aborted": nothing was committed under it, and no attempt begun so far will
be. "pending": it waits or is being executed, or this replica cannot know because it does not lead."""
_READONLY = 8
_BACKUPS = 2
"""Maximum number of concurrent backups; each has open files, and keeps SQLite from restarting its write-ahead log."""


class Database(NotBlocking):
    """One process's replica of a database. `async with` or aclose().

    The leader writes; every replica reads. Errors of every call: DatabaseFailed and ReplicaStopped (this replica
    stopped; open it again), HandleClosed. Of statements: SqlError, StatementRefused, InvalidArgument, ResultTooLarge.
    """

    def __init__(
        self,
        name: str,
        state: DatabaseState,
        limits: DatabaseLimits,
        directory: Path | None,
        on_closed: Callable[[object], None],
        threads: Threads = THREADS,
    ) -> None:
        self.name = name
        """Full name, NAMESPACE/DATABASE."""
        self._state, self._on_closed = state, on_closed
        self._scope = TaskScope(f"database {name}")
        self._engine = state.engine = Engine(name, limits, self, directory, threads)
        self._readers = Readers(self._engine)
        self._sign: ReplicaReporter | None = None
        self._backups = asyncio.Semaphore(_BACKUPS)
        self._open = Transactions(name, limits)
        self._has_begun = False
        self._replica: Replica
        self._committing: Committing
        self._writer: WriteQueue

    def start(self, replica: Replica) -> None:
        """Begin to serve. For `state/db/opening.py`."""
        self._replica = replica
        self._committing = Committing(replica, self._state, self._scope)
        self._writer = WriteQueue(self._engine, self._committing, self._scope)
        self._engine.outcome = self._known

    def note_rows(self) -> None:
        """Turn on change data capture of rows. For `state/db/opening.py`, before `start`."""
        self._engine.execution.rows = RowImages(self.name, self._engine.limits.transaction_bytes)

    def __repr__(self) -> str:
        return f"<Database {self.name} {self.role} applied={self.applied}>"

    # -- what the engine says -----------------------------------------------------------------------------

    def commit_wanted(self, pending: Pending) -> None:
        """Write a group into the log; called by the engine."""
        self._committing.commit(pending)

    def engine_failed(self, error: DatabaseFailed) -> None:
        """Close the replica; called by the engine when it stopped."""
        if not self._scope.closed:
            self._scope.spawn(self._replica.close(), "failed")

    # -- what one can know --------------------------------------------------------------------------------

    @property
    def role(self) -> str:
        """Role of this replica: "follower", "leader", or "stopped" (then each call raises the reason)."""
        return "stopped" if self._engine.failure is not None else self._replica.role.value

    @property
    def applied(self) -> int:
        """Offset of the next record of the log; passed as `after`, it lets a reader elsewhere see a write made here."""
        return self._replica.fold.applied

    @property
    def log_bytes(self) -> int:
        """The bytes of all records in the log since the database was made."""
        return self._replica.fold.log_bytes

    @property
    def damaged_snapshots(self) -> tuple[SnapshotDamaged, ...]:
        """A SnapshotDamaged for each published snapshot that could not be restored here: the one before was taken."""
        return tuple(self._replica.damaged_snapshots)

    async def leader_address(self) -> str | None:
        """Return the address that the leading process has announced, or its HOST:PID; None if no process leads."""
        return await self._replica.leader_name() or None

    # -- statements ---------------------------------------------------------------------------------------

    async def execute(self, sql: str, parameters: Parameters = (), *, token: str | None = None) -> SqlResult:
        """Execute one statement and return its result; what it changed is durable then. Reads are linearizable.

        Statements of one moment share a transaction of the table engine, and each fails alone. Under a `token` it is
        executed once, however often it is repeated; a repetition returns counts without rows. Raises NotLeader,
        CommitUnknown, DatabaseBusy, TransactionExpired, TransactionTooLarge.
        """
        one, text = statement(sql, parameters), text_of(sql)
        if token is None and text.reads:
            try:
                return await self._query(one, "linearizable", None, None)
            except SqlError as error:
                if error.code != _READONLY:
                    raise
        self._engine.check()
        if text.word == "VACUUM" and not is_vacuum(sql):
            raise StatementRefused(self.name, "VACUUM INTO and parts of a database: use backup, or VACUUM alone")
        if token is not None:
            check_token(token)
        if text.word in ("VACUUM", "PRAGMA"):
            return await self._writer.execute_alone(one, token)
        unit = Unit((one,), token)
        return (await self._writer.execute(unit))[0]

    async def batch(
        self, statements: Iterable[str | tuple[str, Parameters]], *, token: str | None = None
    ) -> list[SqlResult]:
        """Execute statements as one transaction, all or nothing, and return their results. Errors as of `execute`."""
        given = [statement(*((one,) if isinstance(one, str) else one)) for one in statements]
        if not given:
            return []
        self._engine.check()
        return await self._writer.execute(Unit(given, None if token is None else check_token(token)))

    async def query(
        self,
        sql: str,
        parameters: Parameters = (),
        *,
        consistency: Consistency = "linearizable",
        at_most_s: float | None = None,
        after: int | None = None,
    ) -> SqlResult:
        """Execute a statement that only reads.

        "linearizable": everything that was committed anywhere before this call is seen; leader only, and costs a round
        to the bookies, shared by all reads that wait. "leader": without that question. "stale": what this replica has,
        at least what the log had when it was opened; with `at_most_s` it lacks nothing that was committed so many
        seconds before the call, with `after` nothing below this offset (`applied` of the leader after a write). Raises
        NotLeader, TooStale.
        """
        one = statement(sql, parameters)
        if consistency != "stale" or at_most_s is not None or after is not None:
            return await self._query(one, consistency, at_most_s, after)
        await self._begun()
        return await self._readers.execute(one)

    async def _query(self, one: Any, consistency: Consistency, at_most_s: float | None, after: int | None) -> SqlResult:
        replica = self._replica
        self._engine.check()
        if consistency == "linearizable" and at_most_s is None:
            await replica.prove()
        elif consistency == "leader" and at_most_s is None:
            await replica.leading()
        elif consistency == "stale":
            await self._begun()
            if at_most_s is not None:
                if (
                    isinstance(at_most_s, bool)
                    or not isinstance(at_most_s, int | float)
                    or not 0 <= at_most_s <= 86_400
                ):
                    raise InvalidArgument(f"at_most_s={at_most_s!r}: needs seconds from 0 to 86400")
                await replica.fresh(at_most_s)
        else:
            raise InvalidArgument(
                f"consistency {consistency!r}, at_most_s={at_most_s!r}: choose linearizable, leader or stale; "
                "at_most_s is for stale"
            )
        if after is not None:
            await self.applied_at_least(after)
        if consistency != "stale" or at_most_s is not None or after is not None:
            await self._engine.settled(self._state.sequence)
        return await self._readers.execute(one)

    async def applied_at_least(self, offset: int) -> None:
        """Wait until this replica has everything below an offset. Raises TooStale after DatabaseLimits.query_s."""
        if type(offset) is not int or offset < 0:
            raise InvalidArgument(f"after={offset!r}: an offset is an int from 0 on")
        if self.applied >= offset:
            return
        limit_s = self._engine.limits.query_s
        try:
            async with asyncio.timeout(limit_s):
                await self._replica.applied_at_least(offset)
        except TimeoutError:
            reason = f"it has applied everything below {self.applied}, and not below {offset} within {limit_s:g} s"
            raise TooStale.behind(self.name, reason) from None

    async def _begun(self) -> None:
        """Wait until the files have everything that was in the log when this replica was opened. Raises TooStale."""
        self._engine.check()
        self._replica.check_running()
        if not self._has_begun:
            await self._replica.begun()
            await self._engine.settled(self._state.sequence)
            self._has_begun = True

    async def describe(self, sql: str) -> Described:
        """Describe a statement (columns, parameters) without executing it, by the schema that this replica has."""
        statement(sql)
        await self._begun()
        found: Described = await self._readers.run(lambda reading: reading.executor().describe(sql))
        return found

    # -- transactions -------------------------------------------------------------------------------------

    async def begin(self, mode: Mode = "deferred", *, foreign_keys: bool = True) -> OpenTransaction:
        """Begin a transaction, which sees what was committed before.

        "deferred": it takes its turn with its first write, and reads one state beside others until then. "immediate":
        at once. From its turn on it has the database for DatabaseLimits.transaction_s at most, and others wait.
        `foreign_keys` False: it takes its turn at once, foreign keys are not looked at while a table is made anew, and
        before the commit all of them are. Raises NotLeader, DatabaseBusy.
        """
        if mode not in ("deferred", "immediate", "exclusive"):
            raise InvalidArgument(f"mode {mode!r}: choose deferred or immediate")
        self._engine.check()
        return await begin_transaction(self._engine, self._committing, self._writer, self._open, mode, foreign_keys)

    def transaction(self, mode: Mode = "deferred") -> TransactionContext:
        """`async with db.transaction() as t:` commits at the end, and rolls back after an error."""
        return TransactionContext(self, mode)

    async def outcome(self, token: str) -> Outcome:
        """Return the outcome of the transaction of a token: a caller's own one or that of a CommitUnknown.

        Leader only. Raises NotLeader.
        """
        if not isinstance(token, str):
            raise InvalidArgument(f"token {token!r}: needs a str")
        await self._replica.prove()
        return self._known(token)

    def _known(self, token: str) -> Outcome:
        own, state = parse_own(token), self._state
        # In this order: what is in flight while the question is asked may be committed before it is looked at.
        pending = state.pending
        if own is None:
            waits = self._writer.is_using(token)
            committed = state.outcomes.counts(token) is not None
        else:
            waits = pending is not None and (pending.leadership, pending.sequence) == (own.leadership, own.sequence)
            committed = own.log == self._replica.place.uid and state.outcomes.has(own.leadership, own.sequence)
        if committed:
            return "committed"
        return "pending" if waits or not self._committing.leads else "aborted"

    # -- changes ------------------------------------------------------------------------------------------

    def changes(self, after: int | None = None, *, follow: bool = False) -> AsyncIterator[Change]:
        """Iterate over the row changes of committed transactions, in order; the database must have cdc=True.

        `async for change in db.changes(after=offset)`, where `offset` is that of the last change that was seen (-1 for
        the first one ever); without it, from the beginning of what is kept. `follow`: wait for more at the end. Raises
        ChangesNotKept, ChangesGone.
        """
        place = self._replica.place
        if after is not None and (type(after) is not int or after < -1):
            raise InvalidArgument(f"after={after!r}: an offset is an int from 0 on, or -1")
        first = None if after is None else after + 1
        ns = StreamNamespace(place.client, place.name.namespace)
        return read_changes(place.client, ns, place.name, first, follow)

    # -- copies -------------------------------------------------------------------------------------------

    async def backup(self, path: str | Path) -> int:
        """Write the state that this replica has into a file of SQLite's; returns its bytes. Raises OSError.

        The file has its name when all of it is there. Transactions go on meanwhile.
        """
        return (await self.backup_at(path))[1]

    async def backup_at(self, path: str | Path) -> tuple[int, int]:
        """Write a file as `backup` does; return the offset below which everything is in it, and its bytes."""
        await self._begun()
        async with self._backups:
            offset, image = self.applied, self._engine.image(self._state.sequence)
            return offset, await write_in_thread(await image, Path(path))

    async def catch_up(self, at_most_s: float) -> None:
        """Wait until this replica has everything committed up to `at_most_s` seconds before this call. TooStale."""
        await self._begun()
        await self._replica.fresh(at_most_s)

    @property
    def groups(self) -> int:
        """The number of transactions since the database was made, in the state that this replica has."""
        return self._state.sequence

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[tuple[Engine, Committing, int]]:
        """Yield the engine, the log and the leadership while no other caller may write. For `state/db/transfer.py`."""
        ended = await self._writer.turn()
        try:
            leadership, _ = await self._committing.leadership()
            await self._committing.prove()
            await self._engine.settled(self._state.sequence)
            yield self._engine, self._committing, leadership
        finally:
            if not ended.done():
                ended.set_result(None)

    # -- leading ------------------------------------------------------------------------------------------

    async def lead(self, *, takeover: bool = False) -> None:
        """Wait until this replica leads. `takeover`: fence the present leader, who may not know what is in flight.

        Raises MirrorStream for a mirror of a database in another cluster, which is led there.
        """
        await self._replica.lead(takeover=takeover)

    async def check_writable(self) -> None:
        """Raise MirrorStream for a mirror of a database in another cluster. Raises MetadataError."""
        await self._replica.check_writable()

    async def leads_within(self, seconds: float) -> bool:
        """Wait at most `seconds` until this replica leads; return whether it does. For `hrana`."""
        return await self._replica.leads_within(seconds)

    async def step_down(self) -> None:
        """Stop leading after everything in flight, so that another replica can."""
        await self._replica.step_down()

    async def snapshot(self) -> int:
        """Take a snapshot now and return the offset of its state once it is published. NotLeader, SnapshotFailed."""
        return await self._replica.snapshot()

    # -- being seen ---------------------------------------------------------------------------------------

    def show(self, name: str) -> None:
        """Have `buckram db show` and `verify` list this replica under a name. For servers."""
        place = self._replica.place
        nonce = f"{place.client.services.runtime.rng.getrandbits(128):032x}"
        key = f"{place.streams.layout.replicas(place.uid)}/{nonce}"

        async def report() -> ReplicaReport:
            # Both in the thread that changes them.
            groups, digest = await self._engine.run(lambda: (self._engine.sequence, self._engine.digest))
            return ReplicaReport(name, self.role, self.applied, groups, f"{digest:016x}")

        self._sign = ReplicaReporter(place.streams.keys, key, report)
        self._sign.start()

    # -- the end ------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Stop following or leading, after everything in flight, and remove the local files. Idempotent."""
        if self._replica.role is not Role.STOPPED:
            self._replica.place.client.services.check_loop()
        if self._sign is not None:
            await self._sign.close()
        self._writer.close()
        await self._replica.close()
        await self.abandon()

    async def abandon(self) -> None:
        """Remove the local files of a database that was not started. For `state/db/opening.py`."""
        await self._scope.close()
        await self._readers.close()
        await self._engine.close()
        self._open.close()
        self._on_closed(self)

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class TransactionContext(NotBlocking):
    """Context manager from `db.transaction()`: commits at the end of the block, rolls back after an error."""

    def __init__(self, database: Database, mode: Mode) -> None:
        self._database, self._mode = database, mode
        self._open: OpenTransaction | None = None

    async def __aenter__(self) -> OpenTransaction:
        self._open = await self._database.begin(self._mode)
        return self._open

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._open is not None
        if error is not None:
            await self._open.rollback()
            return
        try:
            await self._open.commit()
        finally:
            await self._open.rollback()
