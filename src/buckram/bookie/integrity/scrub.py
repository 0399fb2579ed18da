"""The scrub: a bookie checks its own sealed files, slowly and again and again, and has what is bad made again.

A block that fails its checksum leads to its entries; the digests of these say which are bad. A bad entry reads as an
error, never as absent, and its ledger is marked as one that lacks copies here: replicators copy it from other bookies.
Not here: reading and checking files (`bookie/storage/upkeep/verifying.py`), copying (`healing/repair/ledger_repair`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress

from buckram.bookie.integrity.underreplication_marks import UnderreplicationMarks
from buckram.bookie.service.connections.ledger_births import is_other
from buckram.bookie.storage.log.log_position import Position
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.segments.bad_entries import Span, union, without
from buckram.bookie.storage.store import Store
from buckram.bookie.storage.upkeep.verifying import BadExtent
from buckram.bookie.trust.witness_memory import write_file
from buckram.config import StoreConfig
from buckram.core.backoff import SCRUB, Delays
from buckram.core.entries.entry import Digest
from buckram.core.healing.needs import places_of
from buckram.core.ledgers.metadata import birth_of
from buckram.core.wire.messages import Trouble
from buckram.errors import MalformedRecord, MetadataError, NoSuchLedger
from buckram.runtime.disk.io_errors import passing
from buckram.runtime.net.pace import Pace
from buckram.seams import Disk, MetadataStore, Runtime
from buckram.types import BookieId, DigestType, LedgerId, LedgerMetadata

log = logging.getLogger("buckram.bookie")
FILE = "scrub"
"""Name of the file with the place where the check goes on after a restart: a line of JSON."""
LOOK_S = 10.0
"""Seconds between two looks at whether bad entries are healed."""
_SAVE_S = 60.0
_SAVE_BYTES = 64 << 20
_READ_ENTRIES, _READ_BYTES = 500, 1 << 20
_LONGEST_NOTE = 4096


class Scrub:
    """The check of one bookie's files. `run` and `follow` never end by themselves; cancel them."""

    def __init__(
        self,
        store: Store,
        disk: Disk,
        metadata: MetadataStore,
        bookie_id: BookieId,
        config: StoreConfig,
        runtime: Runtime,
    ) -> None:
        self._store, self._disk, self._metadata, self._bookie_id = store, disk, metadata, bookie_id
        self._rate, self._interval_s = config.scrub_bytes_per_s, config.scrub_interval_s
        self._clock, self._rng = runtime.clock, runtime.rng
        self._marks = UnderreplicationMarks(metadata, bookie_id, runtime.clock)
        self._found = asyncio.Event()
        self._at = Position(0, 0)
        self._clean_from = -1
        """The number of the file that was good so far, from its begin on; -1: none."""
        self._saved: tuple[float, int] = (0.0, 0)
        self.passes = self.bytes = self.found = 0
        self.last_pass_ms = 0
        """When the last complete check ended, by this machine's clock; 0: none has."""
        stats = runtime.stats
        self._bytes_metric = stats.counter("buckram_scrub_bytes_total", "bytes of sealed files that were checked")
        self._found_metric = stats.counter("buckram_scrub_bad_records_total", "entries that were found to be bad")
        self._bad_gauge = stats.gauge("buckram_bad_records", "bad entries that are not yet made again")
        self._pass_gauge = stats.gauge(
            "buckram_scrub_last_pass_timestamp_seconds", "when the last complete check of all sealed files ended"
        )

    # -- for people ---------------------------------------------------------------------------------------

    def figures(self) -> dict[str, int]:
        """Return what was checked and found, by name."""
        return {
            "scrub_bytes": self.bytes,
            "scrub_passes": self.passes,
            "scrub_last_pass_ms": self.last_pass_ms,
            "scrub_bad_found": self.found,
            "bad_entries": self._store.verifying.bad_entries,
        }

    def troubles(self) -> list[Trouble]:
        """Return what is bad and not yet healed."""
        bad = self._store.verifying.bad()
        if not bad:
            return []
        count, named = self._store.verifying.bad_entries, sorted(bad)
        ledgers = ", ".join(map(str, named[:5])) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
        why = f"{count} {'entry' if count == 1 else 'entries'} of ledger {ledgers} changed on its disk"
        return [
            Trouble(
                "bad records",
                f"{why}; replicators make them again from other copies",
                "nothing, unless it stays; a disk that changes bytes again and again should be replaced",
            )
        ]

    # -- checking -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Check all sealed files, one pass after the other."""
        if not self._rate:
            return
        await self._restore()
        loop, pace, delays = asyncio.get_running_loop(), Pace(self._rate), Delays(SCRUB, self._rng)
        while True:
            began = loop.time()
            while not await self._step(pace, delays):
                pass
            self.passes += 1
            self.last_pass_ms = self._clock.wall_us() // 1000
            self._pass_gauge.set(self.last_pass_ms / 1000)
            await self._save()
            await asyncio.sleep(max(1.0, began + self._interval_s - loop.time()))

    async def _step(self, pace: Pace, delays: Delays) -> bool:
        """Check one piece. Returns whether it was the last one of this pass."""
        verifying = self._store.verifying
        if verifying.too_many:
            await asyncio.sleep(LOOK_S)
            return False
        try:
            piece = await verifying.piece(self._at)
            if piece.bad is not None:
                await self._judge(piece.bad)
        except (StoreError, OSError) as error:
            log.warning("bookie %s: the check of its files waits: %s", self._bookie_id, error)
            await asyncio.sleep(delays.take())
            return False
        delays.reset()
        self._follow_clean(piece.next, bad=piece.bad is not None)
        self._at = piece.next
        self.bytes += piece.bytes
        self._bytes_metric.inc(piece.bytes)
        now = asyncio.get_running_loop().time()
        if now - self._saved[0] >= _SAVE_S or self.bytes - self._saved[1] >= _SAVE_BYTES:
            await self._save()
        await pace.take(piece.bytes)
        if piece.last:
            self._at = Position(0, 0)
        return piece.last

    def _follow_clean(self, after: Position, *, bad: bool) -> None:
        """Forget bad entries of a file that was good from begin to end: they were a passing trouble of the disk."""
        if bad:
            self._clean_from = -1
        elif self._at.offset == 0 and after.offset > 0:
            self._clean_from = after.seq
        elif after.offset == 0 and self._clean_from == after.seq - 1:
            for segment in self._store.verifying.sealed():
                if segment.seq == self._clean_from:
                    self._store.verifying.set_good(segment)

    async def _judge(self, extent: BadExtent) -> None:
        """Find out which entries in these bytes are bad. Raises StoreError or OSError for what cannot be read now."""
        log.error(
            "log file %s: bytes %d to %d are damaged; looking for entries to be made again",
            extent.segment.name,
            extent.begin,
            extent.end,
        )
        verifying, new = self._store.verifying, 0
        for ledger, spans in (await verifying.suspects(extent)).items():
            bad = await self._bad_of(ledger, spans)
            before = [] if extent.segment.bad is None else list(extent.segment.bad.of(ledger))
            new += sum(end - first for first, end in without(bad, before))
            verifying.set_bad(extent.segment, ledger, spans, bad)
            if bad:
                log.error("ledger %d: %d entries are bad here", ledger, sum(end - first for first, end in bad))
        self.found += new
        self._found_metric.inc(new)
        self._bad_gauge.set(verifying.bad_entries)
        self._found.set()

    async def _bad_of(self, ledger: LedgerId, spans: Sequence[Span]) -> list[Span]:
        """Return the entries of `spans` that this bookie should hold and does not hold in good order."""
        metadata = await self._metadata_of(ledger)
        record = self._store.ledger(ledger)
        if metadata is None or record is None or is_other(record, birth_of(metadata)):
            return []  # it is deleted: collection drops it
        wanted = _meeting(spans, metadata, self._bookie_id)
        kind = metadata.digest_type
        if kind is None or kind is DigestType.DUMMY or (kind is DigestType.MAC and metadata.password is None):
            return wanted  # they cannot be checked, so all count as bad
        digest = Digest(kind, metadata.password or b"")
        bad: list[Span] = []
        for first, end in wanted:
            entry = first
            while entry < end:
                found = await self._read(ledger, entry, end - entry)
                good = len(digest.open_prefix(ledger, entry, found)) if isinstance(found, list) else 0
                entry += good
                if entry < end and (isinstance(found, StoreError) or good < len(found)):
                    bad.append((entry, entry + 1))
                    entry += 1
                elif not good:
                    entry += 1  # it is absent by now
        return union(bad)

    async def _read(self, ledger: LedgerId, first: int, count: int) -> list[bytes] | StoreError:
        future: asyncio.Future[list[bytes] | StoreError] = asyncio.get_running_loop().create_future()

        def done(found: list[bytes] | StoreError) -> None:
            if not future.done():
                future.set_result(found)

        self._store.read_range(ledger, first, min(count, _READ_ENTRIES), _READ_BYTES, done, from_files=True)
        return await future

    async def _metadata_of(self, ledger: LedgerId) -> LedgerMetadata | None:
        """Return the ledger's record; None where there is none. Waits for a metadata store that is away."""
        delays = Delays(SCRUB, self._rng)
        while True:
            try:
                await self._metadata.sync()
                return (await self._metadata.read_ledger(ledger)).metadata
            except NoSuchLedger:
                return None
            except MalformedRecord as error:
                log.warning("bookie %s: %s", self._bookie_id, error)
                return None
            except MetadataError:
                await asyncio.sleep(delays.take())

    # -- healing ------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Mark ledgers with bad entries until they are healed, and notice that."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._found.wait()
            self._found.clear()
            if not self._store.verifying.bad_entries:
                self._bad_gauge.set(0)
                self._marks.keep(())
                continue
            try:
                await self._store.verifying.forget_healed()
                bad = self._store.verifying.bad()
                self._marks.keep(bad)
                await self._marks.mark(bad)
            except (StoreError, OSError, MetadataError) as error:
                log.warning("bookie %s: its bad entries cannot be marked for repair now: %s", self._bookie_id, error)
            self._bad_gauge.set(self._store.verifying.bad_entries)

    # -- the note of where it is --------------------------------------------------------------------------

    async def _restore(self) -> None:
        """Go on where the last process was. A note that cannot be read is none: the check begins anew."""
        try:
            note = json.loads(await self._disk.offload(self._read_note))
            self._at = Position(int(note["seq"]), int(note["offset"]))
            self.passes, self.last_pass_ms = int(note["passes"]), int(note["last_pass_ms"])
        except (OSError, ValueError, KeyError, TypeError):
            self._at = Position(0, 0)
        self._pass_gauge.set(self.last_pass_ms / 1000)

    def _read_note(self) -> bytes:
        if FILE not in self._disk.names():
            return b""
        file = self._disk.open(FILE)
        try:
            return file.read(0, min(file.size(), _LONGEST_NOTE))
        finally:
            file.close()

    async def _save(self) -> None:
        if self.bytes == self._saved[1]:
            return
        self._saved = asyncio.get_running_loop().time(), self.bytes
        at = {"seq": self._at.seq, "offset": self._at.offset, "passes": self.passes, "last_pass_ms": self.last_pass_ms}
        record = json.dumps(at).encode() + b"\n"
        try:
            await self._disk.offload(lambda: write_file(self._disk, record, FILE))
        except OSError as error:
            if not passing(error):
                raise  # a disk that fails a write ends its bookie, whatever file it was
            log.info(
                "bookie %s: the position of the check of its files cannot be saved now: %s", self._bookie_id, error
            )


def _meeting(spans: Sequence[Span], metadata: LedgerMetadata, bookie: BookieId) -> list[Span]:
    """Return the parts of `spans` that the record places on the bookie."""
    found: list[Span] = []
    top = spans[-1][1] - 1
    at = 0
    for low, high in places_of(metadata, bookie, top):
        while at < len(spans) and spans[at][1] <= low:
            at += 1
        for first, end in spans[at:]:
            if first > high:
                break
            found.append((max(first, low), min(end, high + 1)))
    return union(found)
