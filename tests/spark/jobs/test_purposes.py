"""Jobs, as every door to a stream, ask what the stream is for."""

from __future__ import annotations

from types import SimpleNamespace

from tests.support.purposes_kit import LOGS, refuses, shop

from buckram import Client
from buckram.core.streams.names import stream_name
from buckram.spark.jobs.compact import CompactReport, _plan
from buckram.spark.jobs.import_kafka import _opened


async def import_from_kafka(client: Client, name: str) -> None:
    await _opened(client, stream_name(name), "a", SimpleNamespace())  # type: ignore[arg-type]


async def compact(client: Client, name: str) -> None:
    await _plan(client, [name], None, CompactReport("run"))


async def test_a_job_on_one_stream_is_refused() -> None:
    async with shop() as client:
        for name in (*LOGS, "system/audit", "system/usage"):
            assert await refuses(import_from_kafka, client, name), name
        for name in LOGS:
            assert await refuses(compact, client, name), name


async def test_a_job_over_all_streams_leaves_logs_out() -> None:
    async with shop() as client:
        report = CompactReport("run")
        names = [str(one.name) for one in await _plan(client, None, None, report)]
        assert (sorted(names), report.problems) == (["shop/orders", "system/audit", "system/usage"], [])
