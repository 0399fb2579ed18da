"""Copies of fragments: from neighbours' files where they are, and always the same entries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.healing.test_lost_bookie import members, write
from tests.support.local_reads_kit import ALWAYS, Files, reading, settled, sized
from tests.support.polling import eventually

from buckram.client.read.open import digest_of
from buckram.cluster import Client
from buckram.config import HealingConfig
from buckram.core.entries.entry import master_key
from buckram.core.ledgers.recovery import quorum_of
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.repair import fragment_copy
from buckram.healing.repair.fragment_copy import FragmentCopy
from buckram.healing.repair.replicator import Replicator
from buckram.healing.repair.server_side_copy import CopyLimits
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import Cluster, cluster

QUICK = HealingConfig(lost_bookie_delay_s=0.0, retry_s=0.2, copy_bytes_per_s=0)


@asynccontextmanager
async def healing(c: Cluster, **config: int) -> AsyncIterator[tuple[Client, Files, Replicator]]:
    async with reading(c, replace(ALWAYS, **config)) as (client, files), TaskScope("healing") as scope:
        auditor, replicator = Auditor(client, "a", QUICK), Replicator(client, "r", QUICK)
        scope.spawn(auditor.run(), "auditor")
        scope.spawn(replicator.run(), "replicator")
        yield client, files, replicator


async def lost_and_copied(c: Cluster, client: Client, worker: Replicator, ledger: int) -> None:
    """Kill a bookie, wait for its copies, and kill all but the one that has them now."""
    before = await members(client, ledger)
    gone = min(before)
    await c.kill(c.bookies.index(gone))

    async def copied() -> bool:
        return worker.copied_ledgers == 1

    await eventually(copied, "copied")
    (new,) = await members(client, ledger) - before
    for other in [bookie for bookie in c.bookies if bookie not in (new, gone)]:
        await c.kill(c.bookies.index(other))


async def readable(c: Cluster, ledger: int) -> list[bytes]:
    async with c.client() as client, client.open(ledger) as reader:
        return await reader.read_payloads(0, reader.last_confirmed)


@pytest.mark.parametrize("kind", ["tiny", "empty", "large", "mixed"])
@pytest.mark.parametrize("way", ["pulled", "from files", "through bookies"])
async def test_the_new_member_has_the_same_entries(kind: str, way: str) -> None:
    payloads = sized(kind)
    size = sum(map(len, payloads))
    async with settled(payloads) as (c, (ledger,)):
        new = await c.add()
        if way == "from files":
            await without_neighbours(c, new)
        async with healing(c, local_read_bytes=int(way != "through bookies")) as (client, files, worker):
            await lost_and_copied(c, client, worker, ledger)
            # Headers and digests come to the payloads: 36 bytes of each entry.
            assert worker.copied_bytes == size + 36 * len(payloads)
            assert (files.bytes >= size) if way == "from files" and size else files.bytes == 0
            assert pulled(c, new) == (len(payloads) if way == "pulled" and size else 0)
        assert await readable(c, ledger) == payloads


async def test_a_target_that_knows_no_pulls_is_asked_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    payloads = sized("tiny")
    async with settled(payloads) as (c, (ledger,)):
        new = await c.add()
        await without_neighbours(c, new)
        async with healing(c) as (client, _, worker):
            await lost_and_copied(c, client, worker, ledger)
            assert [pair[1] for pair in client.services.apart] == [c.bookies[new]]
        assert await readable(c, ledger) == payloads
    assert "closed the connection" not in caplog.text


@pytest.mark.parametrize("digest", ["mac", "crc32"])
async def test_a_target_copies_what_it_can_check_without_a_password(digest: str) -> None:
    payloads = sized("tiny")
    async with settled(payloads, digest=digest) as (c, (ledger,)):
        new = await c.add()
        async with healing(c) as (client, files, worker):
            await lost_and_copied(c, client, worker, ledger)
            assert pulled(c, new) == (len(payloads) if digest == "crc32" else 0)
            assert (files.bytes > 0) == (digest == "mac")
            assert not client.services.apart  # nobody was asked for what cannot be
        assert await readable(c, ledger) == payloads


async def test_a_target_elsewhere_gets_the_entries_from_the_worker() -> None:
    payloads = sized("tiny")
    async with settled(payloads) as (c, (ledger,)):
        new = await c.add()
        elsewhere = Files()
        elsewhere.here = False
        c._node(new).files = elsewhere
        await c.restart(new)
        async with healing(c) as (client, files, worker):
            await lost_and_copied(c, client, worker, ledger)
            assert elsewhere.opened
            assert pulled(c, new) == 0
            assert files.bytes > 0
        assert await readable(c, ledger) == payloads


async def test_a_ledger_without_entries_gets_a_new_member() -> None:
    async with settled([]) as (c, (ledger,)):
        number = await c.add()
        new = c.bookies[number]
        async with healing(c) as (client, _, worker):
            before = await members(client, ledger)
            await c.kill(c.bookies.index(min(before)))

            async def replaced() -> bool:
                return worker.copied_ledgers == 1

            await eventually(replaced, "replaced")
            assert await members(client, ledger) == before - {min(before)} | {new}


@pytest.mark.parametrize("way", ["pulled", "from files"])
async def test_of_damaged_copies_each_entry_comes_from_where_it_is_good(way: str) -> None:
    payloads = [b"%08d" % n * 100 for n in range(3000)]
    async with settled(payloads) as (c, (ledger,)):
        new = await c.add()
        if way == "from files":
            await without_neighbours(c, new)
        async with healing(c) as (client, _, worker):
            for survivor, entry in zip(sorted(await members(client, ledger))[1:], (1500, 2700), strict=True):
                spoil(c._node(c.bookies.index(survivor)).directory, payloads[entry])
            await lost_and_copied(c, client, worker, ledger)
            copied = pulled(
                c, new
            )  # up to the first bad entry of the survivor that was asked first, whichever that was
            assert (1200 < copied <= 2700) if way == "pulled" else not copied
        assert await readable(c, ledger) == payloads


async def without_neighbours(c: Cluster, number: int) -> None:
    """Start a bookie anew as one that reads nobody's files, and does not say that it could."""
    c._node(number).files = None
    await c.restart(number)


