"""Usage that bookies publish, rates that they share out by what each is asked for, and what is created."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.bookie_kit import memory_metadata, running
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.secure_kit import guarded
from tests.support.tenants_kit import QUIET

from buckram import QuotaExceeded, connect
from buckram.bookie.accounting.namespace_usage import (
    APPLICATION,
    MOST_APPLICATIONS,
    OTHER_APPLICATIONS,
    _count_ledger,
    _Counting,
    application_of,
)
from buckram.core.ledgers.metadata import closed, created, in_recovery
from buckram.core.tenants.quotas import encode_counts
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.production import production_runtime

RATE = 600


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


async def test_a_rate_is_shared_by_what_each_bookie_is_asked_for(tmp_path: Path) -> None:
    """Two writers on one bookie, none on the other: after five seconds they have the whole rate between them."""
    tree = MemoryTree()
    async with AsyncExitStack() as stack:
        kits = []
        for name in ("one", "two"):
            store = await memory_metadata(tree)
            kits.append(await stack.enter_async_context(running(tmp_path / name, metadata=store, admission="known")))
        own = TreeStore(MemoryKeys(tree), "memory:client", production_runtime().rng)
        client = await stack.enter_async_context(connect(own, config=QUIET))
        await client.namespaces.create("shop", ensemble="1/1/1")
        await client.namespaces.set_quotas("shop", in_entries_per_s=RATE)
        await until(lambda: all(kit.bookie.server.limiter.active for kit in kits))  # type: ignore[union-attr]
        custom = {"buckram.namespace": b"shop"}
        writers = [await client.create(ensemble=1, custom_metadata=custom) for _ in range(8)]
        busy = writers[0].metadata.last_fragment.ensemble
        same = [one for one in writers if one.metadata.last_fragment.ensemble == busy][:2]
        pending = [one.append_nowait(b"x" * 100) for one in same for _ in range(9000)]
        await pass_time(5.0)
        clock = asyncio.get_running_loop().time
        before, since = sum(one.last_confirmed for one in same), clock()
        await pass_time(4.0)
        added = sum(one.last_confirmed for one in same) - before
        assert added == pytest.approx((clock() - since) * RATE, rel=0.1)
        found = (await TenantStore(own).published()).bookies
        assert found[busy[0]]["shop"].in_entries_per_s == pytest.approx(RATE, rel=0.15)
        for future in pending:
            future.cancel()


async def test_ledgers_streams_and_databases_are_held_to_their_quotas(tmp_path: Path) -> None:
    async with guarded(tmp_path) as here, connect(here.service, config=QUIET) as client:
        accounting = here.bookie.accounting
        assert accounting is not None
        await client.namespaces.create("shop", ensemble="1/1/1")
        shop = client.namespace("shop")
        await client.namespaces.set_quotas("shop", ledgers=3, streams=3, databases=1)
        await until(lambda: bool(accounting.quotas) and accounting.published.counts_round > 0)
        custom = {"buckram.namespace": b"shop"}
        for _ in range(3):
            await client.create(ensemble=1, custom_metadata=custom)
        with pytest.raises(QuotaExceeded, match="3 of 3 ledgers"):
            await client.create(ensemble=1, custom_metadata=custom)
        await client.create(ensemble=1)
        await shop.create_machine_log("first", {"buckram": "database"})
        with pytest.raises(QuotaExceeded, match="1 of 1 databases"):
            await shop.create_machine_log("second", {"buckram": "database"})
        await shop.create("a")
        await shop.create("b")
        with pytest.raises(QuotaExceeded, match="3 of 3 streams"):
            await shop.create("c")
        await pass_time(8.0)
        await until(lambda: "shop" in accounting.published.counts and accounting.published.counts["shop"].ledgers == 3)
        assert accounting.published.counts["shop"].streams == 3
        assert accounting.published.counts["shop"].databases == 1


async def stored_after_a_while(directory: Path, metadata: TreeStore, *, write: bool) -> int:
    """Start the bookie of a directory; what it publishes of `default`, once it has counted."""
    async with running(directory, metadata=metadata, admission="known") as kit:
        accounting = kit.bookie.accounting
        assert accounting is not None
        if write:
            async with connect(metadata, config=QUIET) as client, client.create(ensemble=1) as writer:
                await writer.append_many([b"x" * 1000] * 20)
        await pass_time(7.0)
        await until(lambda: accounting.rounds > 2 and accounting._counted)
        published = await TenantStore(metadata).published()
        assert published.rounds[kit.id] > 1
        return published.total["default"].stored_bytes


async def test_what_is_stored_is_known_again_after_a_restart(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    await TenantStore(metadata).turn_on()
    stored = [await stored_after_a_while(tmp_path, metadata, write=first) for first in (True, False)]
    assert stored[0] == stored[1]
    assert 20_000 <= stored[0] <= 24_000


def test_an_application_is_what_a_ledger_says_or_whose_step_it_is() -> None:
    assert application_of({}) == ""
    assert application_of({"application": b"pulsar"}) == "pulsar"
    assert application_of({"buckram.stream.purpose": b"bulk my app 7"}) == "my app"
    assert application_of({"buckram.stream.purpose": b"segment"}) == ""


def test_what_is_counted_of_all_namespaces_fits_into_one_key() -> None:
    """Ledgers say themselves what application made them, and each could say something else."""
    counting = _Counting()
    for size in range(3000):
        custom = {APPLICATION: b"%05d" % size + b"x" * 200}
        made = created(1, 1, 1, ("b",), custom_metadata=custom)
        _count_ledger(counting, closed(in_recovery(made), 0, size))
    found = counting.done()
    assert len(found.applications) == MOST_APPLICATIONS + 1
    assert sum(found.applications.values()) == sum(range(3000))
    assert max(found.applications.values()) == found.applications[OTHER_APPLICATIONS]
    assert len(encode_counts({"shop": found}, 1)) < 4096
