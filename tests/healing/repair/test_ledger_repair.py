"""The order of one repair (M7), against scripted bookies: copies, their sync, the name in metadata, a second look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.polling import until
from tests.support.readable_bookie import ReadableBookie, ReadableCluster, readable

from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.core.healing.status import Why
from buckram.core.wire.messages import Force
from buckram.errors import Code
from buckram.healing.repair.ledger_repair import LedgerRepair
from buckram.healing.repair.member_verdicts import OpenLedgers
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.types import LedgerMetadata, Versioned

FAST = ClientConfig(speculative_read_ms=40.0)
ENTRIES = 30
Meanwhile = Callable[[], None]


class NamingStore:
    """Calls `meanwhile` at the moment at which a ledger's record is about to be changed."""

    def __init__(self, inner: MetadataStore, meanwhile: Meanwhile) -> None:
        self._inner, self._meanwhile = inner, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        self._meanwhile()
        return await self._inner.write_ledger(ledger_id, metadata, version)


def repair_of(client: Client, meanwhile: Meanwhile) -> LedgerRepair:
    found = LedgerRepair(client, OpenLedgers(client, 0.0), Pace(None))
    found._services = replace(client.services, store=NamingStore(client.services.store, meanwhile))  # type: ignore[arg-type]
    return found


async def lost(cluster: ReadableCluster, client: Client) -> tuple[int, str, ReadableBookie]:
    """Return a closed ledger, its member that is gone, and the only bookie that can take the place."""
    async with client.create(ensemble="3/3/2") as writer:
        await writer.append_many([b"payload %d" % entry for entry in range(ENTRIES)])
    members = writer.metadata.last_fragment.ensemble
    (spare,) = [bookie for bookie in cluster.all if bookie.name not in members]
    await cluster[members[0]].kill()
    await until(lambda: client.services.bookies.info(members[0]) is None, "the member is gone")
    return writer.ledger_id, members[0], spare


async def is_named(client: Client, ledger: int, bookie: str) -> bool:
    return bookie in (await client.services.store.read_ledger(ledger)).metadata.last_fragment.ensemble


async def test_a_member_is_named_when_its_copies_are_synced() -> None:
    """Copies that it had already may be those of a writer that defers syncs: only the barrier makes them durable."""
    async with readable(4, config=FAST) as (cluster, client):
        ledger, gone, spare = await lost(cluster, client)
        held = [bookie for bookie in cluster.all if bookie.name not in (gone, spare.name)]
        spare.entries[ledger] = dict(held[0].entries[ledger])
        forces: list[int] = []
        outcome = await repair_of(client, lambda: forces.append(spare.forces)).run(ledger, [gone])
        assert (outcome.whole, outcome.replaced, forces) == (True, 1, [1])
        assert await is_named(client, ledger, spare.name)


@pytest.mark.parametrize("code", [Code.IO_ERROR, Code.NO_LEDGER, Code.READ_ONLY])
async def test_a_member_that_does_not_confirm_the_sync_is_not_named(code: Code) -> None:
    async with readable(4, config=FAST) as (cluster, client):
        ledger, gone, spare = await lost(cluster, client)
        spare.force_code = code
        named: list[int] = []
        outcome = await repair_of(client, lambda: named.append(1)).run(ledger, [gone])
        assert [reason.why for reason in outcome.reasons] == [Why.TARGET_FAILED]
        assert code.name in outcome.reasons[0].text
        assert (named, outcome.replaced) == ([], 0)
        assert await is_named(client, ledger, gone)


async def test_a_member_that_dies_before_it_has_synced_is_not_named() -> None:
    async with readable(4, config=FAST) as (cluster, client), TaskScope("test") as scope:
        ledger, gone, spare = await lost(cluster, client)

        def dies(request: object) -> bool:
            if isinstance(request, Force):
                scope.spawn(spare.kill(), "kill")
            return isinstance(request, Force)

        spare.hang = dies
        named: list[int] = []
        outcome = await repair_of(client, lambda: named.append(1)).run(ledger, [gone])
        assert [reason.why for reason in outcome.reasons] == [Why.TARGET_FAILED]
        assert named == []
        assert await is_named(client, ledger, gone)


async def test_copies_that_the_target_dropped_before_it_was_named_are_made_again() -> None:
    """Its collection deletes copies that metadata places elsewhere: the second look finds that."""
    async with readable(4, config=FAST) as (cluster, client):
        ledger, gone, spare = await lost(cluster, client)
        outcome = await repair_of(client, lambda: spare.entries[ledger].clear()).run(ledger, [gone])
        assert (outcome.whole, outcome.replaced) == (True, 1)
        assert outcome.copied.entries == 2 * ENTRIES
        assert list(spare.ids(ledger)) == list(range(ENTRIES))
        assert spare.forces == 2


async def test_a_target_that_keeps_nothing_is_told() -> None:
    async with readable(4, config=FAST) as (cluster, client):
        ledger, gone, spare = await lost(cluster, client)

        def keep_nothing() -> None:
            spare.ids = lambda ledger: []  # type: ignore[method-assign]

        outcome = await repair_of(client, keep_nothing).run(ledger, [gone])
        assert [reason.why for reason in outcome.reasons] == [Why.TARGET_FAILED]
        assert "does not list all entries" in outcome.reasons[0].text
