"""Appending and reading records over HTTP, in every form."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from tests.serve.gateway.kit import Api
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.serve.gateway.server import Gateway

RECORDS = "/v2/namespaces/shop/streams/orders/records"
NDJSON, VALUES, ARROW = "application/x-ndjson", "application/vnd.buckram.values", "application/vnd.apache.arrow.stream"


@pytest.fixture(autouse=True)
async def _orders(client: Client) -> None:
    await client.namespace("shop").create("orders")


def ndjson(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in records)


def framed(*values: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(one)) + one for one in values)


def arrow(batch: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def values(records: list[Any]) -> list[bytes | None]:
    return [None if one["value_base64"] is None else base64.b64decode(one["value_base64"]) for one in records]


async def readable(api: Api, end: int) -> None:
    """Wait until all records before `end` can be read: that is some milliseconds after their acknowledgement."""

    async def all_there() -> bool:
        await api.ask(f"GET {RECORDS}?start=latest&limit=1")
        return int(api.last.headers["buckram-next-offset"]) >= end

    await eventually(all_there)


async def test_each_form_of_a_body_becomes_records(api: Api) -> None:
    rich = {"value": "v", "key": "k", "headers": {"h": "1"}, "timestamp_us": 5, "txid": 7}
    bodies = {
        NDJSON: ndjson(rich, {"value": None}),
        "application/octet-stream": b"whole\nbody",
        "text/plain": b"a\nb\n",
        VALUES: framed(b"", b"x" * 300) + b"\xff\xff\xff\xff",
        ARROW: arrow(pa.record_batch({"value": ["c", None], "key": [b"k", None]})),
    }
    counts = []
    for media, body in bodies.items():
        said = await api.value(f"POST {RECORDS}", body, Content_Type=media)
        assert said["stream"] == "shop/orders"
        assert said["last_offset"] - said["first_offset"] == said["records"] - 1
        counts.append(said["records"])
    assert counts == [2, 1, 2, 3, 2]
    await readable(api, 10)
    found = await api.lines(f"GET {RECORDS}")
    assert values(found) == [b"v", None, b"whole\nbody", b"a", b"b", b"", b"x" * 300, None, b"c", None]
    assert {"headers": {"h": "1"}, "timestamp_us": 5, "txid": 7}.items() <= found[0].items()
    assert base64.b64decode(found[0]["key_base64"]) == base64.b64decode(found[8]["key_base64"]) == b"k"
    assert api.last.headers["buckram-next-offset"] == "10"


async def test_each_form_of_an_answer(api: Api) -> None:
    await api.value(f"POST {RECORDS}", b"a\nbb\n", Content_Type="text/plain")
    await readable(api, 2)
    assert (await api.ask(f"GET {RECORDS}", Accept="text/plain")).body == b"a\nbb\n"
    assert (await api.ask(f"GET {RECORDS}", Accept=VALUES)).body == framed(b"a", b"bb")
    table = pa.ipc.open_stream((await api.ask(f"GET {RECORDS}", Accept=ARROW)).body).read_all()
    assert (table["value"].to_pylist(), table["offset"].to_pylist()) == ([b"a", b"bb"], [0, 1])
    assert values([await api.value(f"GET {RECORDS}/1")]) == [b"bb"]
    assert (await api.ask(f"GET {RECORDS}/1", Accept="application/octet-stream")).body == b"bb"


async def test_a_range_comes_in_pages(api: Api) -> None:
    await api.value(f"POST {RECORDS}", b"".join(b"%d\n" % n for n in range(10)), Content_Type="text/plain")
    await readable(api, 10)
    found, at = [], "0"
    while page := await api.lines(f"GET {RECORDS}?start={at}&limit=4&stop=9"):
        found += values(page)
        at = api.last.headers["buckram-next-offset"]
    assert found == [b"%d" % n for n in range(9)]
    assert values(await api.lines(f"GET {RECORDS}?since={2**61}")) == []
    assert await api.lines(f"GET {RECORDS}?start=latest") == []
    assert await api.code(f"GET {RECORDS}?start=11") == (416, "OFFSET_OUT_OF_RANGE")
    assert {"earliest": 0, "latest": 10}.items() <= api.last.value.items()


async def test_a_repeated_sequence_is_stored_once(api: Api) -> None:
    path, body = f"POST {RECORDS}?producer=p&sequence=0", b"a\nb\n"
    assert (await api.value(path, body, Content_Type="text/plain"))["records"] == 2
    assert (await api.value(path, body, Content_Type="text/plain"))["records"] == 0
    gap = f"POST {RECORDS}?producer=p&sequence=9"
    assert await api.code(gap, body, Content_Type="text/plain") == (409, "OUT_OF_ORDER_SEQUENCE")
    await readable(api, 2)
    assert len(await api.lines(f"GET {RECORDS}")) == 2


async def test_an_expected_offset_is_compared(api: Api) -> None:
    first = f"POST {RECORDS}?expect_offset=0"
    assert (await api.value(first, b"a", Content_Type="application/octet-stream"))["first_offset"] == 0
    assert await api.code(first, b"a", Content_Type="application/octet-stream") == (409, "OFFSET_MISMATCH")


async def test_a_stream_is_created_where_that_is_asked_for(api: Api) -> None:
    path = "POST /v2/namespaces/shop/streams/new/records"
    assert await api.code(path, b"a") == (404, "NO_SUCH_STREAM")
    body = ndjson({"value": "a"})
    assert (await api.value(f"{path}?create=true", body))["records"] == 1
    assert (await api.value(f"{path}?create=true", body))["first_offset"] == 1


async def test_many_clients_share_one_writer(gateway: Gateway) -> None:
    apis = [await Api.to(gateway.url) for _ in range(4)]

    async def append(api: Api) -> list[int]:
        path = f"POST {RECORDS}"
        return [(await api.value(path, b"x", Content_Type="application/octet-stream"))["last_offset"] for _ in range(5)]

    offsets = await asyncio.gather(*map(append, apis))
    assert sorted(offset for found in offsets for offset in found) == list(range(20))
    assert gateway.writers.streams == ["shop/orders"]
    for api in apis:
        await api.raw.close()


@pytest.mark.parametrize(
    ("media", "body", "reason"),
    [
        (NDJSON, b"{}\n", "line 1 of the body has neither value nor value_base64"),
        (NDJSON, b'{"value": "a"}\n{"value"\n', "line 2 of the body is not JSON"),
        (NDJSON, b'{"value": "a", "x": 1}\n', "unknown field 'x'"),
        (VALUES, b"\0\0", "ends within the length of record 0"),
        (VALUES, framed(b"a") + b"\0\0\0\x09abc", "record 1 should have 9 bytes, the body has 3 left"),
        (ARROW, b"abc", "no Arrow IPC stream"),
        (ARROW, arrow(pa.record_batch({"v": ["a"]})), "no column value"),
        (ARROW, arrow(pa.record_batch({"value": [1]})), "column value of type int64"),
        (ARROW, arrow(pa.record_batch({"value": pa.nulls(10**6)})), "column value of type null"),
        (ARROW, arrow(pa.record_batch({"value": ["a" * 999]}), compression="lz4"), "is compressed"),
        (ARROW, arrow(pa.record_batch({"value": pa.array(["a"]).dictionary_encode()})), "has dictionaries"),
    ],
)
async def test_a_bad_body_says_where_it_is_bad(api: Api, media: str, body: bytes, reason: str) -> None:
    assert await api.code(f"POST {RECORDS}", body, Content_Type=media) == (400, "INVALID_ARGUMENT")
    assert reason in api.last.value["message"]
    assert await api.lines(f"GET {RECORDS}") == []


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("producer=p", "producer and sequence go together"),
        ("expect_offset=-1", "expect_offset is -1"),
        ("expect_offset=x", "expect_offset = 'x': needs a whole number"),
        ("offset=1", "parameter 'offset' is unknown"),
        ("atomic=true&atomic=true", "is given twice"),
        ("atomic=1", "needs true or false"),
        ("key=k", "key is for a body of one value"),
    ],
)
async def test_a_bad_parameter_is_named(api: Api, query: str, reason: str) -> None:
    assert await api.code(f"POST {RECORDS}?{query}", ndjson({"value": "a"})) == (400, "INVALID_ARGUMENT")
    assert reason in api.last.value["message"]


async def test_other_bad_requests(api: Api) -> None:
    assert await api.code(f"POST {RECORDS}", b"a", Content_Type="image/png") == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert await api.code("GET /v2/namespaces/shop/streams/none/records") == (404, "NO_SUCH_STREAM")
    assert (await api.code("GET /v2/namespaces/../streams/none/records"))[0] == 400
    assert (await api.code("GET /v2/namespaces/%2e%2e/streams/a/records"))[0] == 400
    assert (await api.code("GET /v2/../../etc/passwd"))[0] == 404
    assert await api.code(f"GET {RECORDS}/x") == (400, "INVALID_ARGUMENT")
    assert await api.code(f"GET {RECORDS}?start=5&since=1") == (400, "INVALID_ARGUMENT")


async def test_a_record_is_there_as_soon_as_its_append_was_answered(api: Api) -> None:
    for number in range(20):
        said = await api.value(f"POST {RECORDS}", b"%d\n" % number, Content_Type="text/plain")
        found = await api.value(f"GET {RECORDS}/{said['first_offset']}")
        assert values([found]) == [b"%d" % number]
    assert await api.code(f"GET {RECORDS}/1000000") == (416, "OFFSET_OUT_OF_RANGE")
    assert api.last.value["retryable"] is False


async def test_event_times_in_nanoseconds_are_refused(api: Api) -> None:
    late = ndjson({"value": "v", "timestamp_us": 1_795_161_600_123_456_789})
    assert await api.code(f"POST {RECORDS}", late, Content_Type=NDJSON) == (400, "INVALID_ARGUMENT")
    assert "give microseconds since 1970" in api.last.value["message"]
