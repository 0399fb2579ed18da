"""Limbo ends by itself when every ledger that names the bookie is proved complete, and not before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.healing.test_lost_bookie import healing, members, write
from tests.support.polling import eventually

from buckram.bookie.integrity import limbo_end
from buckram.bookie.integrity import underreplication_marks as marks
from buckram.bookie.integrity.limbo_end import LimboEnd
from buckram.bookie.process import Bookie
from buckram.bookie.storage.store import Store
from buckram.cluster import Client
from buckram.core.backoff import Backoff
from buckram.core.ledgers.metadata import BIRTH, birth_of
from buckram.core.wire.messages import DISK_STATE, LOSS, BookieInfoReply, GetBookieInfo, Read
from buckram.errors import Code, MetadataUnavailable
from buckram.testing import Cluster, cluster
from buckram.types import LedgerMetadata

ENTRIES = 60


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limbo_end, "LIMBO", Backoff(0.2, 0.4))
    monkeypatch.setattr(marks, "REMARK_S", 1.0)


def bookie_of(c: Cluster, number: int = 0) -> Bookie:
    bookie = c._nodes[number].bookie
    assert bookie is not None
    return bookie


def store_of(c: Cluster, number: int = 0) -> Store:
    store = bookie_of(c, number).store
    assert store is not None
    return store


def end_of(c: Cluster) -> LimboEnd:
    found = bookie_of(c).limbo_end
    assert found is not None
    return found


async def damage(c: Cluster, payload: bytes) -> None:
    """Kill the first bookie, change a byte of the entry with this payload in its open log file, and start it again."""
    directory = Path(store_of(c)._disk.directory())
    await c.kill(0)
    hits = 0
    for file in directory.glob("log-*"):  # noqa: ASYNC240
        data = bytearray(file.read_bytes())
        at = data.find(payload)
        if at >= 0:
            data[at + 7] ^= 0x20
            file.write_bytes(bytes(data))
            hits += 1
    assert hits == 1
    await c.restart(0)
    assert store_of(c).limbo


async def two_ledgers(client: Client) -> tuple[int, int]:
    """Of 60 entries each, written in small blocks one after the other."""
    ledgers = []
    for _ in range(2):
        async with await client.create(ensemble=(3, 3, 2)) as writer:
            for i in range(ENTRIES):
                await writer.append(b"%06d of ledger %d;" % (i, writer.ledger_id) * 8)
            ledgers.append(writer.ledger_id)
    return ledgers[0], ledgers[1]


async def read_code(client: Client, bookie: str, ledger: int, entry: int) -> Code:
    return (await client.services.pool.call(bookie, Read(ledger, entry), protocol=3)).code


async def in_limbo(c: Cluster) -> bool:
    return store_of(c).limbo


async def over(c: Cluster) -> bool:
    return not store_of(c).limbo


async def test_limbo_ends_when_replicators_have_made_every_copy_again() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        first, second = await two_ledgers(client)
        name = c.bookies[0]
        await damage(c, b"%06d of ledger %d;" % (30, first))
        assert await read_code(client, name, first, 30) is Code.UNKNOWN_LEDGER_STATE

        async def told() -> bool:
            reply = await client.services.pool.call(name, GetBookieInfo(DISK_STATE | LOSS))
            assert isinstance(reply, BookieInfoReply)
            return bool(reply.loss) and any(f"first is {first}: this bookie lacks" in one.why for one in reply.troubles)

        await eventually(told, "told what it waits for")
        assert store_of(c).limbo  # nobody copies: it goes on
        async with healing(c):
            await eventually(lambda: over(c), "over")
        assert await read_code(client, name, first, 30) is Code.OK
        assert await read_code(client, name, first, ENTRIES) is Code.NO_ENTRY
        assert await read_code(client, name, second, ENTRIES) is Code.NO_ENTRY
        assert all(
            (store_of(c).ledger(ledger) is None or store_of(c).ledger(ledger).fenced) for ledger in (first, second)
        )  # type: ignore[union-attr]
        await c.restart(0)
        assert not store_of(c).limbo


async def test_limbo_goes_on_while_an_open_ledger_names_the_bookie() -> None:
    async with cluster(bookies=3) as c, c.client() as client, c.client() as other:
        first, _ = await two_ledgers(client)
        writer = await client.create(ensemble=(3, 3, 2))
        await writer.append(b"acknowledged")
        name = c.bookies[0]
        assert name in await members(client, writer.ledger_id)
        await damage(c, b"%06d of ledger %d;" % (30, first))
        async with healing(c):

            async def waits_for_it() -> bool:
                return list(end_of(c)._open) == [writer.ledger_id]

            await eventually(waits_for_it, "waits for the open ledger alone")
            (trouble,) = end_of(c).troubles()
            assert "its writer may have acknowledgements" in trouble.why
            assert store_of(c).limbo
            reader = await other.recover(writer.ledger_id)
            await reader.close()
            await eventually(lambda: over(c), "over")


async def test_a_younger_ledger_holds_nothing_up() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        first, _ = await two_ledgers(client)
        await damage(c, b"%06d of ledger %d;" % (30, first))

        async def listed() -> bool:
            return end_of(c)._unproved >= 0

        await eventually(listed, "listed")
        writer = await client.create(ensemble=(3, 3, 2))
        await writer.append(b"after the loss")
        async with healing(c):
            await eventually(lambda: over(c), "over")
        await writer.append(b"goes on")
        await writer.close()


async def test_a_loss_that_is_found_meanwhile_is_not_cleared() -> None:
    async with cluster(bookies=3) as c, c.client() as client, healing(c):
        first, _ = await two_ledgers(client)
        await damage(c, b"%06d of ledger %d;" % (30, first))
        store, end = store_of(c), end_of(c)
        loss, looked = store.loss, end._judge

        def another_loss(ledger: int, metadata: LedgerMetadata) -> str:
            found = looked(ledger, metadata)
            if not found and store.loss == loss:
                store._maintenance._mark_loss("a test found one")
            return found

        end._judge = another_loss  # type: ignore[method-assign]

        async def second_loss() -> bool:
            return store.loss > loss

        await eventually(second_loss, "another loss")
        assert store.limbo
        assert not end._clear(loss)
        assert store.limbo
        await eventually(lambda: over(c), "over, once the ledgers were looked at after the newer loss")
        assert store.loss == loss + 1


async def test_what_was_closed_is_fenced_again_before_limbo_ends() -> None:
    """The fence may have been lost: an old writer must not be heard when the bookie trusts itself again."""
    async with cluster(bookies=3) as c, c.client() as client:
        first, second = await two_ledgers(client)
        await damage(c, b"%06d of ledger %d;" % (30, first))
        record = store_of(c).ledger(second)
        assert record is not None
        assert not record.fenced
        assert record.admitted
        async with healing(c):
            await eventually(lambda: over(c), "over")
        record = store_of(c).ledger(second)
        assert record is not None
        assert record.fenced


async def test_a_listing_that_fails_ends_no_limbo(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        ledger = await write(client, 20)
        await damage(c, (10).to_bytes(4, "big") * 50)
        store = bookie_of(c)._metadata
        calls = 0

        async def fails(**_: object) -> list[int]:
            nonlocal calls
            calls += 1
            raise MetadataUnavailable("as the test says")

        monkeypatch.setattr(store, "read_ledgers", fails)

        async def tried() -> bool:
            return calls >= 3

        await eventually(tried, "tried")
        assert store_of(c).limbo
        assert "as the test says" in end_of(c).troubles()[0].why
        assert ledger >= 0


async def test_a_store_that_went_back_while_it_was_looked_at_ends_no_limbo() -> None:
    """What its listing proved may be of another history: it is asked once more before limbo ends."""
    async with cluster(bookies=3) as c, c.client() as client:
        ledger = await write(client, 20)
        await damage(c, (10).to_bytes(4, "big") * 50)
        trust, answers = end_of(c)._trust, list[bool]()
        believed = trust.confirm

        async def confirm() -> bool:
            answers.append(end_of(c)._unproved != 0)  # believed until everything is proved
            return answers[-1] and await believed()

        trust.confirm = confirm  # type: ignore[method-assign]
        async with healing(c):

            async def asked_at_the_end() -> bool:
                return not all(answers) or not store_of(c).limbo

            await eventually(asked_at_the_end, "everything is proved")
            assert store_of(c).limbo
            trust.confirm = believed  # type: ignore[method-assign]
            await eventually(lambda: over(c), "over")
        assert ledger >= 0


async def test_another_ledger_of_the_same_id_is_not_younger_than_a_loss() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        ledger = await write(client, 20)
        metadata = await client.metadata(ledger)
        other = replace(metadata, custom_metadata={**metadata.custom_metadata, BIRTH: b"another birth!!!"})
        assert len(birth_of(other)) == len(birth_of(metadata))
        assert end_of(c)._judge(ledger, metadata) == ""
        assert end_of(c)._judge(ledger, other) == "this bookie lacks entries of it"
