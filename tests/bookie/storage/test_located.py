"""Where a store says that entries are: the files hold exactly these frames there, whatever happened to the ledger."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from tests.bookie.service.test_answers import with_entries
from tests.support.bookie_kit import KEY as WIRE_KEY
from tests.support.bookie_kit import OTHER_KEY, batch, memory_metadata, running
from tests.support.store_kit import add, durable, open_store, read_range, reopened, small_config

from buckram.bookie.service.entries import batch_reads as batches
from buckram.bookie.storage.reading.lookup import MAX_EXTENTS
from buckram.bookie.storage.store import Store
from buckram.core.entries.packed import PackedBodies
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire.located import FileExtent, Located, extended
from buckram.errors import Code
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.disk.neighbours import identity_of
from buckram.runtime.disk.withholding import WithholdingDisk


def in_files(located: Located) -> list[bytes]:
    found: list[bytes] = []
    for extent in located.extents:
        data = (Path(located.directory) / extent.name).read_bytes()[extent.offset : extent.offset + extent.length]
        assert len(data) == extent.length
        bodies = PackedBodies.parse_frames(data, 0)
        assert bodies is not None
        found += bodies[extent.skip : extent.skip + extent.entries]
    return found


def locate(store: Store, ledger: int, first: int, count: int) -> list[bytes]:
    located = store.located(ledger, first, count)
    if located is None:
        return []
    assert located.extents[0].first == first
    for before, after in zip(located.extents, located.extents[1:], strict=False):
        assert after.first == before.first + before.entries
    return in_files(located)


@pytest.mark.parametrize("seed", range(4))
async def test_entries_are_where_the_store_says(tmp_path: Path, seed: int) -> None:
    disk = LocalDisk(tmp_path, "inline")
    rng = random.Random(seed)
    store = open_store(disk)
    tops = {1: 0, 2: 0, 3: 0}
    located = 0
    for turn in range(120):
        for _ in range(rng.randrange(4)):
            ledger = rng.choice((1, 1, 2, 3))
            # Every now and then entries come again: the newest copy counts.
            first = max(0, tops[ledger] - rng.choice((0, 0, 0, 2, 40)))
            size = rng.choice((0, 40, 40, 3000))
            payloads = [rng.randbytes(size) for _ in range(rng.choice((1, 5, 30)))]
            add(store, ledger, first, payloads)
            tops[ledger] = max(tops[ledger], first + len(payloads))
        await durable(store)
        # How much lies in sealed files while the store runs is a matter of time. After a start it is everything.
        started = turn % 4 == 3
        if started:
            store = await reopened(store, disk)
        ledger = rng.choice((1, 2, 3))
        if not tops[ledger]:
            continue
        first, count = rng.randrange(tops[ledger]), rng.choice((1, 7, 1000))
        wanted = await read_range(store, ledger, first, count, 1 << 30)
        assert isinstance(wanted, list)
        found = locate(store, ledger, first, count)
        assert found == (wanted if started else wanted[: len(found)])
        located += len(found)
    assert located > 1000
    store = await reopened(store, disk)
    for ledger, top in tops.items():
        wanted = await read_range(store, ledger, 0, top, 1 << 30)
        assert locate(store, ledger, 0, top) == wanted
        assert locate(store, ledger, top, 5) == []
    assert store.located(9, 0, 1) is None
    await store.close()
    disk.close()


async def test_an_answer_is_bounded(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path, "inline")
    store = open_store(disk, small_config(segment_bytes=16 << 20))
    for entry in range(MAX_EXTENTS + 100):
        add(store, 1, entry, [b"x"])
        add(store, 2, entry, [b"y"])  # between them, so that no two of the first are neighbours
        if entry % 100 == 99:
            await durable(store)
    await store.close()
    store = open_store(disk, small_config(segment_bytes=16 << 20))
    located = store.located(1, 0, 10_000)
    assert located is not None
    assert len(located.extents) == MAX_EXTENTS
    assert len(in_files(located)) == MAX_EXTENTS
    await store.close()
    disk.close()


async def test_a_disk_that_shows_its_files_to_nobody_has_no_places(tmp_path: Path) -> None:
    disk = WithholdingDisk(tmp_path, 1)
    store = open_store(disk)
    add(store, 1, 0, [bytes(3000)] * 100)
    await durable(store)
    assert disk.directory() == ""
    assert store.located(1, 0, 10) is None
    await store.close()
    disk.close()


def test_neighbours_are_one_extent_up_to_a_limit() -> None:
    one = FileExtent("f", 0, 100, 2, 10, 5)
    assert extended(one, FileExtent("f", 100, 50, 0, 15, 3), 150) == FileExtent("f", 0, 150, 2, 10, 8)
    assert extended(one, FileExtent("f", 100, 50, 0, 15, 3), 149) is None
    assert extended(one, FileExtent("f", 101, 50, 0, 15, 3), 1000) is None
    assert extended(one, FileExtent("f", 100, 50, 1, 15, 3), 1000) is None
    assert extended(one, FileExtent("g", 100, 50, 0, 15, 3), 1000) is None


def test_what_is_packed_is_parsed_and_nothing_else(tmp_path: Path) -> None:
    located = Located(
        "/data", "boot 1 2", [FileExtent("log-1", 4096, 100, 0, 7, 3), FileExtent("log-2", 0, 50, 1, 10, 1)]
    )
    assert Located.parse(located.pack()) == located
    document = located.pack()
    bad = [b"", b"{}", b"\xff", document[:-1], document.replace(b"4096", b"-4096"), document.replace(b"4096", b"1.5"),
           document.replace(b"4096", b'"a"'), document.replace(b'"log-1"', b"1"), document.replace(b",7,3]", b",7]"),
           b'{"directory":"/d","identity":"i","extents":[]}', document.replace(b'"/data"', b"null")]  # fmt: skip
    for data in bad:
        assert Located.parse(data) is None, data
    assert identity_of(tmp_path) == LocalDisk(tmp_path).identity() != ""
    with pytest.raises(FileNotFoundError):
        identity_of(tmp_path / "nowhere")


def test_the_flag_is_written_and_read() -> None:
    request = batch(5, 7, 3, 1000, master_key=WIRE_KEY, framed=True, located=True)
    packet = wire_v2.encode_request(request, 4)[4:]
    assert wire_v2.decode_request(packet)[0] == request
    assert struct.unpack_from(">I", packet)[0] & 0xFFFF == wire_v2.FRAMED | wire_v2.LOCATED


async def test_places_go_only_to_who_has_the_key(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    async with running(tmp_path, metadata=metadata, bookie_id="one") as kit:
        wire = await with_entries(kit, 2, 3)
        for key in (WIRE_KEY, OTHER_KEY):
            # Nothing is in a file for sure yet, or the key is another one: as if that had not been asked.
            reply = await wire.call(batch(1, 0, master_key=key, framed=True, located=True))
            assert (reply.code, len(reply.bodies)) == (Code.OK, 3)
    async with running(tmp_path, metadata=metadata, bookie_id="one") as kit:
        wire = await kit.wire(2)
        for key, flag in ((WIRE_KEY, True), (OTHER_KEY, False)):
            wire.send(batch(1, 0, master_key=key, framed=True, located=True))
            packet = await wire.frame()
            assert bool(struct.unpack_from(">I", packet)[0] & wire_v2.LOCATED) is flag
            assert (str(tmp_path).encode() in packet) is flag
        assert (await wire.call(batch(1, 3, master_key=WIRE_KEY, framed=True, located=True))).code is Code.NO_ENTRY
        assert (await wire.call(batch(9, 0, master_key=WIRE_KEY, framed=True, located=True))).code is Code.NO_LEDGER
    assert batches.MAX_LOCATED < 2**31
