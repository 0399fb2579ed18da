"""The digest check with real bookies: bad bytes on a live bookie are found, in a sample or in full, and mended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.healing.auditing.test_periodic_checks import marked, name_another
from tests.healing.test_lost_bookie import QUICK, tree, write
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.errors import MalformedRecord
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.auditing.ledger_walk import Checked
from buckram.healing.auditing.periodic_checks import DIGESTS, DigestCheck, PeriodicChecks
from buckram.healing.daemon import heal
from buckram.healing.status_store import HealingStatusStore
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import cluster
from buckram.types import DigestType, Versioned


async def checked(client: Client, fraction: float = 1.0) -> Checked:
    async with DigestCheck(client, tree(client), fraction, Pace(None), Pace(None)) as check:
        return await check.run(lambda: True)


async def spoil(client: Client, ledger: int) -> None:
    """Every entry fails its digest: the record says another kind than the one that the copies have."""
    found = await client.services.store.read_ledger(ledger)
    changed = replace(found.metadata, digest_type=DigestType.CRC32)
    await client.services.store.write_ledger(ledger, changed, found.version)


@pytest.mark.parametrize("fraction", [0.01, 1.0])
async def test_bad_bytes_mark_their_ledger_and_no_other(fraction: float) -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        good, bad = await write(client, 50), await write(client, 50)
        await tree(client).prepare()
        assert await checked(client, fraction) == Checked(ledgers=2, complete=True)
        await spoil(client, bad)
        assert await checked(client, fraction) == Checked(ledgers=2, marked=1, complete=True)
        assert await marked(client) == [bad]
        mark = await tree(client).read_mark(bad)
        assert mark is not None
        assert len(mark.replicas) == 3
        assert good not in await marked(client)


async def test_ledgers_without_digests_are_skipped_and_counted() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        for digest in ("dummy", "mac"):
            async with await client.create(ensemble=(3, 3, 2), digest=digest, password=b"secret") as writer:
                await writer.append(b"x")
        found = await client.services.store.read_ledger(writer.ledger_id)
        assert await checked(client) == Checked(ledgers=2, skipped=1, complete=True), "its record has the password"
        unknown = replace(found.metadata, password=None)
        await client.services.store.write_ledger(writer.ledger_id, unknown, found.version)
        assert await checked(client) == Checked(ledgers=2, skipped=2, complete=True)


async def test_a_record_that_cannot_be_read_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        first, bad = await write(client, 5), await write(client, 5)
        await tree(client).prepare()
        await spoil(client, bad)
        store = client.services.store
        read = store.read_ledger

        async def read_ledger(ledger: int, *rest: object) -> Versioned:
            if ledger == first:
                raise MalformedRecord("a record that nobody can read")
            return await read(ledger)

        monkeypatch.setattr(store, "read_ledger", read_ledger)
        assert await checked(client) == Checked(ledgers=2, marked=1, unreadable=1, complete=True)


async def test_a_bookie_that_does_not_answer_is_unknown_and_not_bad() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        await write(client, 5)
        await tree(client).prepare()
        await c.kill(0)
        found = await checked(client)
        assert (found.marked, found.complete) == (0, True)


async def test_the_auditor_runs_it_and_a_copy_that_lacks_is_made_again() -> None:
    often = replace(QUICK, digest_check_interval_s=0.2, digest_check_fraction=0.2, check_requests_per_s=0)
    async with cluster(bookies=4) as c, c.client() as client:
        lacking = await write(client, 20)
        await name_another(c, client, lacking)
        async with TaskScope("healing") as scope:
            scope.spawn(heal(client, "a", often), "heal")

            async def mended() -> bool:
                done = (await HealingStatusStore(client.services.store).checked()).get(DIGESTS, {})
                return done.get("ledgers") == 1 and await marked(client) == []

            await eventually(mended, "mended")
        report = await client.repair(lacking)
        assert (report.healthy, report.entries_copied) == (True, 0)


async def test_a_new_auditor_waits_for_the_interval_since_the_last_run() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        weekly = replace(QUICK, digest_check_interval_s=7 * 86400.0)
        auditor = Auditor(client, "b", weekly)
        auditor.elected = True
        await tree(client).prepare()
        await PeriodicChecks(client, auditor, weekly)._step(7 * 86400.0, DIGESTS)
        assert await PeriodicChecks(client, auditor, weekly)._step(7 * 86400.0, DIGESTS) > 6 * 86400