def pulled(c: Cluster, number: int) -> int:
    bookie = c._node(number).bookie
    assert bookie is not None
    assert bookie.service is not None
    return bookie.service.pulls.entries


def spoil(directory: Path, payload: bytes) -> None:
    """Change the bytes of an entry in a bookie's files."""
    found = [path for path in directory.iterdir() if path.is_file() and payload in path.read_bytes()]
    assert found, f"no file of {directory} has the entry"
    for path in found:
        path.write_bytes(path.read_bytes().replace(payload, b"-" * len(payload)))


def test_what_all_pulls_have_asked_for_is_bounded() -> None:
    limits, mib = CopyLimits(), 1 << 20
    for pulled, each, paced in ((0, 8, 1), (1, 8, 1), (8, 8, 1), (16, 4, 0.5), (64, 1, 0.25), (1000, 1, 0.25)):
        limits.pulled = pulled
        assert limits.ahead_bytes(paced=False) == each * mib
        assert limits.ahead_bytes(paced=True) == paced * mib


@pytest.mark.parametrize("ensemble", [(3, 3, 2), (3, 2, 2)])
async def test_a_copy_of_entries_that_nobody_has_comes_to_an_end(
    ensemble: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragment_copy, "_MOST_LACKING", 50)
    async with cluster(bookies=4) as c, c.client() as client, TaskScope("copy") as scope:
        services = client.services
        ledger = await write(client, 20, ensemble)
        metadata = (await services.store.read_ledger(ledger)).metadata
        digest = digest_of(ledger, metadata, b"", None)
        copy = FragmentCopy(
            services,
            ledger,
            quorum_of(metadata),
            metadata.fragments[0],
            digest,
            master_key(b""),
            scope,
            gone=[],
            pace=Pace(None),
            limits=CopyLimits(),
        )
        target = next(bookie for bookie in c.bookies if bookie not in metadata.fragments[0].ensemble)
        async with asyncio.timeout(20):
            done = await copy.to(target, 0, 2**60)
        assert not done.whole
        assert done.given_up
        assert "the entries after them" in done.error
        assert done.entries > 0
