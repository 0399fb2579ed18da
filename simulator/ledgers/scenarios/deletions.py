"""A life of deletions: recorded ones and absence without a record, beside kills, an older store and bookies away.

The seed decides the order of events. The expected results are computed here from the requests to the store, and not
with the code under test. Not here: reading and writing (`simulator/ledgers/life.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from buckram.bookie.garbage import gc_limits as brake
from buckram.core.ledgers.metadata_codec import serialise
from buckram.errors import LedgerIdUsed, MetadataError, NoSuchLedger
from buckram.metadata.maintain.acceptance import accept
from buckram.metadata.maintain.backup import set_history
from buckram.types import BookieId, Delete, LedgerId, LedgerMetadata
from simulator.engine.planting import patched
from simulator.ledgers.scenarios.script import Script

INVARIANTS = ("M12", "M13", "M14")
BUCKET_IDS = 1 << 14
"""Number of ledger ids under one key of recorded deletions (docs/reference/metadata.md)."""
MOST_VANISHED, FORGED = 2, 4
LOOKS_S = 12.0
"""Time that exceeds the interval between two listings of a bookie, seconds."""
NAMES = ("b1", "b2", "b3")


class DeletionsLife:
    """The expected state of each ledger, and the actions of a life.

    Bookies may lack a ledger only if it is in `recorded` or `absent`.
    """

    def __init__(self, s: Script) -> None:
        self.s, self.rng = s, random.Random(f"deletions {s.world.seed}")
        self.records: dict[LedgerId, LedgerMetadata] = {}
        self.live: list[LedgerId] = []
        self.recorded: set[LedgerId] = set()
        self.absent: set[LedgerId] = set()
        """Ledgers whose metadata was removed without a recorded deletion, one at a time."""
        self.kept: set[LedgerId] = set()
        """Ledgers that bookies must keep: the store lost their metadata, or they got metadata again."""

    async def create(self, ledger_id: LedgerId | None = None) -> None:
        options = {} if ledger_id is None else {"ledger_id": ledger_id}
        w = await self.s.writer(f"w{len(self.records)}", order=False, **options)
        w.append()
        await self.s.until(lambda: w.acked == 1, "ack")
        await self.s.until(lambda: all(self.s.claimed(w.ledger, 0, name) for name in NAMES), "three copies")
        self.s.process(w.host).crash()
        self.records[w.ledger] = (await self.s.setup.read_ledger(w.ledger)).metadata
        self.live.append(w.ledger)

    def take(self) -> LedgerId:
        return self.live.pop(self.rng.randrange(len(self.live)))

    async def delete(self, one: LedgerId, lost: str = "") -> None:
        """Delete a ledger as a client does, and check M12.

        `lost`: the connection breaks "before" or "after" the record's change; empty: it does not break.
        """
        s = self.s
        if lost:
            s.world.metadata.lose_next(lost, s.world.loop.world.name, "/deleted/")
        try:
            await s.setup.delete_ledger(one, (await s.setup.read_ledger(one)).version)
        except MetadataError as error:
            s.world.report.check("M12", bool(lost), "ledger {} was not deleted: {}", one, error)
        gone, known = not await self._has_record(one), self._is_recorded(one)
        s.world.report.check("M12", gone == known, "ledger {}: removed {}, recorded {}", one, gone, known)
        if gone:
            self.recorded.add(one)
        else:
            self.live.append(one)

    async def delete_some(self) -> None:
        for _ in range(2):
            await self.delete(self.take(), self.rng.choice(("", "before", "after")))

    async def delete_unrecorded(self) -> None:
        """Delete a ledger as Apache's clients do, without a record; ledgers that wait already do not count for the
        brake."""
        one = self.take()
        key = await self.s.setup.ledger_key(one)
        await self.s.setup.keys.delete(key, (await self.s.setup.keys.get(key)).version)
        self.absent.add(one)
        await asyncio.sleep(LOOKS_S)

    async def forge_absence(self) -> None:
        """Remove the metadata of more ledgers than a bookie deletes without an operator's confirmation."""
        some = [self.take() for _ in range(FORGED)]
        keys = [await self.s.setup.ledger_key(one) for one in some]
        await self.s.setup.keys.multi([Delete(key, (await self.s.setup.keys.get(key)).version) for key in keys])
        self.kept.update(some)
        await asyncio.sleep(LOOKS_S)

    async def delete_while_away(self) -> None:
        """Delete ledgers while a bookie is away for long; one of them gets metadata again meanwhile (M13)."""
        away = self.rng.choice(NAMES[1:])
        self.s.kill(away)
        again, other = self.take(), self.take()
        await self.delete(again)
        await self.delete(other)
        await self.s.setup.keys.create(await self.s.setup.ledger_key(again), serialise(self.records[again]))
        self.recorded.discard(again)
        await asyncio.sleep(self.rng.choice((5.0, 300.0)))
        await self.s.boot(away)
        await asyncio.sleep(LOOKS_S)
        self._check_kept(again, (away,), "M13")

    async def go_back(self) -> None:
        """Restore the store for a while to before some deletions and creations: no bookie may act on that."""
        older = self.s.world.metadata.snapshot()
        await asyncio.sleep(LOOKS_S)
        await self.create()
        await self.delete(self.take())
        await asyncio.sleep(LOOKS_S)
        newest = self.s.world.metadata.snapshot()
        self.s.world.restore_metadata(older, for_now=True)
        await asyncio.sleep(2 * LOOKS_S)
        self.s.world.restore_metadata(newest)
        await asyncio.sleep(LOOKS_S)

    async def restore(self) -> None:
        """Restore the metadata from an older backup for good, and let an operator accept that.

        Ledgers created since the backup are absent without a record, and stay. Ledgers deleted since, which came back,
        are deleted again before the store is used, and new ids are higher than all that were given.
        """
        s, older = self.s, self.s.world.metadata.snapshot()
        await asyncio.sleep(LOOKS_S)
        deleted = self.take()
        await self.delete(deleted)
        await self.create()
        self.kept.add(self.live.pop())
        given = await s.setup.allocate_ledger_id()
        await asyncio.sleep(LOOKS_S)
        s.world.restore_metadata(older)
        s.setup = s.world.store(s.world.loop.world, s.world.rng)  # the restore ended all sessions
        await set_history(s.setup, replace(await s.setup.history(), accepted=False))
        await asyncio.sleep(self.rng.choice((0.0, LOOKS_S)))
        again = (await accept(s.setup, self.rng)).deleted_again
        gone = not await self._has_record(deleted) and self._is_recorded(deleted)
        s.world.report.check(
            "M12", gone and again == [deleted], "ledger {} came back; deleted again: {}", deleted, again
        )
        lost = [one for one in self.live if not await self._has_record(one)]
        s.world.report.check("M14", not lost, "ledgers {} went with the acceptance, nobody deleted them", lost)
        new = await s.setup.allocate_ledger_id()
        s.world.report.check("M12", new > given, "id {} was given, after the restore {}", given, new)
        await asyncio.sleep(4 * LOOKS_S)
        await self.delete_some()
        await asyncio.sleep(2 * LOOKS_S)

    async def create_again(self) -> None:
        """Check that creating a ledger again under a deleted id, as an interrupted client may, is refused (M12)."""
        for one in sorted(self.recorded):
            try:
                await self.s.setup.ledgers.create(one, serialise(self.records[one]), chosen=False)
            except LedgerIdUsed:
                self.s.world.report.check("M12", True)
            else:
                self.s.world.report.check("M12", False, "ledger {} was made again after its deletion", one)

    def check_end(self) -> None:
        """Check M14: everything deleted is gone, and nothing else. Ids that may be given twice wait for an operator."""
        for one in sorted(self.recorded | self.absent):
            held = [name for name in NAMES if self._holds(name, one) and not self._waits(name, one)]
            self.s.world.report.check("M14", not held, "ledger {} was deleted, and {} hold it", one, held)
        for one in sorted(self.kept | set(self.live)):
            self._check_kept(one, NAMES, "M14")

    def _check_kept(self, one: LedgerId, names: tuple[BookieId, ...], rule: str) -> None:
        lack = [name for name in names if not self._holds(name, one)]
        self.s.world.report.check(rule, not lack, "ledger {} was not deleted, and {} lack it", one, lack)

    def _waits(self, name: BookieId, one: LedgerId) -> bool:
        """Return whether the bookie met a restored history when it had ids up to this one or beyond."""
        bookie = self.s.world.machines[name].bookie
        witness = bookie.witness if bookie is not None else None
        return witness is not None and one <= witness.memory.settled

    def _holds(self, name: BookieId, one: LedgerId) -> bool:
        bookie = self.s.world.machines[name].bookie
        assert bookie is not None
        assert bookie.store is not None
        record = bookie.store.ledger(one)
        return record is not None and not record.tombstone and bookie.store.entries(one) == [(0, 1)]

    async def _has_record(self, one: LedgerId) -> bool:
        try:
            await self.s.setup.read_ledger(one)
        except NoSuchLedger:
            return False
        return True

    def _is_recorded(self, one: LedgerId) -> bool:
        key = f"{self.s.setup.own}/deleted/{one // BUCKET_IDS:015d}"
        found = self.s.world.metadata.peek(key)
        if found is None:
            return False
        return one % BUCKET_IDS in _places(found.value)


