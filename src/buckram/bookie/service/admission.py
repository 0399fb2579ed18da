"""Admission: the look at metadata before the first acknowledgement of a normal add for a ledger new to this store.

A store that never saw a ledger cannot know whether it was fenced or deleted while its predecessor was here (F3, M8,
M10), so metadata decides. Runs wait here in order; what happens to them afterwards is the add path's matter.

A ledger that is closed already is not always a stale writer's: where this bookie looks later than the others of a
quorum, they may have answered, and the writer sealed, before it has looked. What the ledger was closed with is then
the copy that nobody waited for, and refusing it would leave it missing here until somebody repairs it.

A ledger that metadata does not know is not one: it was deleted, or it is another cluster's. Its adds are refused as
fenced, and the fence is durable, because this store denies its entries from then on (F5, I6). Absence is believed only
where two reads say so, each of them after a sync: a metadata server that lags has not heard of a ledger just made.

An id that was used again is another ledger by its birth (I7). What is here of the one before gives way when metadata
says that it is gone; until then nothing of the new one is taken. Ids that a store of ours gives are never given twice:
where two births that were drawn meet and neither ledger was deleted, it is the store that went back, and nothing gives
way (I27).

Keys are compared with metadata at first sight, too, whatever comes first: a fence, a copy, a LAC or an add. Only adds
wait long. The rest waits for PROOF_S, and where nobody answered the key is kept *unproven*: what comes with another key
asks again, and the key that metadata names takes the place of the other, with nothing left of what that one brought
(F14).
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from typing import NamedTuple, Protocol

from buckram.bookie.service.births import is_other
from buckram.bookie.service.long_poll import LongPolls
from buckram.bookie.storage.errors import StoreError
from buckram.bookie.storage.store import LedgerRecord, Store
from buckram.bookie.trust import UNSEEN, Trust
from buckram.config import BookieConfig
from buckram.core.backoff import ADMISSION, Delays
from buckram.core.entries.entry import master_key
from buckram.core.ledgers.metadata import birth_of, is_certain
from buckram.errors import BuckramError, MetadataUnavailable, NoSuchKey, NoSuchLedger
from buckram.net.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.types import NO_BIRTH, NO_ENTRY, EntryId, LedgerId, LedgerMetadata, LedgerState

log = logging.getLogger("buckram.bookie")
CHECKS_AT_ONCE = 32
VOUCHED_LIMIT = 100_000
PROOF_S = 2.0
"""How long a fence, a copy or a LAC waits to hear whether its key is the ledger's. Whom they come from waits, too, and
metadata that is away must not stand in the way of a recovery."""
LOOKS, BETWEEN_LOOKS_S = 2, 0.1
"""How often a ledger has to be absent, and the pause before the next look."""


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
    OTHER = 7
    """The ledger that was named is gone: another has its id now, or had it before."""
    ABSENT = 8
    """Metadata does not know it: adds are refused as FENCED, and nobody can say which key is right."""


class VerdictCallback(Protocol):
    """Called once with the verdict; `last` is the last entry of a ledger that is CLOSED, else NO_ENTRY."""

    def __call__(self, verdict: Verdict, last: EntryId, /) -> None: ...


class Finding(NamedTuple):
    """What metadata says of an id: the verdict on its ledger, the master key where the password is known, the last
    entry of a ledger that is CLOSED, and its birth (b"": not known, or there is no ledger)."""

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


class Waiting:
    """Who waits for the verdict: the birth that it named (None: it named none) and its key. `done` gets the verdict
    and the last entry of a ledger that is CLOSED. `grows`: it is a normal add."""

    __slots__ = ("done", "grows", "key", "name", "timer")

    def __init__(self, name: bytes | None, key: bytes, done: VerdictCallback, grows: bool) -> None:
        self.name, self.key, self.done, self.grows = name, key, done, grows
        self.timer: asyncio.TimerHandle | None = None


def needs_proof(record: LedgerRecord | None, key: bytes) -> bool:
    """Whether only metadata can tell if the key is the ledger's."""
    return record is None or (not record.proven and record.master_key != key)


