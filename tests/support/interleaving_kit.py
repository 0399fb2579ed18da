"""Several SqliteKeys on one file whose threads take turns: a seed decides which thread continues, and when.

A thread stops before each SQL statement, before each look at a session's lock and where it waits for jobs; between two
stops nobody else runs. Only one thread ever does, so a seed gives the same interleaving again. Time is counted.
What is committed is done to a MemoryTree, too, in the same order, and results, reads and watches are held against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.interleaving_clients import Store

from buckram.errors import BuckramError
from buckram.metadata.sqlite import changes as sqlite_changes
from buckram.metadata.sqlite import database_file as sqlite_file
from buckram.metadata.sqlite import file_locks
from buckram.metadata.sqlite import keys as sqlite
from buckram.metadata.sqlite import tree as sqlite_tree
from buckram.metadata.tree.memory import MemoryTree
from buckram.types import Create, KeyOp, SetValue


class Killed(BaseException):
    """The simulated process of this thread was killed."""


class Lane:
    """The thread of one store, as the scheduler sees it."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.go = threading.Semaphore(0)
        self.at, self.patience = "", None
        self.jobs: deque[Any] = deque()
        self.writing = self.ended = self.killed = self.closing = False
        self.store: Store | None = None
        self.committing: Sequence[Sequence[KeyOp]] | None = None
        self.expected: list[Any] = []

    def stop_before(self, what: str) -> None:
        """Wait, in the store's thread, until the scheduler lets it continue."""
        self.turns.lane_of[threading.get_ident()] = self
        if self.killed:
            raise Killed
        self.at = what
        self.turns.stopped.release()
        self.go.acquire()
        if self.killed:
            raise Killed

    @property
    def may_go(self) -> bool:
        if self.ended:
            return False
        if self.at == "jobs":
            return bool(self.jobs) or self.patience is not None
        begins = self.at.endswith(sqlite_changes.VIEW) or (self.at.startswith("BEGIN") and not self.writing)
        return not (begins and self.turns.writer is not None)

    # -- what sqlite.py takes for a queue

    def put(self, job: Any) -> None:
        self.jobs.append(job)

    def get(self, timeout: float | None = None) -> Any:
        self.patience = timeout
        self.stop_before("jobs")
        if self.jobs:
            return self.jobs.popleft()
        self.turns.now += timeout or 0.0
        raise queue.Empty

    def get_nowait(self) -> Any:
        if not self.jobs:
            raise queue.Empty
        return self.jobs.popleft()


class Closing:
    """A query that is held open, and says when it is closed."""

    def __init__(self, rows: sqlite3.Cursor, closed: Callable[[], None]) -> None:
        self._rows, self._closed = rows, closed

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def close(self) -> None:
        self._rows.close()
        self._closed()


class Connection:
    """A connection that waits for the scheduler before each statement, and sometimes fails."""

    def __init__(self, real: sqlite3.Connection, turns: Turns) -> None:
        self._real, self._turns = real, turns
        real.execute("PRAGMA synchronous=OFF")

    def execute(self, statement: str, *parameters: Any) -> Any:
        turns, lane = self._turns, self._turns.lane_of[threading.get_ident()]
        lane.stop_before(statement)
        failing = turns.rng.random() < turns.trouble
        if failing and not lane.writing and statement.startswith(("SELECT", "PRAGMA")):
            raise sqlite3.OperationalError("disk I/O error")
        alone = not self.in_transaction
        if statement == "COMMIT" or (alone and statement.startswith((sqlite_changes.COMMIT, sqlite_changes.SET_ALONE))):
            return self._commit(lane, failing, statement, *parameters)
        found = self._real.execute(statement, *parameters)
        if statement.endswith(sqlite_changes.VIEW):
            turns.writer, lane.writing = lane, True
            return Closing(found, lambda: self._view_closed(lane))
        if statement.startswith("BEGIN") and alone and not lane.writing:
            turns.writer, lane.writing = lane, True
        elif statement == "ROLLBACK":
            self._done(lane)
        return found

    def _commit(self, lane: Lane, failing: bool, statement: str, *parameters: Any) -> Any:
        when = self._turns.rng.choice(("before", "after")) if failing else ""
        if when == "before":
            raise sqlite3.OperationalError("disk I/O error")
        found = self._real.execute(statement, *parameters)
        if statement != sqlite_changes.SET_ALONE or found.rowcount:  # or what is to be done is found out once more
            self._turns.written(lane, in_doubt=when == "after")
        self._done(lane)
        if when == "after":
            raise sqlite3.OperationalError("disk I/O error")
        return found

    def _view_closed(self, lane: Lane) -> None:
        """Nothing was to be changed, or an error came before that."""
        if lane.writing:
            if sys.exc_info()[0] is None:
                self._turns.written(lane, in_doubt=False)
            self._done(lane)

    def _done(self, lane: Lane) -> None:
        self._turns.writer, lane.writing = None, False

    @property
    def in_transaction(self) -> bool:
        return self._real.in_transaction

    def close(self) -> None:
        lane = self._turns.lane_of[threading.get_ident()]
        self._real.close()
        if lane.writing:
            self._done(lane)


