"""Copies of fragments: from neighbours' files where they are, and always the same entries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.healing.test_lost_bookie import members, until
from tests.support.local_reads_kit import ALWAYS, Files, reading, settled, sized

from buckram.client.client import Client
from buckram.config import HealingConfig
from buckram.healing.auditor import Auditor
from buckram.healing.replicator import Replicator
from buckram.net.tasks import TaskScope
from buckram.testing import Cluster

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

    await until(copied, "copied")
    (new,) = await members(client, ledger) - before
    for other in [bookie for bookie in c.bookies if bookie not in (new, gone)]:
        await c.kill(c.bookies.index(other))


async def readable(c: Cluster, ledger: int) -> list[bytes]:
    async with c.client() as client, client.open(ledger) as reader:
        return await reader.read_payloads(0, reader.last_confirmed)


@pytest.mark.parametrize("kind", ["tiny", "empty", "large", "mixed"])
@pytest.mark.parametrize("from_files", [True, False])
async def test_the_new_member_has_the_same_entries(kind: str, from_files: bool) -> None:
    payloads = sized(kind)
    size = sum(map(len, payloads))
    async with settled(payloads) as (c, (ledger,)):
        await c.add()
        async with healing(c, local_read_bytes=int(from_files)) as (client, files, worker):
            await lost_and_copied(c, client, worker, ledger)
            # Headers and digests come to the payloads: 36 bytes of each entry.
            assert worker.copied_bytes == size + 36 * len(payloads)
            assert (files.bytes >= size) if from_files and size else files.bytes == 0
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

            await until(replaced, "replaced")
            assert await members(client, ledger) == before - {min(before)} | {new}


@pytest.mark.parametrize("damaged", [1, 2])
async def test_of_a_damaged_copy_the_entries_come_from_elsewhere(damaged: int) -> None:
    payloads = [b"%08d" % n * 100 for n in range(3000)]
    async with settled(payloads) as (c, (ledger,)):
        await c.add()
        async with healing(c) as (client, _, worker):
            survivor = sorted(await members(client, ledger))[damaged]
            spoil(c._node(c.bookies.index(survivor)).directory, payloads[1500])
            await lost_and_copied(c, client, worker, ledger)
        assert await readable(c, ledger) == payloads


def spoil(directory: Path, payload: bytes) -> None:
    """Change the bytes of an entry in a bookie's files."""
    found = [path for path in directory.iterdir() if path.is_file() and payload in path.read_bytes()]
    assert found, f"no file of {directory} has the entry"
    for path in found:
        path.write_bytes(path.read_bytes().replace(payload, b"-" * len(payload)))