class Admission:
    """Holds what waits for a look at metadata. `done` of each is called once, in order, per ledger.

    Bytes are bounded by the connections: a waiting run counts as a request in memory of its connection. `died` hears
    of each ledger whose data gave way to another of its id.
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
        self.waiting: dict[LedgerId, list[Waiting]] = {}
        """By ledger. As long as a ledger is here, every add of it that is not beyond doubt queues behind."""
        self._vouched: dict[LedgerId, None] = {}
        self._queued: list[tuple[LedgerId, float]] = []
        self._running = 0

    def hold(
        self, ledger_id: LedgerId, key: bytes, name: bytes | None, done: VerdictCallback, *, grows: bool = False
    ) -> None:
        """Wait until the ledger is decided; the first one starts the look. What does not make the ledger grow waits for
        PROOF_S at most, and is told LATER then."""
        one = Waiting(name, key, done, grows)
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

    def _late(self, ledger_id: LedgerId, one: Waiting) -> None:
        waiting = self.waiting.get(ledger_id)
        if waiting is not None and one in waiting:
            waiting.remove(one)
            one.done(Verdict.LATER, NO_ENTRY)

    def vouched(self, ledger_id: LedgerId) -> bool:
        """Whether this process has seen it open in metadata: a store that lost data may have lost a fence, too."""
        return ledger_id in self._vouched

    async def close(self) -> None:
        """Who still waits is dropped unanswered: the bookie is stopping."""
        await self._scope.close()
        for waiting in self.waiting.values():
            _stop_timers(waiting)
        self.waiting.clear()

    async def _work(self) -> None:
        try:
            while self._queued:
                ledger_id, deadline = self._queued.pop(0)
                self._conclude(ledger_id, await self._decide(ledger_id, deadline))
        finally:
            self._running -= 1

    def _conclude(self, ledger_id: LedgerId, found: Finding) -> None:
        """Write the verdict down and let all go on; no await, so a fence that came meanwhile is seen (F4)."""
        waiting = self.waiting.pop(ledger_id)
        _stop_timers(waiting)
        # One with a wrong password changes nothing, and holds up nobody (F14).
        meant = [one for one in waiting if found.means(one.name) and found.key in (None, one.key)]
        try:
            verdict = self._write_down(ledger_id, found, meant)
        except StoreError as error:
            log.warning("ledger %d: its admission cannot be written down: %s", ledger_id, error)
            verdict = Verdict.UNKNOWN
        for one in waiting:
            if not found.means(one.name):
                one.done(Verdict.OTHER, NO_ENTRY)
            elif found.key not in (None, one.key):
                one.done(Verdict.WRONG_KEY, NO_ENTRY)
            else:
                one.done(verdict, found.last)

    def _write_down(self, ledger_id: LedgerId, found: Finding, meant: list[Waiting]) -> Verdict:
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
            log.info("ledger %d: another ledger has its id now, so what is here of the one before is dead", ledger_id)
            store.reborn(ledger_id, key, found.birth, admitted=admitted)
            self._polls.state_changed(ledger_id)
        elif record is None:
            # One that is CLOSED is as after a copy by repair: the next add is checked again.
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
        """What is here under a key that nobody could check is proven now, or gives way (F14). A name that came with
        that key counts for as little."""
        record = self._store.ledger(ledger_id)
        if record is None or record.proven or not found.exists:
            return
        if found.key not in (None, record.master_key):
            assert found.key is not None
            log.warning("ledger %d: what is here came with a wrong password, and is dropped", ledger_id)
            self._store.disown(ledger_id, found.key, found.birth or NO_BIRTH)
            self._polls.state_changed(ledger_id)
        elif not is_other(record, found.birth):
            self._store.prove(ledger_id)

    def _contradicts(self, record: LedgerRecord, birth: bytes) -> bool:
        """Whether one of the two ledgers cannot be in a store that only went on."""
        if record.tombstone or not record.proven or not (is_certain(record.birth) and is_certain(birth)):
            return False  # a name that nobody could check is no evidence against the store
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
            log.info("ledger %d: no such ledger in metadata, so nothing of it is taken", ledger_id)
            return Finding(Verdict.ABSENT)
        birth = birth_of(metadata)
        key = None if metadata.password is None else master_key(metadata.password)
        if metadata.state is LedgerState.OPEN:
            return Finding(Verdict.ADMITTED, key, NO_ENTRY, birth)
        if metadata.closed and metadata.last_entry is not None and not self._store.limbo:
            return Finding(Verdict.CLOSED, key, metadata.last_entry, birth)
        return Finding(Verdict.FENCED, key, NO_ENTRY, birth)  # in recovery, or this store may have lost a fence

    async def _look(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        """The ledger's metadata as of now; None where it is absent for good. Asks for as long as nobody answers."""
        delays, absent = Delays(ADMISSION, self._rng), 0
        while True:
            try:
                await self._metadata.sync()
                found = await self._read(ledger_id)
                absent += found is None
                if absent >= LOOKS:
                    # Of a cluster that is gone, too, one hears that there is no such ledger.
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
        """What was just read counts only if the store still is what it was: one that went back says nothing of a
        ledger that was made since, and a fence for that would be for good."""
        if not await self._trust.confirm():
            raise MetadataUnavailable("the metadata store went back")


def _stop_timers(waiting: list[Waiting]) -> None:
    for one in waiting:
        if one.timer is not None:
            one.timer.cancel()