class Turns:
    """The scheduler: it decides which thread continues. `trouble` is the share of statements that fail."""

    def __init__(self, seed: int, path: Path, trouble: float) -> None:
        self.rng, self.path, self.trouble = random.Random(seed), path, trouble
        self.stopped = threading.Semaphore(0)
        self.lane_of: dict[int, Lane] = {}
        self.lanes: list[Lane] = []
        self.stores: list[Store] = []
        self.writer: Lane | None = None
        self.now = 1000.0
        self.model = MemoryTree()
        self.history: list[dict[str, Any]] = [{}]
        self.ends: list[bool] = [False]
        """For each moment, whether a session ended then."""
        self.done: set[tuple[str, bytes, int]] = set()
        """The key, value and version of each creation and change that was committed by itself."""
        self.faults: list[str] = []
        self.resting, self.awake = False, asyncio.Event()
        self.commits = self.kills = self.losses = self.closes = 0

    def wrong(self, what: str) -> None:
        self.faults.append(what)

    # -- the model

    @property
    def moment(self) -> int:
        return len(self.history) - 1

    def moments(self, since: int) -> range:
        return range(since, len(self.history))

    def state(self, kind: str, key: str, moment: int) -> Any:
        snapshot = self.history[moment]
        if kind == "value":
            return snapshot.get(key)
        above = "" if key == "/" else key
        return sorted({name[len(above) + 1 :].split("/")[0] for name in snapshot if name.startswith(above + "/")})

    def _remember(self, *, ended: bool = False) -> None:
        self.history.append({key: (kept.value, kept.version) for key, kept in self.model.snapshot().items()})
        self.ends.append(ended)

    def end_session(self, store: Store) -> None:
        self.model.close_session(store.session)
        self._remember(ended=True)

    def written(self, lane: Lane, in_doubt: bool) -> None:
        """Apply a commit to the model."""
        self.commits += 1
        store = lane.store
        assert store is not None
        lane.expected = []
        for ops in lane.committing or ():
            try:
                if len(ops) == 1:
                    op = ops[0]
                    version = self.model.apply(op, store.session)
                    lane.expected.append([version])
                    if isinstance(op, Create | SetValue):
                        self.done.add((op.key, op.value, version))
                else:
                    self.model.apply_all(ops, store.session)
                    lane.expected.append(None)
            except BuckramError as error:
                lane.expected.append(type(error))
        if lane.committing is None and lane.closing:
            self.model.close_session(store.session)
        self._remember()
        if in_doubt and store.keys._worker.tree._new_lock is not None:  # it takes a session in doubt for none
            self.end_session(store)
            store.session = self.model.open_session(lambda notify: None, lambda: None)

    # -- the turns

    def open(self) -> None:
        self.stores.append(Store(self, self.path))

    def step(self, lane: Lane) -> None:
        lane.go.release()
        self.stopped.acquire()

    async def settled(self) -> None:
        """Let the event loop run the callbacks that are ready."""
        for _ in range(6):
            await asyncio.sleep(0)

    async def play(self, steps: int) -> None:
        """Run so many steps of random threads, then all to rest: followers must have seen the final values."""
        self.resting = False
        self.awake.set()
        self.awake.clear()
        for _ in range(steps):
            await self.settled()
            what = self.rng.random()
            if what < 0.04 and self.writer is None:
                await self._end_one(what)
            ready = [lane for lane in self.lanes if lane.may_go]
            busy = [lane for lane in ready if lane.at != "jobs" or lane.jobs]
            # Polls are rarer than jobs, so that changes come together in one.
            self.step(self.rng.choice(busy if busy and self.rng.random() < 0.7 else ready))
        self.resting = True
        await self._rest()

    async def _end_one(self, what: float) -> None:
        store = self.rng.choice(self.stores)
        if what < 0.02 and store.lose():
            self.losses += 1
            return
        self.stores.remove(store)
        if what < 0.03:
            self.kills += 1
            store.kill()
        else:
            self.closes += 1
            closing = store.close()
            await self.settled()
            while not store.lane.ended:
                ready = [lane for lane in self.lanes if lane.may_go]
                self.step(store.lane if store.lane.may_go else self.rng.choice(ready))
                await self.settled()
            await closing
            self.end_session(store)
        self.lanes.remove(store.lane)
        self.open()

    async def _rest(self) -> None:
        """Run until all jobs are done and each store has read the file more than once."""
        trouble, self.trouble = self.trouble, 0.0
        for _ in range(3):
            for store in self.stores:
                await self.settled()
                for _ in range(2):
                    await self._until_idle(store.lane)
                    if store.lane.patience is not None:
                        self.step(store.lane)
                await self._until_idle(store.lane)
        self.trouble = trouble
        for number, store in enumerate(self.stores):
            for task in store.tasks:
                if task.done() and not task.cancelled():
                    self.wrong(f"a client of store {number} ended with {task.exception()!r}")
            for kind, key, seen in store.seen.values():
                if seen != self.state(kind, key, -1):
                    self.wrong(
                        f"store {number} missed a change: {kind} of {key} is {self.state(kind, key, -1)}, "
                        f"it was told of {seen}"
                    )

    async def _until_idle(self, lane: Lane) -> None:
        await self.settled()
        while lane.at != "jobs" or lane.jobs:
            ready = [one for one in self.lanes if one.may_go and (one.at != "jobs" or one.jobs)]
            self.step(lane if lane.may_go else self.rng.choice(ready))
            await self.settled()

    def check_file(self) -> None:
        """Compare the file, without the keys of dead sessions, with the model."""
        file = sqlite3.connect(self.path)
        live = {self._session_of(store) for store in self.stores}
        there = {}
        for parent, name, value, version, session in file.execute(
            "SELECT parent, name, value, version, session FROM keys WHERE name != ''"
        ):
            if session is None or session in live:
                there[f"{parent.rstrip('/')}/{name}"] = value, version
        file.close()
        if there != self.history[-1]:
            self.wrong(f"the file has {there}, the model {self.history[-1]}")

    def _session_of(self, store: Store) -> int | None:
        return None if store.unaware else store.keys._worker.tree._session

    def end(self) -> None:
        for store in self.stores:
            store.kill()


