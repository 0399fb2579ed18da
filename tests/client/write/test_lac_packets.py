"""Writers that pause publish their LACs to real bookies by packets, those of all writers together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial

import pytest
from tests.support.polling import answered, until

from buckram.client.shared.lac_batcher import LacBatcher
from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.core.entries.entry import Digest
from buckram.core.wire.messages import ReadLac, ReadLacReply
from buckram.errors import Code
from buckram.testing import cluster
from buckram.testing.in_process import Cluster
from buckram.types import BookieId, DigestType


@pytest.fixture
async def local() -> AsyncIterator[Cluster]:
    async with cluster(3) as found:
        yield found


async def published(client: Client, ledger_id: int, bookie: BookieId, digest: Digest) -> int:
    """Return the explicit LAC that a bookie has of a ledger; -2 if none."""
    reply = await client.services.pool.call(bookie, ReadLac(ledger_id))
    if not isinstance(reply, ReadLacReply) or reply.lac_body is None:
        return -2
    return digest.open_lac(ledger_id, reply.lac_body)


async def everywhere(client: Client, writers: Iterable[Writer], bookies: Iterable[BookieId]) -> None:
    """Wait until these bookies have the explicit LAC of every writer, which is its last entry."""
    for writer in writers:
        digest = Digest(writer.metadata.digest_type or DigestType.DUMMY, b"")
        for bookie in bookies:
            ask = partial(published, client, writer.ledger_id, bookie, digest)
            await answered(ask, writer.last_pushed.__eq__, f"ledger {writer.ledger_id} at {bookie}")


def requests_sent(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of explicit LACs that leave as requests of v3 from now on."""
    from buckram.client.write.explicit_lac import ExplicitLac

    sent: list[object] = []
    inner: Callable[[ExplicitLac], Awaitable[None]] = ExplicitLac._request

    async def request(self: ExplicitLac) -> None:
        sent.append(self)
        await inner(self)

    monkeypatch.setattr(ExplicitLac, "_request", request)
    return sent


async def test_those_of_many_writers_leave_in_few_pieces(local: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, rounds = requests_sent(monkeypatch), list[LacBatcher]()
    inner = LacBatcher._run

    def run(self: LacBatcher) -> None:
        rounds.append(self)
        inner(self)

    monkeypatch.setattr(LacBatcher, "_run", run)
    async with local.client() as client:
        writers = [await client.create() for _ in range(60)]
        await asyncio.gather(*(writer.append(b"x") for writer in writers))
        await everywhere(client, writers, client.services.bookies.bookies.writable)
        assert not requests
        assert len(rounds) < 60
        await asyncio.gather(*(writer.close() for writer in writers))


async def test_a_bookie_that_hangs_holds_up_no_other(local: Cluster) -> None:
    async with local.client() as client, client.create() as writer:
        await writer.append(b"x")
        await everywhere(client, [writer], client.services.bookies.bookies.writable)
        slow = writer.metadata.last_fragment.ensemble[2]
        number = local.bookies.index(slow)
        await local.pause(number)
        for _ in range(3):
            await writer.append(b"y")
            await everywhere(client, [writer], writer.metadata.last_fragment.ensemble[:2])
        await local.resume(number)


async def test_what_was_lost_on_the_way_is_sent_again(local: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from buckram.runtime.net.pool import AddLane

    lost: list[object] = []
    inner = AddLane.send_lacs

    def send(self: AddLane, packets: list[tuple[None, bytes]]) -> None:
        if len(lost) < 3:
            lost.append(packets)
        else:
            inner(self, packets)

    monkeypatch.setattr(AddLane, "send_lacs", send)
    async with local.client() as client, client.create() as writer:
        await writer.append(b"x")
        await everywhere(client, [writer], client.services.bookies.bookies.writable)
        assert len(lost) == 3


async def test_refusals_are_no_success(local: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Code] = []
    inner = LacBatcher.answered

    def told(self: LacBatcher, bookie: BookieId, ledger_id: int, lac: int, code: Code) -> None:
        answers.append(code)
        inner(self, bookie, ledger_id, lac, code if len(answers) > 3 else Code.TOO_MANY_REQUESTS)

    monkeypatch.setattr(LacBatcher, "answered", told)
    async with local.client() as client, client.create() as writer:
        await writer.append(b"x")
        await until(lambda: len(answers) == 6, "asked again after three refusals")
        await writer.append(b"y")
        await until(lambda: len(answers) == 9, "and for the next one once")


async def test_bookies_are_asked_by_requests_where_one_takes_no_packets(
    local: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from buckram.runtime.net.pool import AddLane

    requests = requests_sent(monkeypatch)
    takes = AddLane.takes_lacs
    async with local.client() as client, client.create() as writer:
        other = writer.metadata.last_fragment.ensemble[1]
        monkeypatch.setattr(AddLane, "takes_lacs", lambda self: self.bookie_id != other and takes(self))
        await writer.append(b"x")
        await everywhere(client, [writer], client.services.bookies.bookies.writable)
        assert len(requests) == 1
