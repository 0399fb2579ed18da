"""`SqliteKeys`: the embedded key store of one machine, used by several processes at once.

SQL runs in one worker thread per store, but for `peek`, which reads in the loop. Writes that wait together share one
commit. A write that has to wait for another process is tried again and again, and reads go on in between: a process
that was stopped in the middle of a change stands in the way of changes, not of reads. Changes of watched keys are
noticed by looking at the file every 10 to 500 ms, never by writing. The tree itself is sqlite_tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from buckram.errors import ForkedClient, InvalidArgument, MetadataError, MetadataUnavailable, NoSuchKey
from buckram.metadata.sqlite.changes import WatchKey
from buckram.metadata.sqlite.database_file import Moment
from buckram.metadata.sqlite.durable_reads import SqliteNear
from buckram.metadata.sqlite.file_locks import Wait
from buckram.metadata.sqlite.tree import Busy, SqliteTree, Token
from buckram.metadata.tree.key_grammar import Absent, check_key, check_multi, check_op, check_parent
from buckram.metadata.tree.layout import SECURITY, TENANTS, WISHES
from buckram.seams import Notify
from buckram.types import Create, Delete, KeyOp, KeyValue, SetValue

_POLL_S = 0.05
_QUIET_POLL_S, _QUIET_AFTER_S = 0.5, 5.0
"""Interval of polling instead of `_POLL_S` where nobody has changed anything for so long, seconds: the end of a session
and the first change after a rest are noticed that much later, and a process that idles costs a tenth.
"""
_PATIENT_POLL_S, _PATIENT = 0.5, tuple(f"/buckram/{folder}" for folder in (WISHES, SECURITY, TENANTS))
"""Interval of polling while only these keys are watched, seconds: every bookie watches them, and reads them every few
seconds anyway.
"""
_EAGER_POLL_S, _EAGER = 0.01, "/buckram/streams/"
"""Interval of polling a counter of the file while keys below `_EAGER` are watched, seconds, because readers of a stream
wait for the next segment by watch. Other processes, bookies above all, shall not wake up so often.
"""
_SESSION_POLL_S = 1.0
_LINE_S = 60.0
"""Maximum time that a change waits while others get theirs done, one after the other, seconds."""
_CROWD_PAUSE_S = 0.2
"""Maximum pause between two attempts of a change that waits for other processes, seconds."""
_MAX_WAITING = 10_000
_MAX_BATCH = 256
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    """Work for the thread: a function, or `ops` to write; neither in the last job, which ends the thread."""

    future: asyncio.Future[object]
    run: Callable[[], object] | None = None
    ops: Sequence[KeyOp] | None = None
    result: object = None
    since: float = 0.0
    """Time at which a write began to wait for other processes; 0 before that."""


class SqliteKeys:
    """A KeyStore: one session, begun with its first ephemeral key. Close it on the loop it was made on.

    A change waits for a minute while other processes get theirs done; when no process completes a change for
    `busy_timeout_s` it raises MetadataUnavailable, which names the process that holds the lock. After a fork the
    child's copy refuses to work.
    """

    def __init__(self, path: str | Path, *, busy_timeout_s: float = 5.0) -> None:
        self._path = Path(path)
        if not self._path.is_absolute():
            raise InvalidArgument(f"database path {path}: must be absolute, for example {self._path.absolute()}")
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._lost: list[Notify] = []
        self._waiting = 0
        self._closing: asyncio.Future[object] | None = None
        self._near = SqliteNear(self._path)
        self._settling = False
        tree = SqliteTree(self._path, busy_timeout_s)
        tree.near = self._near
        self._worker = _Worker(tree, busy_timeout_s, self._post, self._settle, self._notify)
        self._thread = threading.Thread(target=self._worker.run, name=f"metadata {self._path.name}", daemon=True)
        self._thread.start()

    async def prepare(self) -> None:
        await self._call(self._worker.tree.prepare)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        return await self._write_one(Create(key, bytes(value), ephemeral))

    async def set(self, key: str, value: bytes, version: int) -> int:
        return await self._write_one(SetValue(key, bytes(value), version))

    async def delete(self, key: str, version: int) -> None:
        await self._write_one(Delete(key, version))

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        check_multi(ops)
        await self._begin(ops=list(ops))

    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        check_key(key)
        found = await self._call(lambda: self._worker.get(key, watch))
        if found is None:
            raise NoSuchKey(key)
        return found

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        check_parent(parent, limit)
        return await self._call(lambda: self._worker.children(parent, after, limit, watch))

    async def children_with_values(
        self, parent: str, *, after: str = "", limit: int = 1000
    ) -> list[tuple[str, KeyValue]]:
        check_parent(parent, limit)
        return await self._call(lambda: self._worker.tree.children_with_values(parent, after, limit))

    async def sync(self) -> None:
        """Do nothing: every read is a transaction of its own, which begins with what was committed by then."""
        self._check_usable()

    async def lasting(self) -> list[tuple[str, int, bytes]]:
        """Return every key that is bound to no session, with version and value, as of one moment."""
        return await self._call(self._worker.tree.lasting)

    def peek(self, keys: Sequence[str]) -> Sequence[KeyValue | Absent | None]:
        """Read as PromptKeys does: the calling thread, the loop's, reads the file's pages."""
        if self._closing is not None or os.getpid() != self._pid:
            return [None] * len(keys)
        found, unsettled = self._near.peek(keys)
        if unsettled is not None:
            self._settle_near(unsettled)
        return found

    def _settle_near(self, moment: Moment) -> None:
        """Have the thread make durable what `peek` sees, so that it may be returned without the loop waiting for a
        disk.
        """
        if self._settling or self._waiting >= _MAX_WAITING:
            return
        self._settling = True

        def settled(done: asyncio.Future[object]) -> None:
            self._settling = False
            if not done.cancelled() and done.exception() is None:
                self._near.is_durable(moment)

        self._begin(run=self._worker.tree.make_all_durable).add_done_callback(settled)

    async def look(self, keys: Sequence[str]) -> list[KeyValue | None]:
        """Read as PromptKeys does, in the worker's thread."""
        return await self._call(lambda: [self._worker.get(key, None) for key in keys])

    def begin(self, ops: Sequence[KeyOp]) -> asyncio.Future[list[int]]:
        """Begin a `multi` as PromptKeys does."""
        check_multi(ops)
        return cast("asyncio.Future[list[int]]", self._begin(ops=list(ops)))

    async def reopen(self) -> None:
        """Go on, after StoreReplaced, with the file that now has the name."""
        self._near.close()
        await self._call(self._worker.tree.reopen)

    def on_session_lost(self, notify: Notify) -> None:
        self._lost.append(notify)

    async def close(self) -> None:
        if os.getpid() != self._pid:
            return  # the file and the session are the parent's
        if self._closing is None:
            self._near.close()
            self._closing = self._loop.create_future()
            self._worker.jobs.put(_Job(self._closing))
        await asyncio.shield(self._closing)
        self._thread.join()

    async def _write_one(self, op: KeyOp) -> int:
        check_op(op)
        return cast(list[int], await self._begin(ops=[op]))[0]

    async def _call(self, run: Callable[[], T]) -> T:
        return cast(T, await self._begin(run=run))

    def _begin(
        self, *, run: Callable[[], object] | None = None, ops: Sequence[KeyOp] | None = None
    ) -> asyncio.Future[object]:
        self._check_usable()
        if self._waiting >= _MAX_WAITING:
            raise MetadataUnavailable(f"{self._waiting} operations wait for {self._path}, the limit; try again later")
        self._waiting += 1
        job = _Job(self._loop.create_future(), run, ops)
        self._worker.jobs.put(job)
        return job.future

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedClient(f"{self._path} was opened before this process was forked: connect again in the child")
        if self._closing is not None or not self._thread.is_alive():
            raise MetadataUnavailable("this metadata store was closed")

    # Called by the worker's thread; what they schedule runs on the loop.

    def _post(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed without closing this store
            self._loop.call_soon_threadsafe(function, *args)

    def _settle(self, batch: Sequence[_Job]) -> None:
        self._waiting -= len(batch)
        for job in batch:
            if job.future.done():
                continue  # the caller was cancelled
            if isinstance(job.result, Exception):
                job.future.set_exception(job.result)
            else:
                job.future.set_result(job.result)

    def _notify(self, watch: Notify | None) -> None:
        """Notify a watch; None for the loss of the session."""
        if self._closing is None:
            for notify in self._lost if watch is None else (watch,):
                notify()


def _pause_of(place: WatchKey) -> float:
    """Return the polling interval that suffices for a watch of this place, in seconds."""
    key = place[1]
    if key.startswith(_EAGER):
        return _EAGER_POLL_S
    return _PATIENT_POLL_S if key.startswith(_PATIENT) else _POLL_S


class _Worker:
    """The thread's side: jobs in, batches of results out. Touches the loop through `post` only."""

    def __init__(
        self,
        tree: SqliteTree,
        within_s: float,
        post: Callable[..., None],
        settle: Callable[[Sequence[_Job]], None],
        notify: Callable[[Notify | None], None],
    ) -> None:
        self.tree = tree
        self._within_s = within_s
        self._blocked: list[_Job] = []
        """Writes that wait for another process, in their order."""
        self._wait: Wait | None = None
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._post = post
        self._settle = settle
        self._notify = notify
        self._watches: dict[WatchKey, tuple[Token, dict[Notify, None]]] = {}
        self._pauses: Counter[float] = Counter()
        self._last_poll = self._last_liveness = 0.0
        self._changed_at = time.monotonic()
        """Time of the last change, by this process or noticed of others."""

    def run(self) -> None:
        """Do jobs until the closing one. Whatever happens, no caller is left waiting."""
        last: _Job | None = None
        batch: list[_Job] = []
        try:
            while last is None:
                batch = self._take()
                last = next((job for job in batch if job.run is None and job.ops is None), None)
                done = self._do(batch)
                self._fire_touched()
                if done and last is None:
                    self._post(self._settle, done)
                self._poll()
            with contextlib.suppress(MetadataError):
                self.tree.close()
        finally:
            last_ones = set(batch)
            waiting = [job for job in self._blocked if job not in last_ones]
            for job in self._blocked:
                job.result = MetadataUnavailable("this metadata store was closed before it could be changed")
            self._finish([*waiting, *batch])

    def _take(self) -> list[_Job]:
        """Return all jobs that wait; none when it is time to poll."""
        batch: list[_Job] = []
        pause = self._pause()
        wait = None if pause is None else max(self._last_poll + pause - time.monotonic(), 0.0)
        if self._blocked:
            # The attempts themselves wait a little; in between others shall find the file free.
            wait = min(random.uniform(0, _CROWD_PAUSE_S), wait or _CROWD_PAUSE_S)
        with contextlib.suppress(queue.Empty):
            batch.append(self.jobs.get(timeout=wait))
            while len(batch) < _MAX_BATCH:
                batch.append(self.jobs.get_nowait())
        return batch

    def _do(self, batch: list[_Job]) -> list[_Job]:
        """Do jobs in their order; neighbouring writes with one commit.

        Returns those that are done: writes that wait for another process are not, and are tried again with whatever
        comes next.
        """
        waited = self._blocked
        self._try_blocked()
        start = 0
        while start < len(batch):
            end = start
            while end < len(batch) and batch[end].ops is not None:
                end += 1
            if end > start:
                if self._blocked:
                    self._block(batch[start:end])
                else:
                    self._do_writes(batch[start:end])
                start = end
                continue
            job = batch[start]
            try:
                job.result = job.run() if job.run else None
            except Exception as error:  # whatever it is, the caller hears of it
                job.result = error
            start += 1
        self._make_durable([job for job in batch if job.run is not None])
        still = set(self._blocked)
        return [job for job in [*waited, *batch] if job not in still]

    def _make_durable(self, reads: list[_Job]) -> None:
        """Make durable what others committed and these jobs have read, before they are answered: it must not be lost
        then.
        """
        if not reads:
            return
        try:
            self.tree.make_durable()
        except Exception as error:
            for job in reads:
                job.result = error

    def _block(self, writes: list[_Job]) -> None:
        now = time.monotonic()
        for job in writes:
            job.since = job.since or now
        self._blocked = [*self._blocked, *writes]

    def _try_blocked(self) -> None:
        waiting, self._blocked = self._blocked, []
        if waiting:
            self._do_writes(waiting)
        if not self._blocked:
            self._wait = None
            return
        now = time.monotonic()
        self._wait = self._wait or Wait(self.tree.path, self._within_s, now)
        self._wait.look(now, self.tree.progress())
        since = self._wait.since
        for job in self._blocked:
            if now - max(job.since, since) >= self._within_s:
                job.result = MetadataUnavailable(self._wait.why_stuck())
            elif now - job.since >= _LINE_S:
                job.result = MetadataUnavailable(self._wait.why_long(_LINE_S))
        self._blocked = [job for job in self._blocked if job.result is None]

    def _do_writes(self, writes: list[_Job]) -> None:
        try:
            results: Sequence[object] = self.tree.write([job.ops or () for job in writes])
        except Busy:
            self._block(writes)
            return
        except Exception as error:
            results = [error] * len(writes)
        self._changed_at = time.monotonic()
        for job, result in zip(writes, results, strict=True):
            job.result = result

    def _finish(self, batch: list[_Job]) -> None:
        """Answer the last batch, and jobs that came too late."""
        late: list[_Job] = []
        with contextlib.suppress(queue.Empty):
            while True:
                late.append(self.jobs.get_nowait())
        for job in late:
            job.result = MetadataUnavailable("this metadata store was closed")
        self._post(self._settle, [*late, *batch])

    # Watches

    def get(self, key: str, watch: Notify | None) -> KeyValue | None:
        found, token = self.tree.get(key)
        self._arm(("value", key), token, watch)
        return found

    def children(self, parent: str, after: str, limit: int, watch: Notify | None) -> list[str]:
        names, token = self.tree.children(parent, after, limit)
        self._arm(("children", parent), token, watch)
        return names

    def _arm(self, place: WatchKey, token: Token, watch: Notify | None) -> None:
        if watch is None:
            return
        if place not in self._watches:
            self._pauses[_pause_of(place)] += 1
        armed, waiting = self._watches.get(place, (token, {}))
        if armed != token:  # a change that no poll has seen yet: notify the earlier watches now
            self._fire(place)
            self._pauses[_pause_of(place)] += 1
            waiting = {}
        waiting[watch] = None
        self._watches[place] = (token, waiting)

    def _fire_touched(self) -> None:
        places, self.tree.touched = self.tree.touched, {}
        for place in places:
            self._fire(place)
        if self.tree.session_lost:
            self.tree.session_lost = False
            self._post(self._notify, None)
            for place in list(self._watches):
                self._fire(place)

    def _fire(self, place: WatchKey) -> None:
        if place in self._watches:
            self._pauses[_pause_of(place)] -= 1
        _, waiting = self._watches.pop(place, (None, {}))
        for watch in waiting:
            self._post(self._notify, watch)

    def _pause(self) -> float | None:
        """Return the pause between two polls in seconds; None if there is nothing to notice."""
        if self._watches:
            pause = min(pause for pause, places in self._pauses.items() if places)
            return self._noticing_s() if pause == _POLL_S else pause
        # Poll even without watches, to notice that the open file was deleted.
        return _SESSION_POLL_S if self.tree.is_open else None

    def _noticing_s(self) -> float:
        """Return the interval at which the end of sessions is looked for, in seconds."""
        return _POLL_S if time.monotonic() < self._changed_at + _QUIET_AFTER_S else _QUIET_POLL_S

    def _poll(self) -> None:
        pause, now = self._pause(), time.monotonic()
        if pause is None or now < self._last_poll + pause:
            return
        self._last_poll = now
        liveness = now >= self._last_liveness + self._noticing_s()
        if liveness:
            self._last_liveness = now
        # A poll that fails is repeated soon; the operations themselves report what is wrong with the store.
        with contextlib.suppress(MetadataError):
            if self.tree.poll({place: token for place, (token, _) in self._watches.items()}, liveness=liveness):
                self._changed_at = now
        self._fire_touched()
