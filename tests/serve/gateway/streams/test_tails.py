"""Following a stream by server-sent events."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.serve.gateway.kit import Api, Events, serving
from tests.support.polling import eventually, until

from buckram.cluster import Client
from buckram.core.streams.names import stream_name
from buckram.serve.gateway.server import Gateway
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.streams.tails import Feed, Piece, _from
from buckram.streams.write.writer import StreamWriter

TAIL = "/v2/namespaces/shop/streams/orders/tail"


@pytest.fixture
async def writer(client: Client) -> StreamWriter:
    return await client.namespace("shop").writer("orders")


async def write(writer: StreamWriter, count: int, size: int = 1) -> None:
    await writer.append_many([b"x" * size] * count)


async def test_events_begin_where_one_asks(client: Client, writer: StreamWriter, gateway: Gateway) -> None:
    await write(writer, 3)

    async def all_can_be_read() -> bool:
        return (await client.namespace("shop").info("orders")).end == 3

    await eventually(all_can_be_read)
    newest = await Events.of(gateway.url, TAIL)
    whole = await Events.of(gateway.url, f"{TAIL}?start=earliest")
    again = await Events.of(gateway.url, f"{TAIL}?start=earliest", Last_Event_ID="1")
    await write(writer, 2)
    assert await newest.offsets(2) == [3, 4]
    assert await whole.offsets(5) == [0, 1, 2, 3, 4]
    assert await again.offsets(3) == [2, 3, 4]
    assert gateway.tails.count == 3
    for events in (newest, whole, again):
        await events.close()
    await until(lambda: gateway.tails.count == 0)
    assert not gateway.tails._feeds


async def test_who_is_behind_the_ring_reads_by_itself(client: Client, writer: StreamWriter) -> None:
    limits = GatewayLimits(tail_ring_bytes=2_000, tail_gather_s=0.01)
    async with serving(client, limits=limits) as gateway:
        newest, late = await Events.of(gateway.url, TAIL), await Events.of(gateway.url, f"{TAIL}?start=0")
        for _ in range(10):
            await write(writer, 10, 100)
            await newest.offsets(10)
        feed = await gateway.tails._feed(stream_name("shop/orders"))
        assert feed.begin > 0
        assert sum(len(piece.data) for piece in feed._pieces) < 6_000
        assert await late.offsets(100) == list(range(100))
        await newest.close()
        await late.close()


async def test_the_end_of_a_stream_is_an_event(writer: StreamWriter, gateway: Gateway) -> None:
    events = await Events.of(gateway.url, TAIL)
    await write(writer, 1)
    await writer.end()
    assert await events.offsets(1) == [0]
    assert (await events.next())["event"] == "end"
    ended = await Events.of(gateway.url, f"{TAIL}?start=0")
    assert await ended.offsets(1) == [0]
    assert (await ended.next())["event"] == "end"


async def test_a_deleted_stream_is_an_event(client: Client, writer: StreamWriter, gateway: Gateway) -> None:
    events = await Events.of(gateway.url, TAIL)
    await client.namespace("shop").delete("orders")
    found = await events.next()
    assert (found["event"], json.loads(found["data"])["code"]) == ("error", "NO_SUCH_STREAM")


async def test_a_gateway_that_stops_says_so(client: Client, writer: StreamWriter) -> None:
    async with serving(client) as gateway:
        events = await Events.of(gateway.url, TAIL)
    found = await events.next()
    assert (found["event"], json.loads(found["data"])["code"]) == ("error", "HANDLE_CLOSED")


async def test_a_client_that_takes_nothing_is_cut_off(client: Client, writer: StreamWriter) -> None:
    async with serving(client, limits=GatewayLimits(stuck_s=0.3, tail_ring_bytes=100_000)) as gateway:
        stuck, other = await Events.of(gateway.url, TAIL), await Events.of(gateway.url, TAIL)
        stuck._raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        taking = asyncio.ensure_future(other.offsets(300))
        for _ in range(10):
            await write(writer, 30, 60_000)
        assert await taking == list(range(300))
        await until(lambda: gateway.tails.count == 1)
        await other.close()


async def test_tails_are_limited(client: Client, writer: StreamWriter) -> None:
    async with serving(client, limits=GatewayLimits(tails=1)) as gateway:
        api, events = await Api.to(gateway.url), await Events.of(gateway.url, TAIL)
        assert await api.code(f"GET {TAIL}") == (503, "TOO_MANY_TAILS")
        assert {"value": 1, "limit": 1}.items() <= api.last.value.items()
        await events.close()


async def test_bad_starts(writer: StreamWriter, api: Api, gateway: Gateway) -> None:
    assert await api.code(f"GET {TAIL}?start=7") == (416, "OFFSET_OUT_OF_RANGE")
    assert await api.code(f"GET {TAIL}?start=x") == (400, "INVALID_ARGUMENT")
    assert await api.code(f"GET {TAIL}", Last_Event_ID="x") == (400, "INVALID_ARGUMENT")
    assert await api.code("GET /v2/namespaces/shop/streams/none/tail") == (404, "NO_SUCH_STREAM")
    assert gateway.tails.count == 0


async def test_offsets_may_have_gaps(client: Client) -> None:
    feed = Feed(client, stream_name("shop/orders"), GatewayLimits())
    first, second = Piece(0, 3, b"a"), Piece(7, 9, b"b")
    feed._pieces.extend((first, second))
    feed.next = 9
    assert [feed.piece(n) for n in (0, 2, 3, 6, 7, 8)] == [first, first, second, second, second, second]
    assert feed.piece(9) is None


def test_a_piece_is_cut_at_an_event() -> None:
    data = b"".join(b'id: %d\ndata: {"n": "id: 3"}\n\n' % n for n in (2, 3, 11))
    assert _from(Piece(2, 12, data), 3).count(b"id: 3\n") == 1
    assert _from(Piece(2, 12, data), 4).startswith(b"id: 11\n")


async def test_a_feed_that_failed_with_anything_ends_its_tails_and_the_next_one_reads_anew(
    client: Client, writer: StreamWriter, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ValueError("nobody expected it")

    async with asyncio.timeout(20):
        newest = await Events.of(gateway.url, TAIL)
        stays = await gateway.tails.opened(stream_name("shop/orders"), None)
        with monkeypatch.context() as patch:
            patch.setattr(Feed, "_publish", failing)
            await write(writer, 1)
            feed = gateway.tails._feeds[stream_name("shop/orders")]
            await until(lambda: feed.result().error is not None, seconds=5.0)  # type: ignore[union-attr]
            patch.setattr(Feed, "open", failing)
            with pytest.raises(ValueError, match="nobody expected it"):
                await gateway.tails.opened(stream_name("shop/orders"), None)
        again = await Events.of(gateway.url, f"{TAIL}?start=earliest")
        assert await again.offsets(1) == [0]
    stays.close()
    for events in (newest, again):
        await events.close()
