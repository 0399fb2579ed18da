"""Admission: the look at metadata before the first acknowledgement of a normal add for a ledger new to this store.

A store that never saw a ledger cannot know whether it was fenced or deleted while its predecessor was here (F3, M8,
M10), so metadata decides. Runs wait here in order.

A closed ledger does not always mean a stale writer. If this bookie looks later than the other bookies of the quorum,
they may have acknowledged the entry, and the writer may have closed the ledger, before. Entries up to the last one are
therefore stored; refusing them would leave the ledger under-replicated until it is repaired.

A ledger that metadata does not know was deleted or belongs to another cluster. Its adds are refused as fenced, and the
fence is durable, because this store denies its entries from then on (F5, I6). Absence counts only after two reads, each
after a sync, because a metadata server that lags does not know a ledger that was just created.

A ledger with an id that was used before has another birth (I7). Stored data of the earlier ledger is dropped once
metadata says that it is gone; until then nothing of the new ledger is stored. Our metadata stores never give an id
twice: if two random births meet and neither ledger was deleted, the store went back, and nothing is dropped (I27).

Keys are compared with metadata, too, when a ledger is first seen, be it by a fence, a recovery add, a LAC or an add.
Only normal adds wait long. The others wait for PROOF_S; without an answer by then the key is stored as *unproven*. A
request with another key then asks metadata again, and the key that metadata names replaces the unproven one, together
with all data that came with it (F14).
Not here: what is done with a verdict (`bookie/service/entries/adds.py`, `fencing.py`, `dispatch.py`).
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from typing import NamedTuple, Protocol

from buckram.bookie.service.connections.ledger_births import is_other
from buckram.bookie.service.connections.long_poll import LongPolls
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.store import LedgerRecord, Store
from buckram.bookie.trust.store_trust import UNSEEN, Trust
from buckram.config import BookieConfig
from buckram.core.backoff import ADMISSION, Delays
from buckram.core.entries.entry import master_key
from buckram.core.ledgers.metadata import birth_of, is_certain
from buckram.errors import BuckramError, MetadataUnavailable, NoSuchKey, NoSuchLedger
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.types import NO_BIRTH, NO_ENTRY, EntryId, LedgerId, LedgerMetadata, LedgerState

log = logging.getLogger("buckram.bookie")
CHECKS_AT_ONCE = 32
VOUCHED_LIMIT = 100_000
PROOF_S = 2.0
"""Seconds that a fence, a recovery add or a LAC waits for metadata to confirm its key. Its sender waits as long, and an
unreachable metadata store must not prevent a recovery."""
LOOKS, BETWEEN_LOOKS_S = 2, 0.1
"""Number of reads that must find a ledger absent, and the seconds between two of them."""


class Verdict(enum.Enum):
    ADMITTED = 1
    FENCED = 2
    UNKNOWN = 3
    """Its record is unreadable, or the metadata store answered with an error."""
    WRONG_KEY = 4
    CLOSED = 5
    """The ledger may not grow any more, but entries up to its last one are stored."""
    LATER = 6
    """The metadata store did not answer in time; nothing has changed."""
    OTHER = 7
    """The ledger that was named does not exist: metadata has another one under its id."""
    ABSENT = 8
    """Metadata does not know it: adds are refused as FENCED, and no key is right."""


class VerdictCallback(Protocol):
    """Called once with the verdict; `last` is the last entry of a ledger that is CLOSED, else NO_ENTRY."""

    def __call__(self, verdict: Verdict, last: EntryId, /) -> None: ...


class Finding(NamedTuple):
    """The state of a ledger id in metadata: the verdict on its ledger, the master key if metadata has the password, the
    last entry of a ledger that is CLOSED, and the birth (b"" if unknown or if there is no ledger)."""

    verdict: Verdict
    key: bytes | None = None
    last: EntryId = NO_ENTRY
    birth: bytes = b""

    @property
    def decided(self) -> bool:
        return self.verdict not in (Verdict.UNKNOWN, Verdict.LATER)

    @property
    def exists(self) -> bool:
        return self.decided and self.verdict is not Verdict.ABSENT

    def means(self, name: bytes | None) -> bool:
        return not name or not self.birth or name == self.birth


class AdmissionWaiter:
    """A request that waits for the verdict: the birth that it named (None for none), its key, and its callback.

    `grows`: it is a normal add.
    """

    __slots__ = ("done", "grows", "key", "name", "timer")

    def __init__(self, name: bytes | None, key: bytes, done: VerdictCallback, grows: bool) -> None:
        self.name, self.key, self.done, self.grows = name, key, done, grows
        self.timer: asyncio.TimerHandle | None = None


def needs_proof(record: LedgerRecord | None, key: bytes) -> bool:
    """Return whether only metadata shows if the key is the ledger's."""
    return record is None or (not record.proven and record.master_key != key)


