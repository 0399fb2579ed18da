"""The witness: detects that the metadata store went back to an older state than this bookie has seen.

A key in the metadata store records how far the bookie's log is durable; the file WITNESS in the directory records what
the store confirmed last. If the store is behind that file, the bookie is *suspect* and serves nothing but reads until
the right store is back or an operator has accepted the present one. The key also says whose the id is: a bookie that
finds a later incarnation there, or its cookie gone, is *out* and ends.
Not here: what counts as behind (`core/cluster/store_history.py`) and who is out (`core/cluster/cookie.py`); the
file (`bookie/trust/witness_memory.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Protocol

from buckram.bookie.storage.log.log_position import Position, WitnessedPosition
from buckram.bookie.trust.cookie import ClaimedDirectory as Claimed
from buckram.bookie.trust.cookie import OwnRecords, StoredRecords
from buckram.bookie.trust.metadata_note import Note
from buckram.bookie.trust.witness_memory import FILE, DeletionMemory, WitnessMemory, WriteReserve
from buckram.core.backoff import REGISTRATION, Delays
from buckram.core.cluster.cookie import (
    Standing,
    decide,
    next_generation,
    serialise_cookie,
    why_removed,
    why_replaced,
)
from buckram.core.cluster.store_history import (
    Confirmed,
    Contradiction,
    Memory,
    WitnessStatement,
    encode_statement,
    judge,
    learn,
)
from buckram.core.ledgers.metadata import birth_of
from buckram.errors import (
    AccessRefused,
    KeyExists,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchLedger,
    StoreReplaced,
    VersionConflict,
    WrongCookie,
)
from buckram.metadata.maintain.acceptance import tell
from buckram.metadata.tree.layout import SUSPECTS
from buckram.seams import Disk, MetadataStore, Stats
from buckram.types import CheckVersion, History, LedgerId

log = logging.getLogger("buckram.bookie")
LOOK_S = 2.0
"""Interval of looks at the store, seconds: the longest that a store that went back goes unnoticed without other
requests, and that this bookie's key lags behind its log."""
FAREWELL_S = 5.0
MOST_ADMITTED = 1000


class Contact(NamedTuple):
    """Where a bookie can be asked while it is not registered (host:port), and the highest ledger id that it knows."""

    address: str
    highest_ledger: LedgerId


NO_CONTACT = Contact("", -1)


class Refusal(NamedTuple):
    """The reason why a change was not made: the key is denied to this bookie, or the store takes no changes. Both are
    empty if it was made."""

    denied: str = ""
    unwritten: str = ""


class WitnessedBookie(WriteReserve, Protocol):
    """A bookie as its witness sees it: what is recorded of it, and what is reported to it (`bookie/process.py`)."""

    def log_claim(self) -> WitnessedPosition:
        """Return how far the log is durable; NO_CLAIM before the store is open."""
        ...

    def contact(self) -> Contact:
        """Return where the bookie can be asked; NO_CONTACT before the store is open."""
        ...

    @property
    def deletions(self) -> DeletionMemory:
        """Return what the bookie remembers of deletions and of the ids that were given."""
        ...

    def trust_changed(self) -> None:
        """Handle a change of `Witness.suspect`."""
        ...

    def put_out(self, why: str) -> None:
        """Stop the bookie, which is no member of the cluster any more (`Witness.out`). Called once."""
        ...


