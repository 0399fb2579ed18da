"""OpenTelemetry with a collector that decodes what comes: one trace from a request to the bookies, metrics, and off."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from tests.serve.gateway.kit import Api, serving
from tests.support.collector import Collector, collecting
from tests.support.polling import until

from buckram.bookie.run import serve_bookie
from buckram.cluster import Client, connect
from buckram.config import BookieConfig, ClientConfig, NetConfig, StoreConfig, TelemetryConfig
from buckram.errors import ConfigError
from buckram.metadata.uri import init_cluster, open_store
from buckram.runtime.production import production_runtime
from buckram.runtime.telemetry.telemetry import Telemetry

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FOLLOWED = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


def settings(collector: Collector, share: float = 0.0) -> TelemetryConfig:
    return TelemetryConfig(endpoint=collector.url, trace_share=share, traces_per_s=1e6, metrics_interval_s=3600)


@asynccontextmanager
async def bookies(folder: Path, telemetry: TelemetryConfig, count: int = 3) -> AsyncIterator[str]:
    """Real bookies on this loop, as their processes run them; the URI of their metadata."""
    uri = f"sqlite://{folder}/metadata.db"
    store = await open_store(uri, production_runtime())
    await init_cluster(store)
    await store.close()
    stops = [asyncio.Event() for _ in range(count)]
    ready: list[str] = []
    running = []
    for number, stop in enumerate(stops):
        (folder / f"b{number}").mkdir()
        work = serve_bookie(
            str(folder / f"b{number}"),
            uri,
            BookieConfig(port=0, bookie_id=f"bookie-{number}"),
            StoreConfig(segment_bytes=32 << 20),
            NetConfig(),
            telemetry_config=telemetry,
            environment={},
            on_ready=lambda info, http: ready.append(info.bookie_id),
            stop=stop,
        )
        running.append(asyncio.ensure_future(work))
    await until(lambda: len(ready) == count or any(one.done() for one in running))
    try:
        yield uri
    finally:
        for stop in stops:
            stop.set()
        await asyncio.gather(*running)


@pytest.fixture
def collector() -> object:
    with collecting() as running:
        yield running


async def test_one_trace_goes_from_a_request_through_the_gateway_to_the_bookies(
    collector: Collector, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        uri = await stack.enter_async_context(bookies(tmp_path, settings(collector)))
        client = await stack.enter_async_context(connect(uri, telemetry=settings(collector)))
        gateway = await stack.enter_async_context(serving(client))
        api = await Api.to(gateway.url)
        records = "/v2/namespaces/default/streams/orders/records"
        await api.value(f"POST {records}?create=true", b'{"value": "unseen"}')
        await api.value(f"POST {records}", b'{"value": "seen"}', **FOLLOWED)
        unseen = {"traceparent": FOLLOWED["traceparent"][:-1] + "0"}
        await api.value(f"POST {records}", b'{"value": "unseen"}', **unseen)
        assert await api.code("GET /v2/namespaces/none/streams/x", **FOLLOWED) == (404, "NO_SUCH_STREAM")
    assert {one.trace for one in collector.steps} == {TRACE}
    (request,) = collector.named("POST /v2/namespaces/{namespace}/streams/{stream}/records")
    assert (request.parent, request.notes["http.response.status_code"]) == (CALLER, 200)
    (append,) = collector.named("buckram.append")
    assert (append.parent, append.error, append.notes["buckram.entries"]) == (request.id, "", 1)
    sent = collector.named("buckram.bookie")
    assert {one.parent for one in sent} == {append.id}
    assert sorted(one.notes["buckram.bookie"] for one in sent) == ["bookie-0", "bookie-1", "bookie-2"]
    stored = collector.named("buckram.bookie.add")
    assert sorted(one.parent for one in stored) == sorted(one.id for one in sent)
    assert {(one.service, one.error, one.notes["buckram.ledger"]) for one in stored} == {
        ("buckram-bookie", "", append.notes["buckram.ledger"])
    }
    (missing,) = collector.named("GET /v2/namespaces/{namespace}/streams/{stream}")
    assert (missing.notes["http.response.status_code"], missing.error) == (404, "")


async def test_a_record_that_waited_for_a_flight_is_in_the_trace_of_its_caller(
    collector: Collector, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        uri = await stack.enter_async_context(bookies(tmp_path, settings(collector)))
        client = await stack.enter_async_context(connect(uri, telemetry=settings(collector)))
        writer = await stack.enter_async_context(await client.namespace().writer("orders", linger_ms=10_000))
        traces = client.services.runtime.traces
        assert traces is not None
        first = writer.append_nowait(b"unseen")
        await asyncio.sleep(0)
        with traces.request("job", FOLLOWED["traceparent"]) as span:
            seen = writer.append_nowait(b"seen")
        assert span is not None
        span.end("")
        assert not first.done()
        await asyncio.gather(first, seen)
    (job,), (append,) = collector.named("job"), collector.named("buckram.append")
    assert (append.trace, append.parent, append.notes["buckram.entries"]) == (TRACE, job.id, 1)


async def test_a_share_of_appends_is_traced_and_metrics_are_sent(collector: Collector, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        uri = await stack.enter_async_context(bookies(tmp_path, settings(collector)))
        client = await stack.enter_async_context(connect(uri, telemetry=settings(collector, share=0.1)))
        async with client.create(ensemble=3) as writer:
            for _ in range(300):
                await writer.append(b"x" * 100)
    appends = collector.named("buckram.append")
    assert 10 < len(appends) < 70
    # One that was sent before there were connections has no packets.
    assert 3 * (len(appends) - 1) <= len(collector.named("buckram.bookie.add")) <= 3 * len(appends)
    assert {one.error for one in collector.steps} == {""}
    counted = collector.metrics["buckram-client", "buckram_client_appended_entries_total"].sum
    assert (counted.is_monotonic, counted.data_points[0].as_double) == (True, 300)
    (took,) = collector.metrics["buckram-bookie", "buckram_bookie_add_seconds"].histogram.data_points
    assert took.count == sum(took.bucket_counts) > 0
    assert len(took.bucket_counts) == len(took.explicit_bounds) + 1
    assert collector.metrics["buckram-bookie", "buckram_bookie_add_seconds"].unit == "s"
    states = collector.metrics["buckram-bookie", "buckram_bookie_state"].gauge.data_points
    assert {one.attributes[0].key for one in states} == {"state"}


async def test_appends_of_one_turn_count_as_one(collector: Collector, tmp_path: Path) -> None:
    """Otherwise who appends a hundred at once would follow every turn, and pay for it."""
    async with AsyncExitStack() as stack:
        uri = await stack.enter_async_context(bookies(tmp_path, settings(collector)))
        client = await stack.enter_async_context(connect(uri, telemetry=settings(collector, share=0.2)))
        async with client.create(ensemble=3) as writer:
            for _ in range(60):
                await asyncio.gather(*(writer.append(b"x") for _ in range(100)))
    assert 0 < len(collector.named("buckram.append")) < 40


async def test_bookies_that_trace_nothing_get_no_packet(collector: Collector, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        uri = await stack.enter_async_context(bookies(tmp_path, TelemetryConfig()))
        for wire in (2, 3):
            config = ClientConfig(wire_protocol=wire)
            async with connect(uri, config=config, telemetry=settings(collector, share=1.0)) as client:
                await _written(client)
    assert len(collector.named("buckram.append")) == 2
    assert len(collector.named("buckram.bookie")) == 6
    assert collector.named("buckram.bookie.add") == []


async def test_a_writer_that_was_fenced_ends_its_steps_with_what_went_wrong(
    collector: Collector, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        uri = await stack.enter_async_context(bookies(tmp_path, settings(collector)))
        client = await stack.enter_async_context(connect(uri, telemetry=settings(collector, share=1.0)))
        writer = await client.create(ensemble=3)
        await writer.append(b"first")
        async with connect(uri) as other:
            await (await other.recover(writer.ledger_id)).close()
        with pytest.raises(Exception, match="fenced"):
            await writer.append(b"second")
    first, second = sorted(collector.named("buckram.append"), key=lambda one: one.notes["buckram.entry"])
    assert (first.error, bool(second.error)) == ("", True)
    refused = [one for one in collector.named("buckram.bookie.add") if one.trace == second.trace]
    assert {one.error for one in refused} == {"FENCED"}


async def test_a_collector_that_is_away_holds_nobody_up(tmp_path: Path) -> None:
    nowhere = TelemetryConfig(endpoint="http://127.0.0.1:9", trace_share=1.0, metrics_interval_s=0.1)
    async with AsyncExitStack() as stack:
        uri = await stack.enter_async_context(bookies(tmp_path, TelemetryConfig()))
        client = await stack.enter_async_context(connect(uri, telemetry=nowhere))
        await _written(client)
        began = asyncio.get_running_loop().time()
        await client.close()
        assert asyncio.get_running_loop().time() - began < 10


async def test_what_the_environment_says_counts_and_what_it_says_wrongly_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BUCKRAM_TELEMETRY_ENDPOINT", "127.0.0.1:4318")
    with pytest.raises(ConfigError, match="needs a URL such as http"):
        await connect(f"sqlite://{tmp_path}/metadata.db")
    for bad in ("collector", "ftp://x", "http://"):
        with pytest.raises(ConfigError, match="needs a URL"):
            Telemetry(TelemetryConfig(endpoint=bad), "x")


async def test_without_an_endpoint_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from buckram import connect
async def main():
    async with connect(sys.argv[1]) as client:
        async with client.create() as writer:
            await writer.append(b"x")
asyncio.run(main())
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry", "buckram.runtime.telemetry"))))
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BUCKRAM_TELEMETRY_")}
    async with bookies(tmp_path, TelemetryConfig()) as uri:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, uri, env=clean, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await child.communicate()
    assert (child.returncode, said.decode().strip()) == (0, "[]")


async def _written(client: Client) -> None:
    async with client.create(ensemble=3) as writer:
        await writer.append(b"x")
