"""Clients that change keys and readers that follow them, on stores whose threads take turns (`interleaving_kit`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buckram.errors import BuckramError, MetadataUnavailable, NoSuchKey
from buckram.metadata.sqlite import file_locks
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.types import CheckVersion, Create, Delete, KeyOp, SetValue

if TYPE_CHECKING:
    from tests.support.interleaving_kit import Lane, Turns

KEYS = ("/a", "/a/x", "/a/y", "/b", "/buckram/streams/s", "/buckram/streams/s/t")
PARENTS = ("/", "/a", "/buckram/streams")
FOLLOWED = 5
"""The number of readers of each store that follow a key by its watch."""


class Store:
    """One SqliteKeys with clients: some change keys at random, some follow a key by watches."""

    def __init__(self, turns: Turns, path: Path) -> None:
        self.turns = turns
        self.keys = SqliteKeys(path)
        self.lane: Lane = turns.lanes[-1]
        self.lane.store = self
        turns.stopped.acquire()  # until its thread waits for jobs
        self.session = turns.model.open_session(lambda notify: None, lambda: None)
        self.unaware = False
        """The session's file was removed, and the store has not noticed it yet."""
        self.noticed = -1
        """The moment at which it last noticed that; what was asked for before may have been read before, too."""
        self.keys.on_session_lost(self._lost)
        self._watch_writes()
        rng = turns.rng
        places = [("value", key) for key in KEYS] + [("children", parent) for parent in PARENTS]
        self.seen: dict[int, tuple[str, str, Any]] = {}
        self.tasks = [asyncio.create_task(self._change()) for _ in range(rng.randint(1, 3))]
        followed = rng.choices(places, [1] * len(KEYS) + [3] * len(PARENTS), k=FOLLOWED)  # some twice
        self.tasks += [asyncio.create_task(self._follow(n, *place)) for n, place in enumerate(followed)]

    def _lost(self) -> None:
        self.unaware, self.noticed = False, self.turns.moment

    def _watch_writes(self) -> None:
        tree, lane = self.keys._worker.tree, self.lane
        real = tree.write

        def write(jobs: Sequence[Sequence[KeyOp]]) -> Any:
            lane.committing = jobs
            try:
                results = real(jobs)
            finally:
                lane.committing = None
            for ops, result, expected in zip(jobs, results, lane.expected, strict=True):
                told = type(result) if isinstance(result, BuckramError) else result
                if told != expected and not (expected is None and isinstance(told, list)):
                    self.turns.wrong(f"{ops} gave {told}, where the model gives {expected}")
            return results

        tree.write = write

    async def _change(self) -> None:
        rng, keys = self.turns.rng, self.keys
        known: dict[str, int] = {}
        while True:
            if self.turns.resting:
                await self.turns.awake.wait()
            with contextlib.suppress(BuckramError):
                key, value, what = rng.choice(KEYS), rng.randbytes(3), rng.random()
                if what < 0.25:
                    await self._read(key, known)
                elif what < 0.5:
                    made = await keys.create(key, value, ephemeral=rng.random() < 0.5 and key != "/a")
                    self._was_done(key, value, made)
                elif what < 0.7:
                    made = await keys.set(key, value, known.get(key, rng.randrange(3)))
                    self._was_done(key, value, made)
                elif what < 0.85:
                    await keys.delete(key, known.get(key, rng.randrange(3)))
                else:
                    await keys.multi([self._op(rng.choice(KEYS), known) for _ in range(rng.randint(1, 3))])
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)

    def _op(self, key: str, known: dict[str, int]) -> KeyOp:
        rng = self.turns.rng
        version = known.get(key, rng.randrange(3))
        ops: list[KeyOp] = [
            Create(key, rng.randbytes(2), rng.random() < 0.5 and key != "/a"),
            Delete(key, version),
            SetValue(key, rng.randbytes(2), version),
            CheckVersion(key, version),
        ]
        return rng.choice(ops)

    async def _read(self, key: str, known: dict[str, int]) -> None:
        since = self.turns.moment
        known.pop(key, None)
        try:
            found = await self.keys.get(key)
            known[key] = found.version
            self._check("value", key, (found.value, found.version), since)
        except NoSuchKey:
            self._check("value", key, None, since)

    async def _follow(self, number: int, kind: str, key: str) -> None:
        """Read with a watch after each notification; `seen` is the last value read."""
        while True:
            for _ in range(self.turns.rng.choice((0, 0, 1, 9))):  # so that two of a place read at different times
                await asyncio.sleep(0)
            changed, since = asyncio.Event(), self.turns.moment
            try:
                if kind == "value":
                    got = await self.keys.get(key, changed.set)
                    state: Any = got.value, got.version
                else:
                    state = await self.keys.children(key, watch=changed.set)
            except NoSuchKey:
                state = None
            except MetadataUnavailable:
                await asyncio.sleep(0)
                continue
            self._check(kind, key, state, since)
            self.seen[number] = kind, key, state
            await changed.wait()

    def _was_done(self, key: str, value: bytes, version: int) -> None:
        if (key, value, version) not in self.turns.done:
            self.turns.wrong(f"{key} was told to be {value!r} in version {version}, and never was")

    def _check(self, kind: str, key: str, state: Any, since: int) -> None:
        """It was so at some moment since then. A key of a session that ended meanwhile may be absent already."""
        turns = self.turns
        ended = state is None and any(turns.ends[since:])
        unaware = self.unaware or since <= self.noticed
        if not unaware and not ended and all(turns.state(kind, key, n) != state for n in turns.moments(since)):
            turns.wrong(f"{kind} of {key} read as {state}; it never was since moment {since}")

    # -- ends, between two steps

    def kill(self) -> None:
        """End as after kill -9: the lock is released, the file of the session stays."""
        tree = self.keys._worker.tree
        for task in self.tasks:
            task.cancel()
        lock = tree._lock
        if lock is not None:
            file_locks._held.pop(lock._fd, None)
            os.close(lock._fd)
            tree._lock = None
        self.turns.end_session(self)
        self.lane.killed = True
        self.turns.step(self.lane)

    def lose(self) -> bool:
        """Remove the file of its session. False if it has none."""
        lock = self.keys._worker.tree._lock
        if lock is None or self.unaware:
            return False
        lock._path.unlink()
        self.unaware = True
        self.turns.end_session(self)
        self.session = self.turns.model.open_session(lambda notify: None, lambda: None)
        return True

    def close(self) -> asyncio.Task[None]:
        for task in self.tasks:
            task.cancel()
        self.lane.closing = True
        return asyncio.create_task(self.keys.close())
