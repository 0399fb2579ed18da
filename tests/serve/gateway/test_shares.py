"""What one principal leaves to others at a gateway, and what anybody may send before it is known who it is."""

from __future__ import annotations

import asyncio

import pytest
from tests.serve.gateway.kit import Api, Events, serving
from tests.serve.gateway.shared.test_authentication import Guarded, guarded
from tests.serve.http.kit import Raw
from tests.support.polling import until

from buckram.cluster import Client
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.limits import LOGIN_BYTES
from buckram.serve.http.spooled_files import Transfers
from buckram.serve.operations import jobs
from buckram.serve.operations.jobs import Job, Jobs, TooManyJobs
from buckram.serve.webhdfs.problems import RemoteProblem
from buckram.serve.webhdfs.transfer_limit import TransferLimit as Files

RECORDS = "/v2/namespaces/shop/streams/orders/records"
TAIL = "/v2/namespaces/shop/streams/orders/tail"
MALLORY, ALICE = "token:mallory", "token:alice"


async def session_of(api: Api, token: str) -> dict[str, str]:
    await api.value("POST /v2/session", {"token": token}, status=201)
    return {"Cookie": api.last.headers["set-cookie"].partition(";")[0]}


async def lives(api: Api, session: dict[str, str]) -> bool:
    return (await api.ask("GET /v2/session", **session)).status == 200


async def users(place: Guarded) -> None:
    for who in (MALLORY, ALICE):
        await place.grant(who, "shop", "read", "append")


async def test_logins_of_one_principal_end_only_his_own_sessions(client: Client) -> None:
    async with guarded(client, limits=GatewayLimits(sessions=20, sessions_of_principal=5)) as place:
        api, mallory = await Api.to(place.gateway.url), await place.token("mallory")
        alice = await session_of(api, await place.token("alice"))
        first = await session_of(api, mallory)
        own = [await session_of(api, mallory) for _ in range(5)]
        assert await lives(api, alice)
        assert not await lives(api, first)
        assert [await lives(api, one) for one in own] == [True] * 5


async def test_a_full_table_of_sessions_takes_from_whoever_has_most(client: Client) -> None:
    async with guarded(client, limits=GatewayLimits(sessions=3)) as place:
        api, mallory = await Api.to(place.gateway.url), await place.token("mallory")
        alice = await session_of(api, await place.token("alice"))
        own = [await session_of(api, mallory) for _ in range(10)]
        assert await lives(api, alice)
        assert [await lives(api, one) for one in own] == [False] * 8 + [True] * 2
        assert await lives(api, await session_of(api, await place.token("bob")))
        assert await lives(api, alice)


async def test_answers_to_one_principal_s_requests_push_out_only_his_own(client: Client) -> None:
    await client.namespace("shop").create("orders")
    async with guarded(client, limits=GatewayLimits(repeats=10)) as place:
        await users(place)
        api = await Api.to(place.gateway.url)
        mallory, alice = await place.bearer("mallory"), await place.bearer("alice")
        record = {"Idempotency_Key": "once", **alice}
        first = await api.value(f"POST {RECORDS}", b'{"value": "x"}', **record)
        for number in range(20):
            await api.value(f"POST {RECORDS}", b'{"value": "y"}', Idempotency_Key=f"k{number}", **mallory)
        assert await api.value(f"POST {RECORDS}", b'{"value": "x"}', **record) == first
        assert api.last.headers["idempotency-repeated"] == "true"


async def test_one_principal_leaves_tails_to_others(client: Client) -> None:
    await client.namespace("shop").create("orders")
    async with guarded(client, limits=GatewayLimits(tails=8)) as place:
        await users(place)
        api = await Api.to(place.gateway.url)
        mallory, alice = await place.bearer("mallory"), await place.bearer("alice")
        tails = [await Events.of(place.gateway.url, TAIL, **mallory) for _ in range(7)]
        assert await api.code(f"GET {TAIL}", **mallory) == (503, "TOO_MANY_TAILS")
        assert "7 of them of token:mallory, and the last 1 are kept for others" in api.last.value["message"]
        tails.append(await Events.of(place.gateway.url, TAIL, **alice))
        assert await api.code(f"GET {TAIL}", **alice) == (503, "TOO_MANY_TAILS")
        for one in tails:
            await one.close()
        await until(lambda: place.gateway.tails.count == 0)


