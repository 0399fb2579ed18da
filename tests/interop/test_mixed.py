"""One cluster of both kinds: ledgers on two bookies of ours and two of Apache's, written, killed, recovered, read.

The cluster was set up by Apache's shell. It has two bookies of ours and three of Apache's: a lost member can be
replaced, and our client, which takes bookies of its own kind first, still needs both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.interop.clusters import PASSWORD, Cluster, both_kinds, payload
from tests.interop.live import LiveWriter
from tests.interop.words import Ask, each_wire
from tests.support.polling import answered

from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.types import LedgerState

pytestmark = pytest.mark.share(8, "mixed clusters")

SHAPE = (4, 3, 2)
each_victim = pytest.mark.parametrize("victim", ["ours", "theirs"])


@pytest.fixture
def cluster(mixed: Cluster) -> Iterator[Cluster]:
    """After the test, replace the bookies that it killed."""
    yield mixed
    mixed.replace_killed()


async def java_writer(cluster: Cluster, ask: Ask) -> tuple[int, int, list[str]]:
    """Writer, ledger and ensemble of a ledger on two bookies of each kind; placement is random, so it retries."""
    for _ in range(40):
        made = await ask("create", e=SHAPE[0], qw=SHAPE[1], qa=SHAPE[2])
        members = (await ask("metadata", ledger=made["ledger"]))["fragments"]["0"]
        if both_kinds(cluster, members):
            return made["writer"], made["ledger"], members
        await ask("closeWriter", writer=made["writer"])
    raise AssertionError("no ledger on two and two bookies in 40 attempts")


async def our_writer(cluster: Cluster, client: Client) -> Writer:
    for _ in range(40):
        writer = await client.create(ensemble=SHAPE, password=PASSWORD)
        if both_kinds(cluster, writer.metadata.last_fragment.ensemble):
            return writer
        await writer.close()
    raise AssertionError("no ledger on two and two bookies in 40 attempts")


def pick(cluster: Cluster, members: list[str], victim: str) -> str:
    return next(member for member in members if cluster.is_ours(member) is (victim == "ours"))


async def follow(client: Client, ledger: int, until: int) -> None:
    """Tail with our client up to an entry, comparing each."""
    async with client.open(ledger, password=PASSWORD) as reader:
        expected = 0
        async for entry in reader.tail():
            assert (entry.entry_id, entry.payload) == (expected, payload(expected))
            expected += 1
            if expected > until:
                return
    raise AssertionError(f"the tail ended at entry {expected - 1}, before {until}")


async def read_by_both(client: Client, ask: Ask, ledger: int, last: int) -> None:
    read = await ask("read", ledger=ledger)
    assert (read["last"], read["closed"]) == (last, True)
    async with client.open(ledger, password=PASSWORD) as reader:
        assert reader.last_confirmed == last
        found = await reader.read(0, last)
        assert [entry.payload for entry in found] == [payload(number) for number in range(last + 1)]


@each_wire
async def test_written_by_us_read_by_both(client: Client, ask: Ask, cluster: Cluster) -> None:
    writer = await our_writer(cluster, client)
    await writer.append_many(payload(number) for number in range(300))
    await writer.close()
    await read_by_both(client, ask, writer.ledger_id, 299)


@each_wire
async def test_written_by_java_read_by_both(client: Client, ask: Ask, cluster: Cluster) -> None:
    writer, ledger, _ = await java_writer(cluster, ask)
    await ask("add", writer=writer, count=100)
    await ask("closeWriter", writer=writer)
    await read_by_both(client, ask, ledger, 99)


@each_wire
@each_victim
async def test_killed_during_our_writes_recovered_by_java(
    client: Client, ask: Ask, cluster: Cluster, victim: str
) -> None:
    writer = await our_writer(cluster, client)
    ledger, live = writer.ledger_id, LiveWriter(writer)
    async with asyncio.timeout(60):
        tails = [
            asyncio.ensure_future(follow(client, ledger, 400)),
            asyncio.ensure_future(ask("tail", ledger=ledger, until=400)),
        ]
        await live.reached(150)
        cluster.kill(pick(cluster, list(writer.metadata.last_fragment.ensemble), victim))
        await live.reached(450)
        await asyncio.gather(*tails)
        assert writer.ensemble_changes > 0
        read = await ask("read", ledger=ledger, recover=True)
        await live.fenced()
    assert read["closed"]
    assert read["last"] >= live.acknowledged
    await read_by_both(client, ask, ledger, read["last"])


@each_wire
@each_victim
async def test_killed_during_java_writes_recovered_by_us(
    client: Client, ask: Ask, cluster: Cluster, victim: str
) -> None:
    writer, ledger, members = await java_writer(cluster, ask)
    async with asyncio.timeout(60):
        await ask("startWriting", writer=writer)
        tails = [
            asyncio.ensure_future(follow(client, ledger, 700)),
            asyncio.ensure_future(ask("tail", ledger=ledger, until=700)),
        ]
        await ask("awaitAcknowledged", writer=writer, entry=300)
        cluster.kill(pick(cluster, members, victim))
        state = await ask("awaitAcknowledged", writer=writer, entry=800)
        assert state["failed"] == 0, state
        await asyncio.gather(*tails)
        assert len((await ask("metadata", ledger=ledger))["fragments"]) > 1
        async with client.recover(ledger, password=PASSWORD) as reader:
            last = reader.last_confirmed
        state = await ask("stopWriting", writer=writer)
    assert state["failed"] != 0, "the Java writer was not fenced"
    assert last >= state["acknowledged"]
    await read_by_both(client, ask, ledger, last)


@each_wire
@each_victim
@pytest.mark.parametrize("recoverer", ["java", "ours"])
async def test_recovered_while_a_member_is_down(
    client: Client, ask: Ask, cluster: Cluster, victim: str, recoverer: str
) -> None:
    """The writer is gone without a close, one of its bookies too; the other kind of client recovers."""
    if recoverer == "java":
        ours = await our_writer(cluster, client)
        await ours.append_many(payload(number) for number in range(50))
        ledger, members = ours.ledger_id, list(ours.metadata.last_fragment.ensemble)
        await ours.abandon()
    else:
        theirs, ledger, members = await java_writer(cluster, ask)
        await ask("add", writer=theirs, count=50)
    cluster.kill(pick(cluster, members, victim))
    if recoverer == "java":
        read = await ask("read", ledger=ledger, recover=True)
        assert (read["last"], read["closed"]) == (49, True)
    else:
        async with client.recover(ledger, password=PASSWORD) as reader:
            assert reader.metadata.state is LedgerState.CLOSED
            assert reader.last_confirmed == 49
    await read_by_both(client, ask, ledger, 49)


@each_wire
async def test_our_repair_replaces_a_lost_bookie_of_theirs(client: Client, ask: Ask, cluster: Cluster) -> None:
    writer = await our_writer(cluster, client)
    await writer.append_many(payload(number) for number in range(60))
    await writer.close()
    victim = pick(cluster, list(writer.metadata.last_fragment.ensemble), "theirs")
    cluster.kill(victim)
    # Until its registration ends a bookie counts as being on its way back.
    report = await answered(
        lambda: client.repair(writer.ledger_id, password=PASSWORD), lambda done: bool(done.replaced)
    )
    assert report.healthy
    assert victim not in (await client.metadata(writer.ledger_id)).last_fragment.ensemble
    await read_by_both(client, ask, writer.ledger_id, 59)
