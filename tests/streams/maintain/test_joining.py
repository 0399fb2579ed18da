"""Many short-lived writers: their small segments are joined, and nobody notices but by the number of ledgers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.segments_kit import rows_of

from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.core.streams.compaction import small_runs
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy
from buckram.errors import OutOfOrderSequence
from buckram.namespace import Namespace
from buckram.streams.maintain import compaction as joining
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.orphans import find_orphans
from buckram.streams.shared.ledgers import JOINED, list_intents
from buckram.testing import Cluster

NAME = StreamName("shop", "s")
RUNS = 50


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was joined goes at the next opportunity, as if some seconds lay between the runs."""
    monkeypatch.setattr(joining, "KEPT_US", -1)


async def ledgers(client: Client) -> int:
    return len([ledger async for ledger in client.list()])


async def run(ns: Namespace, number: int) -> None:
    async with ns.writer("s") as writer:
        await writer.append_many([b"%d" % (number * 5 + n) for n in range(5)], timestamps=[number] * 5)


async def test_short_runs_leave_few_ledgers_and_all_records(client: Client, ns: Namespace, soon: None) -> None:
    await ns.create("s")
    following = ns.read("s", follow=True)
    most, seen = 0, []
    for number in range(RUNS):
        await run(ns, number)
        most = max(most, await ledgers(client))
        if number % 5 == 0:  # This reader is in the middle of segments that are joined and deleted behind it.
            seen += [await anext(following) for _ in range(3)]
    assert most <= 20
    records = [record async for record in ns.read("s")]
    assert [record.value for record in records] == [b"%d" % n for n in range(5 * RUNS)]
    assert [record.offset for record in records] == list(range(5 * RUNS))
    assert [record.timestamp for record in records] == [n // 5 for n in range(5 * RUNS)]
    times = [record.append_time for record in records]
    assert times == sorted(times)
    while len(seen) < len(records):
        seen.append(await anext(following))
    assert [record.offset for record in seen] == [record.offset for record in records]
    await following.close()
    assert (await find_orphans(client, ns.store)) == []


async def test_sequences_of_producers_go_on(client: Client, ns: Namespace, soon: None) -> None:
    await ns.create("s")
    for number in range(20):
        async with ns.writer("s") as writer:
            offset = await writer.append(b"%d" % number, producer="p", sequence=number)
            assert offset == await writer.append(b"again", producer="p", sequence=number)
    assert len(await rows_of(ns)) < 12
    async with ns.writer("s") as writer:
        await writer.append(b"old", producer="p", sequence=3)
        assert writer.next_offset == 20  # It is stored already.
        with pytest.raises(OutOfOrderSequence):
            await writer.append(b"gap", producer="p", sequence=22)


async def test_what_was_joined_stays_for_a_moment(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    for number in range(9):
        await run(ns, number)
    gone = [one.ledger for one in await list_intents(ns.store, (await ns.store.read(NAME)).head.uid)]
    assert len(gone) == 8
    intents = await list_intents(ns.store, (await ns.store.read(NAME)).head.uid)
    assert {one.purpose for one in intents} == {JOINED}
    await Janitor(client, JanitorSettings(grace_s=0, retired_s=0)).clean()
    assert await ledgers(client) == 2


async def test_a_fork_keeps_the_ledgers_that_it_shares(client: Client, ns: Namespace, soon: None) -> None:
    await ns.create("s")
    for number in range(8):
        await run(ns, number)
    await ns.fork_stream("s", "fork")
    for number in range(8, 24):
        await run(ns, number)
    assert [record.value async for record in ns.read("fork")] == [b"%d" % n for n in range(40)]
    assert [record.value async for record in ns.read("s")] == [b"%d" % n for n in range(120)]


async def test_zero_switches_it_off(three_bookies: Cluster, ns: Namespace) -> None:
    await ns.create("s")
    async with three_bookies.client(ClientConfig(join_segments=0)) as other:
        for number in range(12):
            await run(other.namespace("shop"), number)
    assert len(await rows_of(ns)) == 12


async def test_a_janitor_joins_many(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    for number in range(6):
        await run(ns, number)
    report = await Janitor(client, JanitorSettings(grace_s=0, join_at=6)).clean()
    assert (report.joined_segments, report.problems) == (6, [])
    assert len(await rows_of(ns)) == 1
    assert [record.value async for record in ns.read("s")] == [b"%d" % n for n in range(30)]


async def test_who_cannot_read_leaves_them(client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer opens all the same, and no ledger was made for a copy."""
    await ns.create("s")
    for number in range(8):
        await run(ns, number)
    monkeypatch.setattr(joining, "_READ_WITHIN_S", 0.0)
    before = await ledgers(client)
    await run(ns, 8)
    assert await ledgers(client) == before + 1


async def test_what_may_be_joined(ns: Namespace) -> None:
    await ns.create("s")
    for number in range(8):
        await run(ns, number)
    head, policy = (await ns.store.read(NAME)).head, Policy()
    (found,) = small_runs(head, policy, at_least=8)
    assert len(found.rows) == 8
    assert small_runs(head, policy, at_least=9) == small_runs(head, policy, at_least=0) == []
    assert small_runs(head, replace(policy, retention_s=1e-6), at_least=8) == []
    assert small_runs(replace(head, snapshots=()), policy, at_least=8) == []
    rows = [replace(row, summary=row.summary._replace(bytes=2 << 20)) for row in head.tail if row.summary]
    assert small_runs(replace(head, tail=tuple(rows)), policy, at_least=8) == []
