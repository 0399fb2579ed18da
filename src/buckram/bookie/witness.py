"""The witness: detects that the metadata store went back to an older state than this bookie has seen.

A key in the metadata store records how far the bookie's log is durable; the file WITNESS in the directory records what
the store confirmed last. If the store is behind that file, the bookie is *suspect* and serves nothing but reads until
the right store is back or an operator has accepted the present one.
Not here: what counts as behind (`core/cluster/history.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from dataclasses import replace

from buckram.bookie.notes import Note
from buckram.bookie.storage.position import Claim, Position
from buckram.core.cluster.history import (
    HIGHEST_EPOCH,
    LONGEST_RECORD,
    Confirmed,
    Contradiction,
    Memory,
    Statement,
    encode_memory,
    encode_statement,
    judge,
    learn,
    parse_memory,
    parse_statement,
)
from buckram.core.ledgers.metadata import birth_of
from buckram.disk.trouble import passing
from buckram.errors import (
    AccessRefused,
    CorruptStore,
    KeyExists,
    MalformedRecord,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    NoSuchLedger,
    StoreReplaced,
    VersionConflict,
)
from buckram.metadata.layout import SUSPECTS, WITNESSES
from buckram.seams import Disk, KeyValue, MetadataStore, Stats, Write
from buckram.types import BookieId, History, LedgerId

log = logging.getLogger("buckram.bookie")
FILE = "WITNESS"
NEW_FILE = "WITNESS.new"
LOOK_S = 2.0
"""How long a store that went back may go unnoticed where nothing needs it, and how far behind a key may be."""
FAREWELL_S = 5.0
MOST_ADMITTED = 1000


class Witness:
    """Looks at the store, and says in it how far the bookie is. `prepare` before the store of entries is opened, then
    `where` and `contact` are set, then `run`; `end` at a clean stop.

    `on_change` is called when `suspect` changed. `contact` gives the host:port under which the bookie can be asked
    while it is not registered, and its highest ledger id.
    """

    def __init__(
        self,
        disk: Disk,
        metadata: MetadataStore,
        bookie_id: BookieId,
        rng: random.Random,
        stats: Stats,
        *,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk, self._metadata, self._rng, self._bookie_id = disk, metadata, rng, bookie_id
        self._key = f"{metadata.own}/{WITNESSES}/{bookie_id}"
        self._note = Note(metadata, f"{metadata.own}/{SUSPECTS}/{bookie_id}")
        self._on_change = on_change
        self._lock, self._publish_lock = asyncio.Lock(), asyncio.Lock()
        """For looking, which adds wait for, and for telling, which may wait for long work on the disk."""
        self._looks = self._judged = 0
        """Looks that began, and the newest of those that came to a judgement."""
        self._wake = asyncio.Event()
        self._published: Claim | None = None
        self._admitted: dict[LedgerId, bytes] = {}
        """Ledgers that the store has known since it confirmed the key last, by birth."""
        self._unsaved = False
        self.memory = Memory()
        self.history = History()
        """What the store said at the last look."""
        self.suspect = ""
        """Why the store is not believed; "" when it is."""
        self.where: Callable[[], Claim] = lambda: Claim("", 0, Position(0, 0))
        self.contact: Callable[[], tuple[str, int]] = lambda: ("", -1)
        self.in_reserve: Callable[[Callable[[], None]], None] = lambda job: job()
        """Does what writes the file, on a full disk in room that is kept for such things."""
        self._suspect_gauge = stats.gauge(
            "buckram_bookie_suspect", "1 while the metadata store is behind what this bookie knows of it"
        )
        self._epoch_gauge = stats.gauge("buckram_bookie_metadata_epoch", "the highest epoch of metadata heard of")

    @property
    def epoch(self) -> int:
        return self.memory.epoch

    @property
    def reviewed(self) -> bool:
        """Whether nobody restored this history, or somebody has looked at it since."""
        return self.memory.reviewed == self.memory.history.restore

    # Beginning and end

    async def prepare(self, *, first_start: bool) -> Claim | None:
        """Look for the first time: how far the directory was when the store heard of it last. MetadataUnavailable."""
        self.memory = _read(self._disk)
        found = await self._look()
        self._metadata.on_session_lost(self._wake.set)
        if first_start or found is None or self.suspect:
            return None  # an empty directory under a known id was let in by who removed the cookie
        value = found.value
        return Claim(value.incarnation, value.starts, Position(value.seq, value.offset))

    async def run(self) -> None:
        """Look and tell every few seconds, until cancelled."""
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
                log.debug("the metadata store is not there to be looked at: %s", error)
            except OSError as error:
                self._postpone_save(error)

    async def end(self) -> None:
        """Say how far the directory is when nothing more is written to it."""
        try:
            async with asyncio.timeout(FAREWELL_S), self._publish_lock:
                await self._look_and_publish()
                await self._note.take_back()
        except (MetadataError, TimeoutError) as error:
            log.info("the metadata store was not told of the stop: %s", error)
        except OSError as error:
            self._postpone_save(error)

    def _postpone_save(self, error: OSError) -> None:
        """What is short for now is no reason to stop: the next look says it again, as after a crash in between."""
        if not passing(error):
            raise error
        self._unsaved = True
        log.warning("what the metadata store knows of this bookie cannot be written down now: %s", error)

    def wake(self) -> None:
        """Something is written that the store should hear of soon, or the log goes on in a new file."""
        self._wake.set()

    def observe_epoch(self, epoch: int) -> None:
        """Record an epoch that another member of this cluster has seen."""
        if self.epoch < epoch <= HIGHEST_EPOCH:
            self.memory, self._unsaved = replace(self.memory, heard=epoch), True
            self._epoch_gauge.set(self.epoch)
            self._wake.set()

    async def confirm(self) -> bool:
        """Whether the store is believed, by a look that begins after this call; those who wait share it.

        MetadataUnavailable: it cannot be looked at now.
        """
        mine = self._looks + 1
        async with self._lock:
            if self._judged < mine:
                await self._look()
        return not self.suspect

    # What admission sees of the store

    def admitted(self, ledger_id: LedgerId, birth: bytes) -> None:
        """The store knew this ledger just now."""
        if len(self._admitted) < MOST_ADMITTED:
            self._admitted[ledger_id] = birth

    def contradicted(self, ledger_id: LedgerId, birth: bytes) -> bool:
        """The store says that another ledger has the id of one that is here. Ids are never given twice, so it went back
        by less than a key tells; unless it is known that it did, since somebody accepted it."""
        if ledger_id <= self.memory.settled:
            return False
        why = f"it says that ledger {ledger_id} is another one than the one that it knew by this id before"
        self._contradict(ledger_id, birth, why)
        return True

    def _contradict(self, ledger_id: LedgerId, birth: bytes, why: str) -> None:
        self.memory = replace(self.memory, contradiction=Contradiction(ledger_id, birth, why))
        self._unsaved = True
        self._believe(why)
        self._wake.set()

    async def _check_admitted(self) -> None:
        """Another file has the store's name: it must know what the one before knew after the key was confirmed. The
        newest ledger is asked for first: a store that knows it knows the older ones, too."""
        for ledger_id, birth in reversed(list(self._admitted.items())):
            found = await self._birth_in_store(ledger_id)
            if found is None:
                self._contradict(ledger_id, birth, f"it does not know ledger {ledger_id}, which it knew a moment ago")
                return
            if found != birth and self.contradicted(ledger_id, birth):
                return

    async def _check_contradiction(self) -> None:
        """The right store may be back: it knows the ledger as it was known before."""
        recorded = self.memory.contradiction
        if recorded is None or await self._birth_in_store(recorded.ledger_id) != recorded.birth:
            return
        if self.memory.contradiction is recorded:
            self.memory, self._unsaved = replace(self.memory, contradiction=None), True

    async def _birth_in_store(self, ledger_id: LedgerId) -> bytes | None:
        try:
            return birth_of((await self._metadata.read_ledger(ledger_id)).metadata)
        except NoSuchLedger:
            return None

    # Looking

    async def _look(self) -> Confirmed | None:
        """Read and judge. What the store says of its own absence is judged, too; only silence is not."""
        self._looks += 1
        number = self._looks
        known = self.memory  # what is told meanwhile is newer than what is read here
        try:
            history, found = await self._read_store()
            if not history.epoch and not self.epoch:
                history = await self._metadata.begin_history()
            await self._check_contradiction()
            verdict = judge(replace(known, contradiction=self.memory.contradiction), history, found)
        except (MetadataUnavailable, AccessRefused):
            raise
        except MetadataError as error:
            self._believe(f"it cannot be read: {error}")
            self._judged = number
            return None
        self.history = history
        self._judged = number
        self._believe(verdict.why)
        return found

    async def _read_store(self) -> tuple[History, Confirmed | None]:
        try:
            history, _, found = await self._ask()
        except StoreReplaced as error:
            self._believe(str(error))  # first, so that nobody uses what is opened next before it was looked at
            await self._metadata.reopen()
            history, _, found = await self._ask()
            await self._check_admitted()
        if found is None:
            return history, None
        return history, Confirmed(found.version, parse_statement(self._key, found.value))

    async def _ask(self) -> tuple[History, str, KeyValue | None]:
        """All at once: adds of new ledgers wait for it. The instance id says whether the cluster is Buckram's own,
        and the one from before."""
        answers = await asyncio.gather(
            self._metadata.history(), self._metadata.instance_id(), self._get_key(), return_exceptions=True
        )
        for answer in answers:  # in the order of their meaning: of a store that is gone nothing else is so
            if isinstance(answer, BaseException):
                raise answer
        history, instance, found = answers
        assert isinstance(history, History)
        assert isinstance(instance, str)
        return history, instance, found  # type: ignore[return-value]

    async def _get_key(self) -> KeyValue | None:
        try:
            return await self._metadata.keys.get(self._key)
        except NoSuchKey:
            return None

    def _believe(self, why: str) -> None:
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
        self._on_change()

    # Publishing

    async def _look_and_publish(self) -> None:
        if self._unsaved:
            await self._remember(self.memory)
        admitted = list(self._admitted)
        async with self._lock:
            found = await self._look()
        if self.suspect:
            await self._note.leave(self._note_text())
            return
        await self._note.take_back()
        where, known = self.where(), self.memory.confirmed
        if where == self._published and found == known and self.history == self.memory.history:
            return
        value = Statement(
            where.incarnation,
            where.starts,
            *where.position,
            self.history.epoch,
            self.history.restore,
            f"{self._rng.getrandbits(64):016x}",
        )
        try:
            version = await self._write(value, found)
        except (KeyExists, VersionConflict, NoSuchKey) as error:
            log.warning("bookie %s: somebody else writes its witness key: %s", self._bookie_id, error)
            return  # the next look judges what is there
        if self.history.epoch > self.memory.history.epoch > 0:
            highest = self.contact()[1]
            if highest >= 0:
                await self._metadata.raise_next_id(highest)
            log.warning("bookie %s: goes on with epoch %d of metadata", self._bookie_id, self.history.epoch)
        await self._remember(learn(self.memory, self.history, Confirmed(version, value), self.contact()[1]))
        self._published = where
        for ledger_id in admitted:
            self._admitted.pop(ledger_id, None)

    async def _write(self, value: Statement, found: Confirmed | None) -> int:
        record = encode_statement(value)
        if found is None:
            return await self._metadata.keys.create(self._key, record)
        return await self._metadata.keys.set(self._key, record, found.version)

    async def remember_collection(self, nonce: str) -> None:
        """A word to collect counts once, whatever happens next; from now on this history is reviewed."""
        async with self._publish_lock:
            if not await self._remember(replace(self.memory, collected=nonce, reviewed=self.memory.history.restore)):
                raise MetadataError(f"{FILE} cannot be written, the disk is full or files are short: it waits")

    async def _remember(self, memory: Memory) -> bool:
        """False: there was no room for the file. It then says less than is so, which is no alarm, and is written at
        the next look."""
        before = self.memory
        memory = replace(memory, heard=max(memory.heard, before.heard))
        record = encode_memory(memory)
        try:
            await self._disk.offload(lambda: self.in_reserve(lambda: write_file(self._disk, record)))
            self._unsaved = False
        except OSError as error:
            if not passing(error):
                raise
            if not self._unsaved:
                log.warning("bookie %s: the file %s waits: %s", self._bookie_id, FILE, error)
            self._unsaved = True
        now = self.memory
        if now is not before:  # clients and admission go on meanwhile
            newer = memory if now.contradiction is before.contradiction else now
            memory = replace(
                memory,
                heard=max(memory.heard, now.heard),
                settled=max(memory.settled, now.settled),
                contradiction=newer.contradiction,
            )
        self.memory, self._unsaved = memory, self._unsaved or now is not before
        self._epoch_gauge.set(self.epoch)
        return not self._unsaved

    def _note_text(self) -> bytes:
        """Where the bookie can be asked, for who sets the store right: it is in no list of bookies now."""
        address, highest = self.contact()
        return json.dumps(
            {
                "why": self.suspect,
                "address": address,
                "epoch": self.epoch,
                "restore": self.memory.history.restore,
                "highest_ledger": highest,
                "incarnation": self.where().incarnation,
            }
        ).encode()


def _read(disk: Disk) -> Memory:
    if FILE not in disk.names():
        return Memory()
    file = disk.open(FILE)
    try:
        record = file.read(0, min(file.size(), LONGEST_RECORD))
    finally:
        file.close()
    try:
        return parse_memory(FILE, record)
    except MalformedRecord as error:
        raise CorruptStore(
            f"{error}; the file says what the metadata store knew of this bookie. Remove it only when the store was "
            "not restored or replaced"
        ) from None


def write_file(disk: Disk, record: bytes) -> None:
    """Replace the file: after a crash it is the old one or the new one. Blocking."""
    if NEW_FILE in disk.names():
        disk.remove(NEW_FILE)
    file = disk.open(NEW_FILE, create=True)
    try:
        disk.write_now([Write(file, 0, [record])])
    finally:
        file.close()
    disk.rename(NEW_FILE, FILE)
    disk.sync_names()
