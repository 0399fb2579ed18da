"""Runs are found in a footer whatever readers went before: in order, at random, several at a time."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from buckram.bookie.storage.segments.file_cache import OpenFiles, PageCache
from buckram.bookie.storage.segments.index import FooterBuilder, Place
from buckram.bookie.storage.segments.segments import DirEntry, Footer, Segment, load_footer
from buckram.core.storage.ledger_state import StoredLedgerState
from buckram.core.storage.segment_format import RUN_RECORD
from buckram.runtime.disk.memory import MemoryDisk
from buckram.seams import Write

LEDGERS, LOG_END, FILE_BYTES = (3, 8, 9), 1 << 20, 8 << 20


def runs_of(rng: random.Random, count: int, gap: int) -> list[Place]:
    runs: list[Place] = []
    entry = rng.randrange(3)
    for number in range(count):
        held = rng.randrange(1, 9)
        runs.append((entry, held, 0, 4096 + 100 * number, 100))
        entry += held + rng.choice((0, 0, gap))
    return runs


def footer_of(runs: dict[int, list[Place]]) -> Footer:
    disk, parts = MemoryDisk(), list[bytes]()
    builder = FooterBuilder(1, salt=7)
    for ledger, places in sorted(runs.items()):
        builder.add(ledger, b"".join(RUN_RECORD.pack(*place) for place in places), 100, 0)
        builder.add_state(StoredLedgerState(ledger, b"k" * 20))
    for _ in builder.lay_out(LOG_END, FILE_BYTES, parts):
        pass
    file = disk.open("log", create=True, size=FILE_BYTES)
    disk.write_now([Write(file, FILE_BYTES - sum(map(len, parts)), parts)])
    segment = Segment(1, "log")
    assert load_footer(segment, 7, OpenFiles(disk), PageCache(limit=3))
    assert segment.footer is not None
    return segment.footer


@pytest.mark.parametrize("seed", range(12))
def test_readers_do_not_lead_each_other_astray(seed: int) -> None:
    rng = random.Random(seed)
    runs = {ledger: runs_of(rng, rng.choice((1, 2, 170, 171, 900)), rng.choice((0, 1, 12))) for ledger in LEDGERS}
    footer = footer_of(runs)
    held = {ledger: footer.find(ledger) for ledger in LEDGERS}
    at = {(ledger, reader): 0 for ledger in LEDGERS for reader in range(2)}
    for _ in range(1500):
        ledger, reader = rng.choice(list(at))
        found, places = held[ledger], runs[ledger]
        assert isinstance(found, DirEntry)
        entry = at[ledger, reader] if rng.random() < 0.6 else rng.randrange(found.last + 2)
        wanted = next((place for place in places if place[0] <= entry < place[0] + place[1]), None)
        assert footer.find_run(found, entry) == wanted
        at[ledger, reader] = (entry + rng.choice((0, 1, 1, 5))) % (found.last + 2)
        if wanted is not None and rng.random() < 0.3:
            number, count = places.index(wanted) + 1, rng.choice((0, 1, 4))
            assert list(islice(footer.runs_behind(found), count)) == places[number : number + count]
        if rng.random() < 0.3:
            high = entry + rng.randrange(1, 20)
            ids = [max(entry, place[0]) for place in places if place[0] + place[1] > entry]
            assert footer.first_in(found, entry, high) == min([high, *ids])
