"""Ledgers that go to and fro between our client and Apache's, on Apache's bookies. INTEROP_ON=ours: on ours."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.interop.apache import JavaFailed
from tests.interop.clusters import PASSWORD, Cluster, payload
from tests.interop.live import LiveWriter
from tests.interop.words import JAVA_DIGEST, Ask, check, each_digest, each_wire, entries

from buckram.cluster import Client
from buckram.core.ledgers.metadata import BIRTH
from buckram.errors import NoSuchLedger

pytestmark = pytest.mark.share(5)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(os.environ.get("INTEROP_ON", "apache"))
    return found


@each_wire
@each_digest
async def test_java_reads_what_we_wrote(client: Client, ask: Ask, digest: str) -> None:
    async with client.create(digest=digest, password=PASSWORD, custom_metadata={"by": "python"}) as writer:
        await writer.append_many(entries(0, 120))
    read = await ask("read", digest, ledger=writer.ledger_id)
    assert read == {"last": 120, "length": sum(map(len, entries(0, 120))), "closed": True}
    facts = await ask("metadata", ledger=writer.ledger_id)
    assert (facts["state"], facts["last_entry"], facts["digest"]) == ("CLOSED", 120, JAVA_DIGEST[digest])
    assert set(facts["custom"]) == {"by", BIRTH}
    assert (facts["custom"]["by"], facts["password"], facts["format"]) == ("python", "secret", 3)
    assert facts["fragments"] == {"0": list(writer.metadata.last_fragment.ensemble)}


@each_wire
@each_digest
async def test_we_read_what_java_wrote(client: Client, ask: Ask, digest: str) -> None:
    made = await ask("create", digest, custom={"by": "java"})
    await ask("add", writer=made["writer"], count=80)
    await ask("closeWriter", writer=made["writer"])
    async with client.open(made["ledger"], password=PASSWORD) as reader:
        assert reader.last_confirmed == 79
        assert reader.length == sum(map(len, entries(0, 79)))
        assert dict(reader.metadata.custom_metadata) == {"by": b"java"}
        await check(reader, 0, 79)


@each_wire
@each_digest
async def test_we_recover_from_a_live_java_writer(client: Client, ask: Ask, digest: str) -> None:
    made = await ask("create", digest)
    await ask("startWriting", writer=made["writer"])
    await ask("awaitAcknowledged", writer=made["writer"], entry=150)
    async with client.recover(made["ledger"], password=PASSWORD) as reader:
        state = await ask("stopWriting", writer=made["writer"])
        assert state["failed"] != 0, "the Java writer was not fenced"
        assert reader.last_confirmed >= state["acknowledged"]
        await check(reader, 0, reader.last_confirmed)


@each_wire
@each_digest
async def test_java_recovers_from_our_live_writer(client: Client, ask: Ask, digest: str) -> None:
    writer = await client.create(digest=digest, password=PASSWORD)
    live = LiveWriter(writer)
    await live.reached(50)
    read = await ask("read", digest, ledger=writer.ledger_id, recover=True)
    await live.fenced()
    assert read["closed"]
    assert read["last"] >= live.acknowledged


@each_wire
async def test_both_tail_our_idle_writer(client: Client, ask: Ask) -> None:
    async with client.create(password=PASSWORD) as writer, client.open(writer.ledger_id, password=PASSWORD) as reader:
        java_tail = asyncio.ensure_future(ask("tail", ledger=writer.ledger_id, until=29))
        await writer.append_many(entries(0, 29))
        # Nothing follows entry 29: both learn of it from the explicit last confirmed entry alone.
        async with asyncio.timeout(30):
            assert (await java_tail)["last"] == 29
            tail = reader.tail()
            got: list[bytes] = []
            while len(got) < 30:
                got += [entry.payload for entry in await tail.next_chunk()]
        assert got == entries(0, 29)


@each_wire
async def test_both_tail_an_idle_java_writer(client: Client, ask: Ask) -> None:
    made = await ask("create")
    java_tail = asyncio.ensure_future(ask("tail", ledger=made["ledger"], until=24))
    await ask("add", writer=made["writer"], count=25)
    async with asyncio.timeout(30), client.open(made["ledger"], password=PASSWORD) as reader:
        tail = reader.tail()
        got: list[bytes] = []
        while len(got) < 25:
            got += [entry.payload for entry in await tail.next_chunk()]
        assert got == entries(0, 24)
        assert (await java_tail)["last"] == 24
    await ask("closeWriter", writer=made["writer"])


@pytest.mark.parametrize("wire", [3], ids=["v3"])
async def test_java_force_is_visible_to_us(client: Client, ask: Ask) -> None:
    made = await ask("create", deferred=True)
    await ask("add", writer=made["writer"], count=6)
    assert (await ask("force", writer=made["writer"]))["last_confirmed"] == 5
    async with client.recover(made["ledger"], password=PASSWORD) as reader:
        assert reader.last_confirmed >= 5
        await check(reader, 0, 5)


@pytest.mark.parametrize("wire", [2], ids=["v2"])
async def test_java_has_no_deferred_sync_on_v2(ask: Ask) -> None:
    """Our client has it: it sends over v3 what v2 lacks."""
    made = await ask("create", deferred=True)
    with pytest.raises(JavaFailed) as refused:
        await ask("add", writer=made["writer"], count=1)
    assert refused.value.error == "BKIllegalOpException"


@each_wire
async def test_java_lists_and_deletes_what_we_made(client: Client, ask: Ask) -> None:
    async with client.create() as writer:
        await writer.append(payload(0))
    assert writer.ledger_id in await ask("list")
    await ask("delete", ledger=writer.ledger_id)
    with pytest.raises(NoSuchLedger):
        await client.open(writer.ledger_id)


@each_wire
async def test_java_with_a_wrong_password_is_refused(client: Client, ask: Ask) -> None:
    async with client.create(password=PASSWORD) as writer:
        await writer.append(payload(0))
        with pytest.raises(JavaFailed) as refused:
            await ask("read", ledger=writer.ledger_id, recover=True, password="wrong")
        assert refused.value.error == "BKUnauthorizedAccessException"
        await writer.append(payload(1))
