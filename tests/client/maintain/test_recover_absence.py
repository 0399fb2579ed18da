"""When recovery believes that an entry is absent: not on the first denials, never against a promise (F18, F19, F22)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.polling import until
from tests.support.readable_bookie import DIGEST, ReadableBookie, ReadableCluster, readable

from buckram.client.maintain import recover
from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.core.ledgers.metadata import member_replaced
from buckram.core.wire.messages import Read, ReadLac
from buckram.errors import Code, RecoveryFailed
from buckram.seams import MetadataStore
from buckram.types import Fragment, LedgerMetadata, LedgerState, Versioned

QUIET = ClientConfig(idle_lac_ms=0, speculative_read_ms=40.0)


async def lost_writer(client: Client, count: int = 5, **options: Any) -> int:
    writer = await client.create(**options)
    await writer.append_many([b"payload %d" % i for i in range(count)])
    await writer.abandon()
    return writer.ledger_id


def forget(ledger: int, entry: int, *bookies: ReadableBookie) -> None:
    for bookie in bookies:
        del bookie.entries[ledger][entry]


def of(entry: int) -> Callable[[object], bool]:
    return lambda request: isinstance(request, Read) and request.entry_id == entry


async def end_of(client: Client, ledger: int) -> int:
    async with client.recover(ledger) as reader:
        return reader.last_confirmed


async def closed_at(cluster: ReadableCluster, ledger: int) -> int | None:
    metadata = (await cluster.store.read_ledger(ledger)).metadata
    return metadata.last_entry if metadata.closed else None


async def test_a_copy_that_comes_late_wins_over_enough_denials() -> None:
    async with readable(config=QUIET) as (cluster, client):
        ledger = await lost_writer(client)
        forget(ledger, 4, cluster["b0"], cluster["b1"])
        asked = of(4)
        cluster["b2"].delay_s = lambda request: 0.3 if asked(request) else 0.0
        assert await end_of(client, ledger) == 4
        assert len(cluster.holders(ledger, 4)) == 3


async def test_denials_are_believed_at_once_when_all_have_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "_MEMBERS_S", 3600.0)
    async with readable(4, config=QUIET) as (cluster, client):
        for shape in ("3/3/2", "4/3/2", "3/2/2", "3/3/1"):
            assert await end_of(client, await lost_writer(client, ensemble=shape)) == 4
        ledger = await lost_writer(client, ensemble="3/3/2")
        victim = (await client.metadata(ledger)).last_fragment.ensemble[0]
        await cluster[victim].kill()  # its connections are refused, which is an answer
        assert await end_of(client, ledger) == 4


async def test_a_member_that_never_answers_is_waited_for_once_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "_MEMBERS_S", 0.2)
    async with readable(config=QUIET) as (cluster, client):
        ledger = await lost_writer(client, 40)
        cluster["b2"].hang = lambda request: isinstance(request, (Read, ReadLac))
        assert await end_of(client, ledger) == 39


async def test_the_time_for_members_is_that_of_the_whole_recovery() -> None:
    patience = recover._MembersTime()
    patience.left_s = 0.05
    never = asyncio.Event()
    assert not await patience.wait(never)
    assert not await patience.wait(never)
    never.set()
    assert patience.left_s == 0.0


async def test_a_header_above_the_end_forbids_it() -> None:
    """Everybody has lost entry 3, but entry 4 says that it was acknowledged."""
    async with readable(config=QUIET) as (cluster, client):
        writer = await client.create()
        for i in range(5):
            await writer.append(b"%d" % i)
        await writer.abandon()
        ledger = writer.ledger_id
        for bookie in cluster.all:
            forget(ledger, 3, bookie)
        # Where the fencing answers, of the last entry, are damaged nobody knows that LAC when reading begins.
        for bookie in cluster.all:
            bookie.refuse = lambda r: Code.NO_ENTRY if of(-1)(r) or isinstance(r, ReadLac) else None
        with pytest.raises(RecoveryFailed, match=r"header of entry 4 .* up to 3"):
            await client.recover(ledger)
        assert (await cluster.store.read_ledger(ledger)).metadata.state is LedgerState.IN_RECOVERY


async def test_a_fencing_answer_that_comes_late_forbids_it() -> None:
    async with readable(config=QUIET) as (cluster, client):
        writer = await client.create()
        for i in range(3):
            await writer.append(b"%d" % i)
        await writer.abandon()
        ledger = writer.ledger_id
        b0, b1, b2 = cluster.all
        forget(ledger, 2, b0, b1)
        forget(ledger, 1, b0, b1, b2)
        b2.delay_s = lambda request: 0.3 if of(-1)(request) else 0.0
        b2.hang = lambda request: isinstance(request, ReadLac) or of(2)(request)
        with pytest.raises(RecoveryFailed, match="header of entry 2 from bookie b2"):
            await client.recover(ledger)
        assert await closed_at(cluster, ledger) is None


async def test_a_sealed_lac_forbids_it_and_an_unsealed_one_does_not() -> None:
    async with readable(config=QUIET) as (cluster, client):
        ledger = await lost_writer(client, 3)
        for bookie in cluster.all:
            forget(ledger, 2, bookie)
        cluster["b1"].packets[ledger] = DIGEST.seal_lac(ledger, 2)[:-1] + b"?"
        cluster["b2"].claimed_lac = 99
        other = await lost_writer(client, 3)
        for bookie in cluster.all:
            forget(other, 2, bookie)
        cluster["b1"].packets[other] = DIGEST.seal_lac(other, 2)
        with pytest.raises(RecoveryFailed, match="sealed LAC from bookie b1"):
            await client.recover(other)
        assert await closed_at(cluster, other) is None
        assert await end_of(client, ledger) == 1


async def test_an_unacknowledged_entry_above_the_end_promises_nothing() -> None:
    async with readable(config=QUIET) as (cluster, client):
        ledger = await lost_writer(client, 3)
        length = sum(len(b"payload %d" % i) for i in range(3)) + 2
        for bookie in cluster.all:
            bookie.entries[ledger][4] = DIGEST.seal(ledger, 4, 2, length, b"4")
        assert await end_of(client, ledger) == 2


class Interfering:
    """Lets somebody else write just before the numbered write of a ledger."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner, self.writes = inner, 0
        self.before: dict[int, Callable[[LedgerMetadata], LedgerMetadata]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def write_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        self.writes += 1
        change = self.before.pop(self.writes, None)
        if change is not None:
            current = await self.inner.read_ledger(ledger_id)
            await self.inner.write_ledger(ledger_id, change(current.metadata), current.version)
        return await self.inner.write_ledger(ledger_id, metadata, version)


async def test_what_was_found_closes_no_other_record() -> None:
    """The record that the close meets names other bookies: they are read anew, where there is one entry more."""
    async with readable(4, config=QUIET) as (cluster, client):
        ledger = await lost_writer(client, 3)
        metadata = (await cluster.store.read_ledger(ledger)).metadata
        members = metadata.last_fragment.ensemble
        spare = next(name for name in cluster.bookies if name not in members)
        lying = Interfering(client.services.store)
        length = (await client.metadata(ledger)).length or sum(len(b"payload %d" % i) for i in range(3))
        for name in (*members[:2], spare):
            cluster[name].entries.setdefault(ledger, {}).update(cluster[members[0]].entries[ledger])
        moved = Fragment(0, (*members[:2], spare))

        def change(found: LedgerMetadata) -> LedgerMetadata:
            for name in moved.ensemble:
                cluster[name].entries[ledger][3] = DIGEST.seal(ledger, 3, 2, length + 1, b"3")
            return replace(found, fragments=(moved,), creator_token=0)

        lying.before[2] = change
        services = replace(client.services, store=lying)
        async with await recover.recover_ledger(services, ledger) as reader:
            assert reader.last_confirmed == 3
        assert (await cluster.store.read_ledger(ledger)).metadata.last_fragment == moved


async def test_a_conflict_that_changes_nothing_is_no_obstacle() -> None:
    async with readable(config=QUIET) as (cluster, client):
        ledger = await lost_writer(client, 3)
        lying = Interfering(client.services.store)
        lying.before[2] = lambda found: replace(found, creator_token=0)
        services = replace(client.services, store=lying)
        async with await recover.recover_ledger(services, ledger) as reader:
            assert reader.last_confirmed == 2
        await until(lambda: lying.writes == 3, "one write more")
        assert await closed_at(cluster, ledger) == 2


async def test_a_member_that_a_repair_replaced_meanwhile_stays_replaced() -> None:
    """The close is derived from the record that it meets, whose older fragments a repair may have changed by then."""
    async with readable(5, config=QUIET) as (cluster, client):
        writer = await client.create()
        await writer.append(b"payload 0")
        old = writer.metadata.last_fragment.ensemble
        cluster[old[0]].add_code = lambda entry: Code.IO_ERROR
        await writer.append(b"payload 1")
        await until(lambda: len(writer.metadata.fragments) == 2, "a second fragment")
        await writer.abandon()
        ledger = writer.ledger_id
        before = (await cluster.store.read_ledger(ledger)).metadata.fragments
        spare = next(name for name in cluster.bookies if all(name not in one.ensemble for one in before))
        changing = Interfering(client.services.store)
        changing.before[2] = lambda found: member_replaced(found, 0, old[0], spare)
        services = replace(client.services, store=changing)
        async with await recover.recover_ledger(services, ledger) as reader:
            assert reader.last_confirmed == 1
        after = (await cluster.store.read_ledger(ledger)).metadata
        assert not changing.before
        assert after.fragments == (Fragment(0, (spare, *old[1:])), *before[1:])
