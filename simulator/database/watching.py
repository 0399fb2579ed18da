"""Observers of folds, engines and replicas during a life, which wrap some of their methods; and limits of small lives.

Planted bugs are applied before, so the rules observe their effects. Not here: the rules themselves (`rules.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import apsw

from buckram.core.db.sql import SqlResult, Statement
from buckram.core.machine import records
from buckram.core.machine.fold import Applied, Fold
from buckram.core.machine.records import CommandRecord
from buckram.core.machine.sessions import Forgotten, Outcome
from buckram.errors import BuckramError, HandleClosed, ReplicaStopped
from buckram.state.db.commits import committing
from buckram.state.db.commits.state_machine import DatabaseState
from buckram.state.db.commits.transactions import Transactions
from buckram.state.db.commits.write_queue import WriteQueue
from buckram.state.db.table_engine import execution, wal_files
from buckram.state.db.table_engine.engine import Engine
from buckram.state.db.table_engine.execution import Execution
from buckram.state.db.table_engine.readers import Reading
from buckram.state.db.table_engine.statements import Executor
from buckram.state.machine.leader import Leader
from buckram.state.machine.replica import Replica
from simulator.database.plan import DatabasePlan
from simulator.database.rules import Rules
from simulator.engine.loop import PROCESS
from simulator.engine.planting import patched
from simulator.engine.world import World


def small_limits(plan: DatabasePlan) -> AbstractContextManager[None]:
    """Lower limits of the engine, so that the transactions of a life reach them."""
    return patched(
        (committing, "_PART_BYTES", plan.part_bytes),
        (execution, "_CACHE_KIB", plan.cache_kib),
        (wal_files, "_CHECKPOINT_FRAMES", plan.checkpoint_frames),
    )


@contextmanager
def watch_databases(world: World, rules: Rules) -> Iterator[None]:
    """Tell the rules what each replica applies and has in its files, and why it stops."""
    advance, stop, fail = Engine.advance, Replica._stop, Leader.fail
    restore, failed, begin = Engine._restore, Engine._fail, Leader.__init__

    def host() -> str:
        return PROCESS.get(world.loop.world).name

    def watched_advance(self: Engine, sequence: int, digest: int, replaced: int = 0) -> None:
        advance(self, sequence, digest, replaced)
        if not world.processes[host()].dead:
            rules.advanced(host(), self)

    def watched_restore(self: Engine, pages: Any, sequence: int, digest: int) -> None:
        if sequence:
            world.report.situation("a snapshot was restored")
        restore(self, pages, sequence, digest)

    def watched_failed(self: Engine, error: BaseException) -> None:
        if not world.processes[host()].dead:
            world.report.check("D3", False, "{}: its engine stops: {!r}", host(), error)
        failed(self, error)

    def watched_stop(self: Replica, error: BuckramError) -> None:
        first = self._failure is None
        stop(self, error)
        if first and not isinstance(error, HandleClosed):
            world.trace.note(host(), f"replica stops: {error}")
            world.report.check("D3", not isinstance(error, ReplicaStopped), "{} stops: {}", host(), error)

    def watched_fail(self: Leader, error: BuckramError) -> None:
        if not self.ended.done():
            world.trace.note(host(), f"leads no more: {error!r}")
            if self.engine.lost.is_set():
                world.report.situation("a leader was fenced")
        fail(self, error)

    def watched_begin(self: Leader, *args: Any) -> None:
        begin(self, *args)
        rules.histories.led[self] = world.loop.time(), host()

    with (
        _watch_folds(rules, host),
        patched(
            (Engine, "advance", watched_advance),
            (Engine, "_restore", watched_restore),
            (Engine, "_fail", watched_failed),
            (Replica, "_stop", watched_stop),
            (Leader, "fail", watched_fail),
            (Leader, "__init__", watched_begin),
        ),
        _watch_statements(world),
    ):
        yield


@contextmanager
def _watch_statements(world: World) -> Iterator[None]:
    """Let statements dawdle, wait for files that are whole, and tell what became of transactions."""
    spill, restarted, repeated = Execution.on_spill, Execution.on_log_restarted, WriteQueue._repeated
    execute, read = Executor.__init__, Transactions.read

    def with_dawdle(
        self: Executor,
        name: str,
        connection: apsw.Connection,
        bytes_: int,
        s: float,
        now: Any,
        *more: Any,
        **names: Any,
    ) -> None:
        execute(self, name, connection, bytes_, s, now, *more, **names)
        connection.create_scalar_function("dawdle", now.__self__.sleep, 1)

    def read_of_files(self: Transactions, reading: Reading, one: Statement) -> asyncio.Future[SqlResult]:
        if reading._executor is not None or reading._engine.files.intact:
            return read(self, reading, one)
        return asyncio.ensure_future(_once_intact(reading, lambda: read(self, reading, one)))

    def watched_spill(self: Execution, pages: int) -> None:
        if self._captured is None:
            world.report.situation("a transaction spilled")
        spill(self, pages)

    def watched_restarted(self: Execution) -> None:
        world.report.situation("a log was begun anew")
        restarted(self)

    def watched_repeated(self: WriteQueue, waiting: Any) -> bool:
        if answered := repeated(self, waiting):
            world.report.situation("a repetition was answered from its receipt")
        return answered

    with patched(
        (Executor, "__init__", with_dawdle),
        (Transactions, "read", read_of_files),
        (Execution, "on_spill", watched_spill),
        (Execution, "on_log_restarted", watched_restarted),
        (WriteQueue, "_repeated", watched_repeated),
    ):
        yield


async def _once_intact(reading: Reading, read: Callable[[], asyncio.Future[SqlResult]]) -> SqlResult:
    """Read when deleted files have been made anew. A thread would wait for that, and the simulator has none here."""
    while not reading._engine.files.intact:
        reading._engine.check()
        await asyncio.sleep(0.02)
    return await read()


def _watch_folds(rules: Rules, host: Callable[[], str]) -> AbstractContextManager[None]:
    """Watch each applied command, by a method of its own: the leader has commands already, other replicas read them."""
    apply, command = Fold.apply, Fold.command

    def watched_apply(self: Fold, offset: int, value: bytes | None) -> Applied:
        done = apply(self, offset, value)
        if done.kind != records.COMMAND and isinstance(self.state, DatabaseState):
            rules.applied(host(), self.machine, offset, value, self.state.sequence)
        return done

    def watched_command(self: Fold, offset: int, record: CommandRecord, size: int) -> Outcome | Forgotten:
        outcome = command(self, offset, record, size)
        if isinstance(self.state, DatabaseState):
            rules.applied(host(), self.machine, offset, records.encode_command(record), self.state.sequence)
        return outcome

    return patched((Fold, "apply", watched_apply), (Fold, "command", watched_command))


__all__ = ["small_limits", "watch_databases"]