async def test_one_principal_leaves_memory_to_others(client: Client) -> None:
    await client.namespace("shop").create("orders")
    async with guarded(client, limits=GatewayLimits(buffered_bytes=800_000)) as place:
        await users(place)
        mallory, alice = await place.token("mallory"), await place.bearer("alice")
        slow = []
        for number in range(1, 8):
            raw = await Raw.to(place.gateway.url)
            head = f"POST {RECORDS} HTTP/1.1\r\nAuthorization: Bearer {mallory}\r\nContent-Length: 100000\r\n\r\n"
            await raw.send(head.encode() + b"x")
            await until(lambda: place.gateway.room.used == number * 100_000)  # noqa: B023
            slow.append(raw)
        api = await Api.to(place.gateway.url)
        bearer = {"Authorization": f"Bearer {mallory}"}
        assert await api.code(f"POST {RECORDS}", b"x" * 1000, **bearer) == (503, "GATEWAY_FULL")
        assert (await api.value(f"POST {RECORDS}", b'{"value": "x"}', **alice))["records"] == 1
        for raw in slow:
            await raw.close()
        await until(lambda: place.gateway.room.used == 0)


async def test_a_ledger_s_writer_is_not_closed_for_another_principal_s(client: Client) -> None:
    async with guarded(client, limits=GatewayLimits(writers=4)) as place:
        await users(place)
        api = await Api.to(place.gateway.url)
        mallory, alice = await place.bearer("mallory"), await place.bearer("alice")
        created = "POST /v2/ledgers", {"namespace": "shop"}
        ledger = (await api.value(*created, status=201, **alice))["ledger"]
        for _ in range(8):
            await api.value(*created, status=201, **mallory)
        entries = f"POST /v2/ledgers/{ledger}/entries"
        await api.value(entries, b"x", Content_Type="application/octet-stream", **alice)


async def test_a_login_needs_no_more_than_its_bytes_and_keeps_no_room(client: Client) -> None:
    async with guarded(client) as place:
        api, token = await Api.to(place.gateway.url), await place.token("alice")
        body = b'{"token": "' + b"x" * LOGIN_BYTES + b'"}'
        for method in ("POST", "DELETE"):
            assert await api.code(f"{method} /v2/session", body, Content_Type="application/json") == (413, "TOO_LARGE")
            assert api.last.value["limit"] == LOGIN_BYTES
            api = await Api.to(place.gateway.url)
        waiting = [await Raw.to(place.gateway.url) for _ in range(64)]
        for raw in waiting:
            await raw.send(b"POST /v2/session HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        await until(lambda: place.gateway.room.used == 64 * LOGIN_BYTES)
        await api.value("POST /v2/session", {"token": token}, status=201)
        for raw in waiting:
            await raw.send(b"%x\r\n" % (2 * LOGIN_BYTES) + b"x" * (2 * LOGIN_BYTES) + b"\r\n")
            assert (await raw.answer()).status == 413
            await raw.close()
        await until(lambda: place.gateway.room.used == 0)


async def test_a_gateway_without_tokens_has_no_shares(client: Client) -> None:
    await client.namespace("shop").create("orders")
    async with serving(client, limits=GatewayLimits(tails=8)) as gateway:
        tails = [await Events.of(gateway.url, TAIL) for _ in range(8)]
        assert gateway.tails.count == 8
        for one in tails:
            await one.close()


async def test_one_owner_leaves_a_job_to_others_and_forgets_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_KEPT", 20)
    made, end = Jobs("/v2/jobs"), asyncio.Event()

    async def work(job: Job) -> dict[str, str]:
        await end.wait()
        return {}

    kept = made.start("alice's", work, ALICE)
    end.set()
    await until(lambda: kept.state == "done")
    for _ in range(40):
        done = made.start("short", work, MALLORY)
        await until(lambda: done.state == "done")  # noqa: B023
    assert made.one(kept.id) is kept
    assert len(made.as_json()["jobs"]) == 20
    end.clear()
    for _ in range(7):
        made.start("long", work, MALLORY)
    with pytest.raises(TooManyJobs, match="7 of them of token:mallory"):
        made.start("long", work, MALLORY)
    made.start("alice's", work, ALICE)
    with pytest.raises(TooManyJobs, match="8 jobs run already"):
        made.start("an administrator's", work)
    await made.close()


def test_one_principal_leaves_files_to_others() -> None:
    backups, files = Transfers("backups", 4, option="transfers", do="try later"), Files(8)
    ends = [backups.enter(MALLORY) for _ in range(3)] + [files.begin(MALLORY) for _ in range(7)]
    with pytest.raises(Exception, match="3 of them of token:mallory"):
        backups.enter(MALLORY)
    with pytest.raises(RemoteProblem, match="7 of them of token:mallory"):
        files.begin(MALLORY)
    ends += [backups.enter(ALICE), files.begin(ALICE)]
    for end in ends:
        end()
    assert files.now == 0
    with backups.room(MALLORY), files.one(MALLORY):
        assert files.now == 1
