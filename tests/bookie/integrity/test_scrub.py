"""The scrub with real bookies: flipped bytes are found, told, healed from the other replicas, and never denied."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.healing.test_lost_bookie import healing, tree
from tests.support.polling import eventually

from buckram.bookie.integrity import scrub
from buckram.bookie.integrity import underreplication_marks as marks
from buckram.bookie.process import Bookie
from buckram.client.maintain.entry_lists import lists_all
from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.config import StoreConfig
from buckram.core.ledgers.metadata import BIRTH, birth_of
from buckram.core.wire.messages import DISK_STATE, BookieInfoReply, GetBookieInfo, Read
from buckram.errors import Code
from buckram.testing import Cluster, cluster, in_process
from buckram.types import DigestType

MIB = 1 << 20
ENTRIES = 4000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small log files, and a check that begins every second."""
    config = StoreConfig(
        segment_bytes=MIB,
        commit_max_bytes=64 << 10,
        tail_cache_bytes=4 * MIB,
        scrub_bytes_per_s=1 << 30,
        scrub_interval_s=1,
    )
    monkeypatch.setattr(in_process, "STORE", config)
    monkeypatch.setattr(scrub, "LOOK_S", 0.3)
    monkeypatch.setattr(marks, "REMARK_S", 1.0)


def bookie_of(c: Cluster, number: int) -> Bookie:
    bookie = c._nodes[number].bookie
    assert bookie is not None
    return bookie


def flip(c: Cluster, number: int, ledger: int, entry: int) -> None:
    """Change a byte in the payload of an entry, in the file where this bookie has it."""
    store = bookie_of(c, number).store
    assert store is not None
    located = store.located(ledger, entry, 1)
    assert located is not None
    (extent,) = located.extents
    with open(Path(located.directory) / extent.name, "r+b") as file:
        file.seek(extent.offset + extent.length - 1)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))
        file.flush()
        os.fsync(file.fileno())


async def state(client: Client, bookie: str) -> BookieInfoReply:
    reply = await client.services.pool.call(bookie, GetBookieInfo(DISK_STATE))
    assert isinstance(reply, BookieInfoReply)
    return reply


async def sealed(c: Cluster, number: int) -> bool:
    store = bookie_of(c, number).store
    return store is not None and len(store.verifying.sealed()) >= 2


async def fill(writer: Writer) -> None:
    """Write slowly enough for the log to go from file to file."""
    for first in range(0, ENTRIES, 200):
        await writer.append_many([i.to_bytes(4, "big") * 250 for i in range(first, first + 200)])


async def unmarked(client: Client) -> bool:
    return [ledger async for ledger in tree(client).marked()] == []


@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.MAC, DigestType.DUMMY])
async def test_flipped_bytes_are_found_told_and_healed_by_themselves(digest: DigestType) -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        async with await client.create(ensemble=(3, 3, 2), digest=digest, password=b"secret") as writer:
            await fill(writer)
            ledger = writer.ledger_id
        await eventually(lambda: sealed(c, 0), "sealed files")
        bad, name = [10, 11, 500], c.bookies[0]
        for entry in bad:
            flip(c, 0, ledger, entry)

        async def told() -> bool:
            found = await state(client, name)
            return found.figures["scrub_bad_found"] >= len(bad) and bool(found.troubles)

        await eventually(told, "told")
        found = await state(client, name)
        (trouble,) = found.troubles
        assert trouble.what == "bad records"
        assert str(ledger) in trouble.why
        if digest is not DigestType.DUMMY:  # nothing else is: the digests of the others in the block say so
            assert found.figures["scrub_bad_found"] == len(bad)

        async def refused() -> bool:  # without a digest each block has more bad entries than were flipped
            replies = [await client.services.pool.call(name, Read(ledger, entry)) for entry in bad]
            return all(reply.code is Code.IO_ERROR for reply in replies)

        await eventually(refused, "refused")
        birth = birth_of(await client.metadata(ledger))
        assert await lists_all(client.services, name, ledger, birth, [(0, ENTRIES - 1)]) is False

        async def marked() -> bool:
            return not await unmarked(client)

        await eventually(marked, "marked")
        async with healing(c):

            async def healed() -> bool:
                return (await state(client, name)).figures["bad_entries"] == 0

            await eventually(healed, "healed")
            await eventually(lambda: unmarked(client), "unmarked")
        assert (await state(client, name)).troubles == ()
        assert await lists_all(client.services, name, ledger, birth, [(0, ENTRIES - 1)]) is True
        for entry in bad:
            reply = await client.services.pool.call(name, Read(ledger, entry))
            assert reply.code is Code.OK
            assert reply.body is not None  # type: ignore[union-attr]
            assert reply.body.endswith(entry.to_bytes(4, "big") * 250)  # type: ignore[union-attr]


async def test_the_check_goes_on_where_it_stopped_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = StoreConfig(
        segment_bytes=MIB,
        commit_max_bytes=64 << 10,
        tail_cache_bytes=4 * MIB,
        scrub_bytes_per_s=MIB,
        scrub_interval_s=1,
    )
    monkeypatch.setattr(in_process, "STORE", slow)
    monkeypatch.setattr(scrub, "_SAVE_BYTES", 1)
    async with cluster(bookies=3) as c, c.client() as client:
        async with await client.create(ensemble=(3, 3, 2)) as writer:
            await fill(writer)
        await eventually(lambda: sealed(c, 0), "sealed files")

        async def moved() -> bool:
            running = bookie_of(c, 0).scrub
            return running is not None and running._at.seq > 1

        await eventually(moved, "moved on")
        before = bookie_of(c, 0).scrub._at  # type: ignore[union-attr]
        await c.restart(0)
        began: list[int] = []

        async def begins() -> bool:
            running = bookie_of(c, 0).scrub
            began.append(running._at.seq if running is not None else 0)
            return began[-1] > 0

        await eventually(begins, "goes on")
        assert began[-1] >= before.seq


async def test_a_rate_of_nothing_checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        in_process, "STORE", StoreConfig(segment_bytes=MIB, commit_max_bytes=64 << 10, scrub_bytes_per_s=0)
    )
    async with cluster(bookies=1) as c, c.client() as client:
        async with await client.create(ensemble=(1, 1, 1)) as writer:
            await fill(writer)
        await eventually(lambda: sealed(c, 0), "sealed files")
        figures = (await state(client, c.bookies[0])).figures
        assert figures["scrub_bytes"] == figures["scrub_passes"] == 0


async def test_entries_of_a_deleted_ledger_are_not_judged_by_another_one_of_its_id() -> None:
    """Collection drops them; healing them would write what the other ledger never had."""
    async with cluster(bookies=1) as c, c.client() as client:
        made = client.create(ensemble=(1, 1, 1), digest=DigestType.MAC, password=b"of the deleted one")
        async with await made as writer:
            await writer.append_many([b"x"] * 5)
        bookie, store = bookie_of(c, 0), client.services.store
        assert bookie.scrub is not None
        found = await store.read_ledger(writer.ledger_id)
        as_ours = replace(found.metadata, password=b"of another one")
        await store.write_ledger(writer.ledger_id, as_ours, found.version)
        assert await bookie.scrub._bad_of(writer.ledger_id, [(0, 5)]) == [(0, 5)], "no digest is good"
        other = replace(as_ours, custom_metadata={**as_ours.custom_metadata, BIRTH: b"another birth!!!"})
        await store.write_ledger(writer.ledger_id, other, found.version + 1)
        assert await bookie.scrub._bad_of(writer.ledger_id, [(0, 5)]) == []
