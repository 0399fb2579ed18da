"""Offload of sealed segments: readers see the very same records, and nothing is lost or left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from buckram.client.client import Client
from buckram.core.streams.batch import Record
from buckram.core.streams.head import HISTORY, Segment
from buckram.core.streams.names import StreamName
from buckram.errors import NoSuchLedger
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.offload import offload_stream
from buckram.streams.namespace import Namespace

NAME = StreamName("shop", "s")


async def written(ns: Namespace, segments: int, *, compression: str = "none") -> list[Record]:
    """Write records of every kind to many segments, by a writer, by producers and by bulk steps."""
    await ns.create("s", compression=compression, ensemble="3/3/2")
    for number in range(segments):
        if number % 3 == 2:
            step = await ns.bulk("s", application="job", version=number)
            ledger = await step.create_ledger()
            await ledger.append_many([b"bulk %d" % number, None], keys=[b"k", None])
            await step.publish([await ledger.close()])
            continue
        async with ns.writer("s") as writer:
            await writer.append(b"one %d" % number, key=b"key", headers={"h": b"v"}, txid=number)
            await writer.append_many([b"x" * 50, b"", None], timestamps=[number, 10**12, 5], keys=[None, b"", b"k"])
            await writer.append(b"from a producer", producer="p", sequence=number - number // 3)
    return [record async for record in ns.read("s")]


async def rows_of(ns: Namespace) -> list[Segment]:
    return [row async for row in ns.segments("s")]


async def clean(client: Client) -> None:
    await Janitor(client, JanitorSettings(grace_s=0, retired_s=0, bulk_age_s=0)).clean()


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_records_offsets_and_times_stay(client: Client, ns: Namespace, tmp_path: Path, compression: str) -> None:
    before = await written(ns, 9, compression=compression)
    old = await rows_of(ns)
    report = await offload_stream(client, ns.store, NAME, to=str(tmp_path / "history"))
    assert (report.segments, report.kept, report.put_off) == (8, 1, 0)
    rows = await rows_of(ns)
    assert sum(row.kind == HISTORY for row in rows) == 8
    await clean(client)
    for was, now in zip(old, rows, strict=True):
        if now.kind == HISTORY:
            with pytest.raises(NoSuchLedger):
                await client.open(was.ledger)
    assert [record async for record in ns.read("s")] == before
    for record in before:
        assert await ns.get("s", record.offset) == record
        first = await anext(ns.read("s", start_time=record.append_time))
        assert first == next(r for r in before if r.append_time >= record.append_time)
    last = max(record.txid for record in before if record.txid is not None)
    found = await anext(ns.read("s", start_txid=last))
    assert found == next(r for r in before if r.txid == last)
