"""Admission: the look at metadata before the first acknowledgement of a normal add for a ledger new to this store.

A store that never saw a ledger cannot know whether it was fenced or deleted while its predecessor was here (F3, M8,
M10), so metadata decides. Runs wait here in order; what happens to them afterwards is the add path's matter.

A ledger that is closed already is not always a stale writer's: where this bookie looks later than the others of a
quorum, they may have answered, and the writer sealed, before it has looked. What the ledger was closed with is then
the copy that nobody waited for, and refusing it would leave it missing here until somebody repairs it.

A ledger that metadata does not know is not one: it was deleted, or it is another cluster's. Its adds are refused as
fenced, and the fence is durable, because this store denies its entries from then on (F5, I6). Absence is believed only
where two reads say so, each of them after a sync: a metadata server that lags has not heard of a ledger just made.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Callable
from typing import Generic, TypeVar

from buckram.bookie.store import Store
from buckram.bookie.store_errors import StoreError
from buckram.config import BookieConfig
from buckram.core.entry import master_key
from buckram.errors import MetadataError, MetadataUnavailable, NoSuchKey, NoSuchLedger
from buckram.net.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.types import NO_ENTRY, EntryId, LedgerId, LedgerMetadata, LedgerState

log = logging.getLogger("buckram.bookie")
CHECKS_AT_ONCE = 32
VOUCHED_LIMIT = 100_000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
LOOKS, BETWEEN_LOOKS_S = 2, 0.1
"""How often a ledger has to be absent, and the pause before the next look."""
R = TypeVar("R")


class Verdict(enum.Enum):
    ADMITTED = 1
    FENCED = 2
    UNKNOWN = 3
    """Its record is unreadable, or the metadata store is not as it should be."""
    WRONG_KEY = 4
    CLOSED = 5
    """It may not grow any more; entries up to its last one are for good, wherever they come from."""
    LATER = 6
    """The metadata store did not answer in time. Nothing is known, nothing changed."""


Finding = tuple[Verdict, bytes | None, EntryId]
"""The verdict, the master key where metadata knows the password, and the last entry of a ledger that is CLOSED."""


class Admission(Generic[R]):
    """Holds runs of ledgers under check. `release(run, verdict, last)` gets each of them once, in order, per ledger;
    `last` is the last entry of one that is CLOSED.

    Bytes are bounded by the connections: a waiting run counts as a request in memory of its connection.
    """

    def __init__(
        self, store: Store, metadata: MetadataStore, config: BookieConfig, rng: random.Random,
        release: Callable[[R, Verdict, EntryId], None],
    ) -> None:
        self._store, self._metadata, self._timeout_s, self._rng = store, metadata, config.admission_timeout_s, rng
        self._anybody = config.admission == "any"
        self._release = release
        self._scope = TaskScope("admission")
        self.waiting: dict[LedgerId, list[R]] = {}
        """Runs by ledger. As long as a ledger is here, every normal add of it queues behind."""
        self._vouched: dict[LedgerId, None] = {}
        self._keys: dict[LedgerId, bytes] = {}
        self._queued: list[tuple[LedgerId, float]] = []
        self._running = 0

    def hold(self, ledger_id: LedgerId, key: bytes, run: R) -> None:
        """Keep a run until the ledger is decided; the first one starts the check."""
        runs = self.waiting.get(ledger_id)
        if runs is not None:
            runs.append(run)
            return
        self.waiting[ledger_id] = [run]
        self._keys[ledger_id] = key
        self._queued.append((ledger_id, asyncio.get_running_loop().time() + self._timeout_s))
        if self._running < CHECKS_AT_ONCE:
            self._running += 1
            self._scope.spawn(self._work(), "admission")

    def vouched(self, ledger_id: LedgerId) -> bool:
        """Whether this process has seen it open in metadata: a store that lost data may have lost a fence, too."""
        return ledger_id in self._vouched

    async def close(self) -> None:
        """Runs that still wait are dropped unanswered: the bookie is stopping."""
        await self._scope.close()
        self.waiting.clear()

    async def _work(self) -> None:
        try:
            while self._queued:
                ledger_id, deadline = self._queued.pop(0)
                self._conclude(ledger_id, *await self._decide(ledger_id, deadline))
        finally:
            self._running -= 1

    def _conclude(self, ledger_id: LedgerId, verdict: Verdict, key: bytes | None, last: EntryId) -> None:
        """Write the verdict down and let the runs go; no await, so a fence that came meanwhile is seen (F4)."""
        runs = self.waiting.pop(ledger_id)
        offered = self._keys.pop(ledger_id)
        try:
            verdict = self._write_down(ledger_id, verdict, offered, key)
        except StoreError as error:
            log.warning("ledger %d: its admission cannot be written down: %s", ledger_id, error)
            verdict = Verdict.UNKNOWN
        if verdict is Verdict.WRONG_KEY:
            self._release(runs[0], verdict, last)
            for run in runs[1:]:
                self._release(run, Verdict.ADMITTED, last)  # goes through the whole add path again, this check included
            return
        for run in runs:
            self._release(run, verdict, last)

    def _write_down(self, ledger_id: LedgerId, verdict: Verdict, offered: bytes, key: bytes | None) -> Verdict:
        record = self._store.ledger(ledger_id)
        if verdict not in (Verdict.UNKNOWN, Verdict.LATER) and key is not None and record is None and offered != key:
            # The first run has a wrong password, so it changes nothing (F14); the others get a check of their own.
            return Verdict.WRONG_KEY
        if verdict is Verdict.ADMITTED:
            if record is None:
                self._store.put_ledger(ledger_id, offered)
            elif not record.tombstone:
                self._store.admit(ledger_id)
            if self._store.limbo:
                if len(self._vouched) >= VOUCHED_LIMIT:
                    self._vouched.clear()
                self._vouched[ledger_id] = None
        elif verdict is Verdict.FENCED:
            if record is None:
                self._store.put_ledger(ledger_id, offered if key is None else key)
            self._store.fence(ledger_id)
        elif verdict is Verdict.CLOSED and record is None:
            # As for a copy by repair: the next add is checked again.
            self._store.put_ledger(ledger_id, offered if key is None else key, admitted=False)
        return verdict

    async def _decide(self, ledger_id: LedgerId, deadline: float) -> Finding:
        try:
            async with asyncio.timeout_at(deadline):
                metadata = await self._look(ledger_id)
        except TimeoutError:
            log.warning("ledger %d: no metadata within %.0f s, its adds have to wait", ledger_id, self._timeout_s)
            return Verdict.LATER, None, NO_ENTRY
        except MetadataError as error:
            log.warning("ledger %d: its metadata is unreadable, its adds get an error: %s", ledger_id, error)
            return Verdict.UNKNOWN, None, NO_ENTRY
        if metadata is None:
            if self._anybody and not self._store.limbo:  # one that lost data may have lost the burial, too
                return Verdict.ADMITTED, None, NO_ENTRY
            log.info("ledger %d: no such ledger in metadata, so nothing of it is taken", ledger_id)
            return Verdict.FENCED, None, NO_ENTRY
        key = None if metadata.password is None else master_key(metadata.password)
        if metadata.state is LedgerState.OPEN:
            return Verdict.ADMITTED, key, NO_ENTRY
        if metadata.closed and metadata.last_entry is not None and not self._store.limbo:
            return Verdict.CLOSED, key, metadata.last_entry
        return Verdict.FENCED, key, NO_ENTRY  # in recovery, or this store may have lost a fence

    async def _look(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        """The ledger's metadata as of now; None where it is absent for good. Asks for as long as nobody answers."""
        pause, absent = FIRST_PAUSE_S, 0
        while True:
            try:
                await self._metadata.sync()
                return (await self._metadata.read_ledger(ledger_id)).metadata
            except (NoSuchLedger, NoSuchKey):
                absent += 1
                if absent >= LOOKS:
                    # Of a cluster that is gone, too, one hears that there is no such ledger.
                    await self._metadata.instance_id()
                    return None
                await asyncio.sleep(BETWEEN_LOOKS_S)
            except MetadataUnavailable:
                await asyncio.sleep(pause * (0.5 + self._rng.random()))
                pause = min(pause * 2, LONGEST_PAUSE_S)