def _places(value: bytes) -> set[int]:
    """Read a bucket as docs/reference/metadata.md has it, without the code that is judged."""
    if value[:1] == b"\x02":
        bits = int.from_bytes(value[1:], "little")
        return {place for place in range(BUCKET_IDS) if bits >> place & 1}
    numbers, number, shift = list[int](), 0, 0
    for byte in value[1:]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    places, at = set[int](), 0
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        places.update(range(at + gap, at + gap + length + 1))
        at += gap + length + 1
    return places


async def deletions(s: Script) -> None:
    """M12 to M14: deletions of all kinds, in an order of the seed."""
    s.world.report.evaluated |= dict.fromkeys(INVARIANTS, 0)
    with patched((brake, "AT_LEAST", MOST_VANISHED)):
        await s.bookies(len(NAMES))
        life = DeletionsLife(s)
        for _ in range(14):
            await life.create()
        edges = [BUCKET_IDS - 1, BUCKET_IDS]
        for one in edges:
            await life.create(one)
            life.live.remove(one)
        await asyncio.sleep(LOOKS_S)
        forged_first: list[Callable[[], Awaitable[None]]] = [life.forge_absence, life.delete_unrecorded]
        actions: list[Callable[[], Awaitable[None]]] = [life.delete_some, life.go_back]
        for one in edges:
            actions.append(partial(life.delete, one))
        life.rng.shuffle(actions)
        for at in sorted(life.rng.sample(range(len(actions) + 2), 2)):
            actions.insert(at, forged_first.pop(0))
        for act in actions:
            await act()
            await asyncio.sleep(life.rng.choice((0.0, 2.0)))
        await asyncio.sleep(4 * LOOKS_S)
        life.check_end()
        await life.delete_while_away()
        await asyncio.sleep(2 * LOOKS_S)
        life.absent.clear()  # the bookie that was away had no listing of them: it sees all that vanished at once
        life.check_end()
        await life.create_again()
        await life.restore()
        life.check_end()
        await life.create_again()


__all__ = ["INVARIANTS", "deletions"]