class Admission:
    """Holds the requests that wait for a look at metadata. The callbacks of one ledger are called in order, once each.

    The memory of waiting runs is bounded by the limits of their connections. `polls` of a ledger are woken when its
    data is dropped in favour of another ledger with its id.
    """

    def __init__(
        self,
        store: Store,
        metadata: MetadataStore,
        config: BookieConfig,
        rng: random.Random,
        polls: LongPolls,
        trust: Trust = UNSEEN,
    ) -> None:
        self._store, self._metadata, self._timeout_s, self._rng = store, metadata, config.admission_timeout_s, rng
        self._anybody = config.admission == "any"
        self._polls, self._trust = polls, trust
        self._scope = TaskScope("admission")
        self.waiting: dict[LedgerId, list[AdmissionWaiter]] = {}
        """The waiting requests by ledger. While a ledger is in it, its adds that are in doubt join the queue."""
        self._vouched: dict[LedgerId, None] = {}
        self._queued: list[tuple[LedgerId, float]] = []
        self._running = 0

    def hold(
        self, ledger_id: LedgerId, key: bytes, name: bytes | None, done: VerdictCallback, *, grows: bool = False
    ) -> None:
        """Wait until the ledger is decided; the first request of a ledger starts the look at metadata.

        Requests other than normal adds (`grows`) wait for PROOF_S at most, and get LATER then.
        """
        one = AdmissionWaiter(name, key, done, grows)
        loop = asyncio.get_running_loop()
        if not grows:
            one.timer = loop.call_later(min(PROOF_S, self._timeout_s), self._late, ledger_id, one)
        waiting = self.waiting.get(ledger_id)
        if waiting is not None:
            waiting.append(one)
            return
        self.waiting[ledger_id] = [one]
        self._queued.append((ledger_id, loop.time() + self._timeout_s))
        if self._running < CHECKS_AT_ONCE:
            self._running += 1
            self._scope.spawn(self._work(), "admission")

    def _late(self, ledger_id: LedgerId, one: AdmissionWaiter) -> None:
        waiting = self.waiting.get(ledger_id)
        if waiting is not None and one in waiting:
            waiting.remove(one)
            one.done(Verdict.LATER, NO_ENTRY)

    def vouched(self, ledger_id: LedgerId) -> bool:
        """Return whether this process has seen the ledger open in metadata; a store in limbo may have lost a fence."""
        return ledger_id in self._vouched

    async def close(self) -> None:
        """Drop all waiting requests unanswered, because the bookie is stopping."""
        await self._scope.close()
        for waiting in self.waiting.values():
            _stop_timers(waiting)
        self.waiting.clear()

    async def _work(self) -> None:
        try:
            while self._queued:
                ledger_id, deadline = self._queued.pop(0)
                try:
                    found = await self._decide(ledger_id, deadline)
                except Exception as error:  # waiting requests get a reply, and the next one looks again
                    log.error("ledger %d: its metadata could not be looked up: %r", ledger_id, error, exc_info=error)
                    found = Finding(Verdict.UNKNOWN)
                self._conclude(ledger_id, found)
        finally:
            self._running -= 1

    def _conclude(self, ledger_id: LedgerId, found: Finding) -> None:
        """Record the verdict and continue the requests; without an await, so that a new fence is seen (F4)."""
        waiting = self.waiting.pop(ledger_id)
        _stop_timers(waiting)
        # A request with a wrong key changes nothing and delays no other (F14).
        meant = [one for one in waiting if found.means(one.name) and found.key in (None, one.key)]
        try:
            verdict = self._write_down(ledger_id, found, meant)
        except StoreError as error:
            log.warning("ledger %d: its admission cannot be recorded: %s", ledger_id, error)
            verdict = Verdict.UNKNOWN
        for one in waiting:
            if not found.means(one.name):
                one.done(Verdict.OTHER, NO_ENTRY)
            elif found.key not in (None, one.key):
                one.done(Verdict.WRONG_KEY, NO_ENTRY)
            else:
                one.done(verdict, found.last)

    def _write_down(self, ledger_id: LedgerId, found: Finding, meant: list[AdmissionWaiter]) -> Verdict:
        store, verdict = self._store, found.verdict
        if not found.decided:
            return verdict
        self._settle_key(ledger_id, found)
        record = store.ledger(ledger_id)
        grows = [one for one in meant if one.grows]
        if not meant or (verdict is Verdict.ABSENT and not grows):
            return verdict
        asked = (grows or meant)[0]
        admitted = verdict is Verdict.ADMITTED
        key = asked.key if found.key is None else found.key
        if is_other(record, found.birth) and record is not None:
            if self._contradicts(record, found.birth):
                return Verdict.LATER
            log.info(
                "ledger %d: another ledger has its id now, so the entries of the earlier one here are garbage",
                ledger_id,
            )
            store.reborn(ledger_id, key, found.birth, admitted=admitted)
            self._polls.state_changed(ledger_id)
        elif record is None:
            # A CLOSED ledger is not admitted, so its next add is checked again.
            birth = found.birth or asked.name or NO_BIRTH
            store.put_ledger(ledger_id, key, admitted, birth=birth, proven=found.exists)
        elif found.birth and record.birth == NO_BIRTH and not record.tombstone:
            store.learn_birth(ledger_id, found.birth)
        if admitted and record is not None and not record.tombstone:
            store.admit(ledger_id)
        if verdict in (Verdict.FENCED, Verdict.ABSENT) and grows:
            store.fence(ledger_id)
        elif admitted:
            self._admitted(ledger_id, found.birth)
        return verdict

    def _admitted(self, ledger_id: LedgerId, birth: bytes) -> None:
        self._trust.admitted(ledger_id, birth)
        if self._store.limbo:
            if len(self._vouched) >= VOUCHED_LIMIT:
                self._vouched.clear()
            self._vouched[ledger_id] = None

    def _settle_key(self, ledger_id: LedgerId, found: Finding) -> None:
        """Prove the stored key, if it was unproven, or drop what came with it (F14).

        A birth that came with an unproven key does not count either.
        """
        record = self._store.ledger(ledger_id)
        if record is None or record.proven or not found.exists:
            return
        if found.key not in (None, record.master_key):
            assert found.key is not None
            log.warning("ledger %d: its entries here were written with a wrong password and are dropped", ledger_id)
            self._store.disown(ledger_id, found.key, found.birth or NO_BIRTH)
            self._polls.state_changed(ledger_id)
        elif not is_other(record, found.birth):
            self._store.prove(ledger_id)

    def _contradicts(self, record: LedgerRecord, birth: bytes) -> bool:
        """Return whether the stored ledger and the one of this birth show that the metadata store went back."""
        if record.tombstone or not record.proven or not (is_certain(record.birth) and is_certain(birth)):
            return False  # a birth that was never checked is no evidence against the store
        return self._trust.contradicted(record.ledger_id, record.birth)

    async def _decide(self, ledger_id: LedgerId, deadline: float) -> Finding:
        try:
            async with asyncio.timeout_at(deadline):
                metadata = await self._look(ledger_id)
        except TimeoutError:
            log.warning("ledger %d: no metadata within %.0f s, its adds have to wait", ledger_id, self._timeout_s)
            return Finding(Verdict.LATER)
        except BuckramError as error:  # also an id that this kind of store cannot have
            log.warning("ledger %d: its metadata is unreadable, its adds get an error: %s", ledger_id, error)
            return Finding(Verdict.UNKNOWN)
        if metadata is None:
            if self._anybody and not self._store.limbo:  # one that lost data may have lost the deletion, too
                return Finding(Verdict.ADMITTED)
            log.info("ledger %d: the metadata store has no such ledger, so its adds are refused", ledger_id)
            return Finding(Verdict.ABSENT)
        birth = birth_of(metadata)
        key = None if metadata.password is None else master_key(metadata.password)
        if metadata.state is LedgerState.OPEN:
            return Finding(Verdict.ADMITTED, key, NO_ENTRY, birth)
        if metadata.closed and metadata.last_entry is not None and not self._store.limbo:
            return Finding(Verdict.CLOSED, key, metadata.last_entry, birth)
        return Finding(Verdict.FENCED, key, NO_ENTRY, birth)  # in recovery, or this store may have lost a fence

    async def _look(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        """Return the ledger's metadata as of now; None if it is absent for good. Retries until the store answers."""
        delays, absent = Delays(ADMISSION, self._rng), 0
        while True:
            try:
                await self._metadata.sync()
                found = await self._read(ledger_id)
                absent += found is None
                if absent >= LOOKS:
                    # A store that lost the whole cluster would report the ledger absent, too; this raises then.
                    await self._metadata.instance_id()
                if found is not None or absent >= LOOKS:
                    await self._require_trust()
                    return found
                await asyncio.sleep(BETWEEN_LOOKS_S)
            except MetadataUnavailable:
                await asyncio.sleep(delays.take())

    async def _read(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        try:
            return (await self._metadata.read_ledger(ledger_id)).metadata
        except (NoSuchLedger, NoSuchKey):
            return None

    async def _require_trust(self) -> None:
        """Raise MetadataUnavailable if the store went back: it may lack an existing ledger, and fences are final."""
        if not await self._trust.confirm():
            raise MetadataUnavailable("the metadata store went back")


def _stop_timers(waiting: list[AdmissionWaiter]) -> None:
    for one in waiting:
        if one.timer is not None:
            one.timer.cancel()