@contextlib.contextmanager
def _in_turns(turns: Turns) -> Iterator[None]:
    """sqlite.py gets lanes for queues, threads that say when they end, and counted time."""

    def a_queue() -> Lane:
        turns.lanes.append(Lane(turns))
        return turns.lanes[-1]

    def a_thread(target: Callable[[], None], **options: Any) -> threading.Thread:
        lane = turns.lanes[-1]

        def run() -> None:
            with contextlib.suppress(Killed):
                target()
            lane.ended = True
            turns.stopped.release()

        return threading.Thread(target=run, **options)

    alive, connect = file_locks.alive, sqlite_file.connect

    def looked_at(directory: Path, session: int) -> bool:
        lane = turns.lane_of.get(threading.get_ident())
        if lane is not None:
            lane.stop_before("look at a lock")
        return alive(directory, session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "queue", SimpleNamespace(**{**vars(queue), "SimpleQueue": a_queue}))
        patch.setattr(sqlite, "threading", SimpleNamespace(**{**vars(threading), "Thread": a_thread}))
        patch.setattr(sqlite, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: turns.now}))
        patch.setattr(sqlite_file, "connect", lambda *a, **b: Connection(connect(*a, **b), turns))
        patch.setattr(sqlite_file, "sync_data", lambda fd: None)
        patch.setattr(sqlite_tree, "line_of", lambda path: threading.Semaphore(1_000))  # everybody is first in line
        patch.setattr(file_locks, "alive", looked_at)
        yield


async def interleave(seed: int, path: Path, *, stores: int = 3, rounds: int = 30) -> Turns:
    """Run one seed; `faults` of the result says what was wrong."""
    sqlite_file.prepare(path, 5.0)
    path.with_name(path.name + ".sessions").mkdir(exist_ok=True)
    turns = Turns(seed, path, trouble=0.03 if seed % 2 else 0.0)
    with _in_turns(turns):
        for _ in range(stores):
            turns.open()
        try:
            for _ in range(rounds):
                await turns.play(turns.rng.randrange(20, 200))
                turns.check_file()
                if turns.faults:
                    break
        finally:
            turns.end()
            await turns.settled()
    return turns
