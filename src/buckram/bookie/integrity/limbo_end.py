"""Ends limbo by itself, once it is proved for every ledger that names this bookie that a "no" of it would be true.

The proof is made of metadata and of the store's own index: of each closed fragment the bookie lists every entry that
the record places on it; no ledger that may be older than the loss can still grow here; and what is closed is fenced
here again. What lacks is marked, so that replicators copy it. A loss that was found meanwhile is not cleared.
Not here: an operator's word for the same (`bookie/run.py`); what limbo is (`bookie/storage/opening.py`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from random import Random

from buckram.bookie.integrity.underreplication_marks import UnderreplicationMarks
from buckram.bookie.service.connections.ledger_births import is_other
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.store import Store
from buckram.bookie.trust.store_trust import Trust
from buckram.core.backoff import LIMBO, Delays
from buckram.core.healing.needs import members_of, places_of
from buckram.core.ledgers.metadata import birth_of
from buckram.core.wire.availability import covers
from buckram.core.wire.messages import Trouble
from buckram.errors import InvalidArgument, MalformedRecord, MetadataError, NoSuchLedger
from buckram.seams import MetadataStore
from buckram.types import MAX_LEDGER_ID, BookieId, LedgerId, LedgerMetadata, LedgerState

log = logging.getLogger("buckram.bookie")
_PAGE = 1000
_KEPT = 100_000
"""Maximum number of unproved ledgers that are remembered; with more of them every look goes through all ledgers."""
_SLICE = 16
_OPEN = "it can still grow, and its writer may have acknowledgements of entries that are lost here"


class _Interrupted(Exception):
    """Another loss was found meanwhile: what was proved does not count."""


class LimboEnd:
    """The looks of one bookie. `run` never ends by itself; cancel it."""

    def __init__(
        self,
        store: Store,
        metadata: MetadataStore,
        bookie_id: BookieId,
        trust: Trust,
        marks: UnderreplicationMarks,
        rng: Random,
    ) -> None:
        self._store, self._metadata, self._bookie_id, self._trust = store, metadata, bookie_id, trust
        self._marks, self._rng = marks, rng
        self._loss = 0
        self._open: dict[LedgerId, str] = {}
        """Ledgers that are not proved since this loss, each with the reason: at most _KEPT of them."""
        self._unproved = -1
        """Number of ledgers that are not proved; -1 before all of them were looked at."""
        self._waits = ""

    def troubles(self) -> list[Trouble]:
        """Return what limbo waits for, while the store is in it."""
        if not self._store.limbo:
            return []
        why = (
            f"it may lack acknowledged data (loss {self._store.loss}), and answers `unknown` for entries that "
            "it does not have"
        )
        if self._waits:
            why += f"; {self._waits}"
        elif self._unproved > 0 and self._open:
            ledger, reason = next(iter(self._open.items()))
            why += f"; {self._unproved} ledgers are not yet proved complete here, the first is {ledger}: {reason}"
        else:
            why += "; its ledgers are being checked"
        action = (
            "it ends by itself when every ledger that names it is closed and complete; see `buckram ledger recover`"
        )
        return [Trouble("limbo", why, action)]

    async def run(self) -> None:
        """Look again and again while the store is in limbo; cancel it to end it."""
        delays = Delays(LIMBO, self._rng)
        before = -1
        while True:
            await asyncio.sleep(delays.take())
            if not self._store.limbo:
                delays.reset()
                continue
            try:
                await self.look()
            except (MetadataError, StoreError, OSError) as error:
                self._waits = str(error)
                log.info("bookie %s stays in limbo for now: %s", self._bookie_id, error)
            except _Interrupted:
                delays.reset()
            if self._unproved != before:
                before = self._unproved
                delays.reset()

    async def look(self) -> bool:
        """Look at the ledgers that are not proved yet, or at all; clear limbo if all are. Returns whether it did.

        Raises MetadataError, StoreError or OSError for what cannot be seen now.
        """
        store = self._store
        loss = store.loss
        if loss != self._loss:
            self._loss, self._open, self._unproved = loss, {}, -1
        counts = store.stats()
        if counts["sealed_segments"] < counts["segments"] - 1:
            # The next start would scan such a file, and find its damage again.
            self._waits = "its log files are being closed"
            return False
        if not await self._trust.confirm():
            self._waits = "the metadata store went back, so its listing proves nothing"
            return False
        await self._metadata.sync()
        self._waits = ""
        if self._unproved == len(self._open):
            await self._look_again(loss)
        else:
            await self._look_at_all(loss)
        if self._unproved:
            return False
        await self._fence(loss)
        if not await self._trust.confirm():
            return False
        return self._clear(loss)

    def _clear(self, loss: int) -> bool:
        try:
            self._store.clear_limbo(loss)
        except InvalidArgument:
            return False  # another loss was found this moment
        log.warning(
            "bookie %s: limbo is over: every ledger that names it is complete here since loss %d", self._bookie_id, loss
        )
        self._marks.keep(())
        return True

    async def _look_again(self, loss: int) -> None:
        """Check the ledgers again that were not proved before. Others need no check: a ledger that the first listing
        lacked is younger than the loss, and a complete one stays complete unless there is another loss."""
        for ledger in list(self._open):
            self._check(loss)
            why = await self._why_not(ledger)
            if why:
                self._open[ledger] = why
            else:
                del self._open[ledger]
        self._unproved = len(self._open)
        self._marks.keep(self._open)
        await self._marks.mark(self._open)

    async def _look_at_all(self, loss: int) -> None:
        """Check every ledger that the metadata store lists. A failed listing raises and never looks like the end of the
        list."""
        await self._metadata.instance_id()  # a store that lost the cluster would list nothing
        found: dict[LedgerId, str] = {}
        count, after = 0, -1
        while page := await self._metadata.read_ledgers(after=after, limit=_PAGE):
            for number, (ledger, record) in enumerate(page):
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
                self._check(loss)
                why = str(record) if isinstance(record, MalformedRecord) else self._judge(ledger, record.metadata)
                if why:
                    count += 1
                    await self._marks.mark([ledger])
                    if len(found) < _KEPT:
                        found[ledger] = why
            after = page[-1][0]
        self._open, self._unproved = found, count

    def _check(self, loss: int) -> None:
        if self._store.loss != loss:
            raise _Interrupted

    async def _why_not(self, ledger: LedgerId) -> str:
        """Return why a "no" about this ledger could be wrong; empty if it could not."""
        try:
            metadata = (await self._metadata.read_ledger(ledger)).metadata
        except NoSuchLedger:
            return ""
        except MalformedRecord as error:
            return str(error)
        return self._judge(ledger, metadata)

    def _judge(self, ledger: LedgerId, metadata: LedgerMetadata) -> str:
        if self._bookie_id not in members_of(metadata):
            return ""
        record = self._store.ledger(ledger)
        if record is not None and not record.limbo and not is_other(record, birth_of(metadata)):
            return ""  # it is younger than the loss
        if not metadata.closed and self._bookie_id in metadata.last_fragment.ensemble:
            return _OPEN
        return "" if self._lists_all(ledger, metadata) else "this bookie lacks entries of it"

    def _lists_all(self, ledger: LedgerId, metadata: LedgerMetadata) -> bool:
        record = self._store.ledger(ledger)
        mine = record is not None and not is_other(record, birth_of(metadata))
        held = self._store.entries(ledger) if mine else []
        return covers(iter(held), places_of(metadata, self._bookie_id, MAX_LEDGER_ID))

    async def _fence(self, loss: int) -> None:
        """Fence every ledger that is not open any more, durably, because it may have been fenced before the loss."""
        for number, ledger in enumerate(await self._store.live_ledger_ids()):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            record = self._store.ledger(ledger)
            if record is None or record.fenced or record.tombstone or not record.limbo:
                continue
            try:
                metadata = (await self._metadata.read_ledger(ledger)).metadata
                if metadata.state is LedgerState.OPEN and not is_other(record, birth_of(metadata)):
                    continue
            except (NoSuchLedger, MalformedRecord):
                pass
            self._check(loss)
            record = self._store.ledger(ledger)
            if record is not None and not record.tombstone:
                self._store.fence(ledger)
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self._store.after_durable(partial(_settle, done))
        error = await done
        if error is not None:
            raise error
        self._check(loss)


def _settle(done: asyncio.Future[OSError | None], error: OSError | None) -> None:
    if not done.done():
        done.set_result(error)