class Witness:
    """Looks at the metadata store every few seconds, and records in it how far the bookie's log is durable.

    `prepare` is called before the store of entries is opened, `run` when the bookie serves, `end` at a clean stop.
    """

    def __init__(
        self,
        disk: Disk,
        metadata: MetadataStore,
        claimed: Claimed,
        bookie: WitnessedBookie,
        rng: random.Random,
        stats: Stats,
    ) -> None:
        bookie_id = claimed.bookie_id
        self._metadata, self._rng, self._bookie_id, self._bookie = metadata, rng, bookie_id, bookie
        self._claimed, self._records = claimed, OwnRecords(metadata, claimed)
        self._key = self._records.key
        self._note = Note(metadata, f"{metadata.own}/{SUSPECTS}/{bookie_id}")
        self._lock, self._publish_lock = asyncio.Lock(), asyncio.Lock()
        """Held while looking, for which adds wait, and while publishing, which may wait for long work on the disk."""
        self._looks = self._judged = 0
        """The number of looks that began, and the newest look that came to a judgement."""
        self._wake = asyncio.Event()
        self._published: WitnessedPosition | None = None
        self._admitted: dict[LedgerId, bytes] = {}
        """Births of the ledgers that the store has known since it confirmed the key last."""
        self._memory = WitnessMemory(disk, bookie_id, bookie, stats)
        self.history = History()
        """The history that the store had at the last look."""
        self.suspect = ""
        """Reason why the metadata store is not trusted; "" while it is."""
        self.out = ""
        """Reason why this bookie is no member of the cluster any more, which is final; "" while it is one."""
        self.refusal = Refusal()
        """Reason why the bookie's key could not be written at the last attempt although the store answered; empty if it
        was."""
        self._returning = False
        """True while the bookie's cookie is lacking in restored metadata that no operator has accepted yet."""
        self._told = -1
        """Version of the history's key since which this bookie has told the store what it saw deleted."""
        self._unchanged: tuple[CheckVersion, ...] = ()
        self._suspect_gauge = stats.gauge(
            "buckram_bookie_suspect", "1 while the metadata store is behind what this bookie knows of it"
        )

    @property
    def memory(self) -> Memory:
        """Return what the bookie remembers of the store; some of it may not be in the file yet."""
        return self._memory.value

    @property
    def epoch(self) -> int:
        return self.memory.epoch

    @property
    def reviewed(self) -> bool:
        """Return whether this history was never restored, or an operator confirmed a collection since the restore."""
        return self.memory.reviewed == self.memory.history.restore

    # Beginning and end

    async def prepare(self, *, first_start: bool) -> WitnessedPosition | None:
        """Look for the first time. Returns how far the log was when the store confirmed it last, None if unknown.

        Raises MetadataUnavailable, CorruptStore if the bookie's file is damaged, and WrongCookie if it is out.
        """
        self._memory.load()
        self._bookie.deletions.load()
        found = await self._look()
        if self.out:
            raise WrongCookie(self.out)
        await self._return()
        self._metadata.on_session_lost(self._wake.set)
        if first_start or found is None or self.suspect:
            return None  # an empty directory under a known id was admitted by whoever removed the cookie
        value = found.value
        return WitnessedPosition(value.incarnation, value.starts, Position(value.seq, value.offset))

    async def run(self) -> None:
        """Look and publish every few seconds, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time() + LOOK_S
        while True:
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            due = loop.time() + LOOK_S * (0.75 + self._rng.random() / 2)
            try:
                async with self._publish_lock:
                    await self._look_and_publish()
            except MetadataError as error:
                log.debug("the metadata store cannot be read now: %s", error)
            except OSError as error:
                self._memory.postpone(error)

    async def end(self) -> None:
        """Publish how far the log is durable, now that nothing more is written to it."""
        try:
            async with asyncio.timeout(FAREWELL_S), self._publish_lock:
                await self._look_and_publish()
                await self._note.remove()
        except (MetadataError, TimeoutError) as error:
            log.info("the stop could not be recorded in the metadata store: %s", error)
        except OSError as error:
            self._memory.postpone(error)

    def wake(self) -> None:
        """Look and publish soon, not only when the next look is due."""
        self._wake.set()

    def observe_epoch(self, epoch: int) -> None:
        """Record an epoch that another member of this cluster has seen."""
        if self._memory.observe_epoch(epoch):
            self._wake.set()

    async def confirm(self) -> bool:
        """Return whether the store is trusted, by a look that begins after this call; concurrent calls share it.

        Raises MetadataUnavailable if the store cannot be read now.
        """
        mine = self._looks + 1
        async with self._lock:
            if self._judged < mine:
                await self._look()
        return not self.suspect and not self.out

    def unchanged(self) -> tuple[CheckVersion, ...]:
        """Return the versions of cookie and witness key that the last look found: while they hold, so does what it
        found."""
        return self._unchanged

    # What admission learns of the store

    def admitted(self, ledger_id: LedgerId, birth: bytes) -> None:
        """Record that the store knew this ledger just now."""
        if len(self._admitted) < MOST_ADMITTED:
            self._admitted[ledger_id] = birth

    def contradicted(self, ledger_id: LedgerId, birth: bytes) -> bool:
        """Record that the store lists another ledger under the id of one that is here; return whether it is suspect.

        Ids are never given twice, so the store went back, by too little to show in the witness key. That is no reason
        for suspicion if the ledger is older than an accepted restore: whoever accepted it knew that ids repeat.
        """
        if ledger_id <= self.memory.settled:
            return False
        why = f"its record of ledger {ledger_id} is of another ledger than the one that had this id before"
        self._contradict(ledger_id, birth, why)
        return True

    def _contradict(self, ledger_id: LedgerId, birth: bytes, why: str) -> None:
        self._memory.change(contradiction=Contradiction(ledger_id, birth, why))
        self._set_suspect(why)
        self._wake.set()

    async def _check_admitted(self) -> None:
        """Check a store that was replaced under its name: it must know the ledgers that the one before knew.

        The newest ledger is read first: a store that knows it knows the older ones, too.
        """
        for ledger_id, birth in reversed(list(self._admitted.items())):
            found = await self._birth_in_store(ledger_id)
            if found is None:
                self._contradict(ledger_id, birth, f"it does not know ledger {ledger_id}, which it knew a moment ago")
                return
            if found != birth and self.contradicted(ledger_id, birth):
                return

    async def _check_contradiction(self) -> None:
        """Drop the contradiction if the right store is back, that is, if it has the ledger under its earlier birth."""
        recorded = self.memory.contradiction
        if recorded is None or await self._birth_in_store(recorded.ledger_id) != recorded.birth:
            return
        if self.memory.contradiction is recorded:
            self._memory.change(contradiction=None)

    async def _birth_in_store(self, ledger_id: LedgerId) -> bytes | None:
        try:
            return birth_of((await self._metadata.read_ledger(ledger_id)).metadata)
        except NoSuchLedger:
            return None

    # Looking

    async def _look(self) -> Confirmed | None:
        """Read the store and judge it. Errors that the store answers with are judged, too; a lack of answers is not."""
        self._looks += 1
        number = self._looks
        known = self.memory  # as of now: what changes meanwhile is newer than what is read here
        try:
            found = await self._read_store()
            if not found.history.epoch and not self.epoch:
                found = found._replace(history=await self._metadata.begin_history())
            await self._check_contradiction()
            past = judge(replace(known, contradiction=self.memory.contradiction), found.history, found.witness)
        except (MetadataUnavailable, AccessRefused):
            raise
        except MetadataError as error:
            self._set_suspect(f"it cannot be read: {error}")
            self._judged = number
            return None
        verdict = decide(
            self._claimed.incarnation,
            None if known.confirmed is None else known.confirmed.value,
            None if found.witness is None else found.witness.value,
            past,
            has_cookie=found.cookie is not None,
            restored=not found.history.accepted and not found.history.moved,
        )
        self.history = found.history
        self._judged = number
        self._returning = verdict.standing is Standing.RETURNING
        if verdict.out:
            self._put_out(verdict.standing, found)
            return found.witness
        self._unchanged = self._records.versions(found)
        self._set_suspect(verdict.suspicion)
        return found.witness

    def _put_out(self, standing: Standing, found: StoredRecords) -> None:
        if self.out:
            return
        if standing is Standing.REPLACED and found.witness is not None:
            self.out = why_replaced(self._bookie_id, self._claimed.incarnation, found.witness.value)
        else:
            self.out = why_removed(self._bookie_id, self._claimed.incarnation)
        self._bookie.put_out(self.out)

    async def _read_store(self) -> StoredRecords:
        try:
            return await self._records.read()
        except StoreReplaced as error:
            self._set_suspect(str(error))  # first, so that nobody uses the next store before it is judged
            await self._metadata.reopen()
            found = await self._records.read()
            await self._check_admitted()
            return found

    def _set_suspect(self, why: str) -> None:
        if why == self.suspect:
            return
        was, self.suspect = self.suspect, why
        self._suspect_gauge.set(1 if why else 0)
        if why:
            log.error(
                "bookie %s: the metadata store went back: %s. Nothing but reads is served; put the right store back, "
                "or see `buckram cluster check` and `buckram cluster accept-restore`",
                self._bookie_id,
                why,
            )
        else:
            log.warning("bookie %s: the metadata store is believed again; it was not: %s", self._bookie_id, was)
        self._bookie.trust_changed()

    # Publishing

    async def _look_and_publish(self) -> None:
        if self._memory.unsaved:
            await self._memory.save(self.memory)
        admitted = list(self._admitted)
        async with self._lock:
            found = await self._look()
        if self.out:
            return
        if self.suspect:
            await self._return()
            await self._tell_deletions()
            await self._note.write(self._note_text())
            return
        await self._note.remove()
        claim, known = self._bookie.log_claim(), self.memory.confirmed
        if claim == self._published and found == known and self.history == self.memory.history:
            return
        said = None if found is None else found.value
        since = said.since if said is not None and said.incarnation == claim.incarnation else 0
        value = WitnessStatement(
            claim.incarnation,
            claim.starts,
            *claim.position,
            self.history.epoch,
            self.history.restore,
            f"{self._rng.getrandbits(64):016x}",
            next_generation(claim.incarnation, None if known is None else known.value, said),
            since,
        )
        try:
            version = await self._write(value, found)
        except (KeyExists, VersionConflict, NoSuchKey) as error:
            log.warning("bookie %s: another process writes its witness key: %s", self._bookie_id, error)
            return  # the next look judges what is there
        except MetadataError as error:
            denied = isinstance(error, AccessRefused)
            self.refusal = Refusal(str(error) if denied else "", "" if denied else str(error))
            raise
        self.refusal = Refusal()
        if self.history.epoch > self.memory.history.epoch > 0:
            highest = self._contact().highest_ledger
            if highest >= 0:
                await self._metadata.raise_next_id(highest)
            log.warning("bookie %s: goes on with epoch %d of metadata", self._bookie_id, self.history.epoch)
        await self._memory.save(
            learn(self.memory, self.history, Confirmed(version, value), self._contact().highest_ledger)
        )
        self._published = claim
        for ledger_id in admitted:
            self._admitted.pop(ledger_id, None)

    async def _return(self) -> None:
        """Write the cookie again into metadata that were restored from a backup older than this bookie, until that is
        accepted: what the bookie holds is part of the cluster."""
        if self._returning:
            with suppress(KeyExists):
                await self._metadata.write_cookie(self._bookie_id, serialise_cookie(self._claimed.cookie), None)
            log.warning(
                "bookie %s is younger than the restored metadata: its cookie is written there again", self._bookie_id
            )

    async def _tell_deletions(self) -> None:
        """Tell restored metadata what this bookie saw deleted, again after each change of the history: what was told
        before goes with another restore. The version is read first."""
        if self.history.accepted or self.history.moved:
            return
        version = (await self._metadata.keys.get(f"{self._metadata.own}/history")).version
        if version != self._told:
            await tell(self._metadata, await self._bookie.deletions.known())
            self._told = version

    async def _write(self, value: WitnessStatement, found: Confirmed | None) -> int:
        record = encode_statement(value)
        if found is None:
            return await self._metadata.keys.create(self._key, record)
        return await self._metadata.keys.set(self._key, record, found.version)

    async def remember_collection(self, nonce: str) -> None:
        """Record an operator's confirmation of a collection: it counts once, and this history is reviewed from now on.

        Raises MetadataError if the file cannot be written now.
        """
        async with self._publish_lock:
            if not await self._memory.save(replace(self.memory, collected=nonce, reviewed=self.memory.history.restore)):
                raise MetadataError(
                    f"{FILE} cannot be written, the disk is full or too few files may be opened; it is tried again"
                )

    def _contact(self) -> Contact:
        """Return where the bookie can be asked, and the highest id that it knows to be given."""
        address, highest = self._bookie.contact()
        return Contact(address, max(highest, self._bookie.deletions.next_id - 1)) if address else NO_CONTACT

    def _note_text(self) -> bytes:
        """Return where the bookie can be asked by operators, because it is in no list of bookies while suspect."""
        address, highest = self._contact()
        return json.dumps(
            {
                "why": self.suspect,
                "address": address,
                "epoch": self.epoch,
                "restore": self.memory.history.restore,
                "highest_ledger": highest,
                "told": self._told,
                "incarnation": self._bookie.log_claim().incarnation,
            }
        ).encode()


async def looked(witness: Witness, rng: random.Random) -> None:
    """Return once a look that began later came to a judgement, however long the store is away."""
    delays = Delays(REGISTRATION, rng)
    while True:
        try:
            await witness.confirm()
            return
        except MetadataError as error:
            log.info(
                "no request is served, because the metadata store does not confirm that the id belongs to "
                "this directory: %s",
                error,
            )
        await asyncio.sleep(delays.take())
