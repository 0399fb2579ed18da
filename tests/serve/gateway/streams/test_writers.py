"""Writers of a gateway: shared, closed when idle, and found at another gateway."""

from __future__ import annotations

import asyncio

from tests.serve.gateway.kit import Api, serving
from tests.support.polling import eventually, until

from buckram.cluster import Client
from buckram.serve.gateway.server import Gateway
from buckram.serve.gateway.shared.gateway_registry import Peers
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.testing import Cluster

PATH = "/v2/namespaces/shop/streams/orders/records"
VALUE = {"Content_Type": "application/octet-stream"}


async def append(api: Api) -> int:
    return int((await api.value(f"POST {PATH}?create=true", b"x", **VALUE))["last_offset"])


async def test_a_client_is_sent_to_the_gateway_that_has_the_stream(
    gateway: Gateway, api: Api, three_bookies: Cluster
) -> None:
    assert await append(api) == 0
    async with three_bookies.client() as other, serving(other) as second:
        there = await Api.to(second.url)
        answer = await there.ask(f"POST {PATH}?create=true", b"y", **VALUE)
        assert (answer.status, answer.headers["location"]) == (307, f"{gateway.url}{PATH}?create=true")
        assert {one.url for one in await second.peers.shown()} == {gateway.url, second.url}
        await gateway.close()
        assert await append(there) == 1
        assert second.writers.streams == ["shop/orders"]


async def test_a_lease_sends_nobody_to_an_address_that_is_not_shown(client: Client, api: Api, gateway: Gateway) -> None:
    sign = "gateway-0123456789ab at http://evil.example"
    async with client.namespace("shop").writer("orders", name=sign) as writer:
        assert writer.name == sign
        gateway.writers._limits = GatewayLimits(lease_wait_s=0.1)
        assert await api.code(f"POST {PATH}", b"x", **VALUE) == (409, "WRITER_EXISTS")
        assert "location" not in api.last.headers


async def test_another_writer_is_not_disturbed(client: Client, api: Api) -> None:
    async with client.namespace("shop").writer("orders", name="somebody") as writer:
        assert await api.code(f"POST {PATH}", b"x", **VALUE) == (409, "WRITER_EXISTS")
        assert await writer.append(b"y") == 0
    assert await append(api) == 1


async def test_an_idle_writer_gives_its_lease_back(client: Client) -> None:
    async with serving(client, limits=GatewayLimits(writer_idle_s=0.2)) as gateway:
        await append(await Api.to(gateway.url))
        await until(lambda: not gateway.writers.streams)
        async with client.namespace("shop").writer("orders", wait=True) as writer:
            assert writer.next_offset == 1


async def test_a_writer_that_was_taken_over_is_opened_again(client: Client, api: Api) -> None:
    assert await append(api) == 0
    async with client.namespace("shop").writer("orders", takeover=True) as writer:
        await writer.append(b"y")

    async def appended() -> bool:
        return (await api.ask(f"POST {PATH}", b"x", **VALUE)).status == 200

    await eventually(appended)

    async def all_can_be_read() -> bool:
        return (await client.namespace("shop").info("orders")).end >= 3

    await eventually(all_can_be_read)


async def test_without_acknowledgement_in_time_the_outcome_is_unknown(three_bookies: Cluster) -> None:
    async with three_bookies.client() as client, serving(client, limits=GatewayLimits(append_wait_s=2.0)) as gateway:
        api = await Api.to(gateway.url)
        await client.namespaces.create("shop")
        await append(api)
        for number in range(3):
            await three_bookies.pause(number)
        key = {"Idempotency_Key": "a", **VALUE}
        assert await api.code(f"POST {PATH}", b"x", **key) == (504, "OUTCOME_UNKNOWN")
        assert api.last.headers["buckram-outcome"] == "unknown"
        for number in range(3):
            await three_bookies.resume(number)
        assert await append(api) == 2
        # What became of it is not known, so that it must not be done again.
        assert await api.code(f"POST {PATH}", b"x", **key) == (504, "OUTCOME_UNKNOWN")
        assert api.last.headers["idempotency-repeated"] == "true"
        assert await append(api) == 3


async def test_what_a_lost_writer_has_sent_may_be_in_the_stream(three_bookies: Cluster) -> None:
    async with three_bookies.client() as client, serving(client) as gateway, three_bookies.client() as other:
        api = await Api.to(gateway.url)
        await client.namespaces.create("shop")
        await append(api)
        for number in range(3):
            await three_bookies.pause(number)
        sent = asyncio.ensure_future(api.code(f"POST {PATH}", b"x", **VALUE))
        async with gateway.writers._streams.use("shop/orders") as writer:
            await until(lambda: writer.pending_bytes > 0)
        taking = asyncio.ensure_future(other.namespace("shop").writer("orders", takeover=True))
        assert await sent == (503, "WRITER_LOST")
        assert api.last.headers["buckram-outcome"] == "unknown"
        for number in range(3):
            await three_bookies.resume(number)
        async with await taking as heir:
            assert heir.next_offset in (1, 2)


async def test_a_gateway_shows_itself_again_after_its_key_went(client: Client) -> None:
    peers = Peers(client.services.store, "http://a")
    await peers.start()
    keys = client.services.store.keys
    assert (await peers.shown()) == [peers.me]
    assert await peers.url_of(peers.sign) is None
    other = Peers(client.services.store, "http://b/")
    await other.start()
    assert await peers.url_of(other.sign) == "http://b"
    await keys.delete(other._key, (await keys.get(other._key)).version)
    assert await peers.url_of(other.sign) is None
    await other._show()
    assert await peers.url_of(other.sign) == "http://b"
    await asyncio.gather(peers.close(), other.close())
    assert await peers.shown() == []
