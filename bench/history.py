"""Offload with its verification, history read beside plain Parquet, export, verification and imports. Records are lines
of JSON of about 200 bytes, as logs have them. `plain_copies_mb_per_s`: what three plain copies, one after the other and
synced each 4 MB, reach on the disk."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from bench.harness import Bench, inside
from bench.healing import plain_copy
from bench.machine import cpu_seconds
from buckram import Client
from buckram.core.streams.external.imports import ImportColumns
from buckram.core.streams.names import StreamName
from buckram.streams.maintain.history import iceberg  # noqa: F401 - loaded before the clock runs
from buckram.streams.maintain.history.export import export_stream, plan_export
from buckram.streams.maintain.history.verify import files_side, stream_side, verify
from buckram.streams.maintain.import_sources import ImportSource
from buckram.streams.maintain.imports import import_files, plan_import
from buckram.streams.maintain.offload import offload_planned, plan_offload

Figures = dict[str, Any]
MIB = 1024 * 1024
BYTES = int(float(os.environ.get("BENCH_HISTORY_MIB", "512")) * MIB)
SEGMENT_BYTES = 128 * MIB
_NAME = StreamName("default", "s")


class _Clock:
    """Throughput in MB/s since its creation, and CPU seconds per GB of this process and of the bookies."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._began, self._cpu, self._bookies = time.perf_counter(), time.process_time(), self._taken()

    def _taken(self) -> float:
        return sum(map(cpu_seconds, self._bench.pids))

    def figures(self, name: str, size: int) -> Figures:
        took, spent = time.perf_counter() - self._began, time.process_time() - self._cpu
        return {
            f"{name}_mb_per_s": round(size / took / 1e6, 1),
            f"{name}_cpu_s_per_gb": round(spent / size * 1e9, 2),
            f"{name}_bookies_cpu_s_per_gb": round((self._taken() - self._bookies) / size * 1e9, 2),
        }


def offload() -> Figures:
    return inside(_offload)


async def _offload(bench: Bench, client: Client) -> Figures:
    ns, figures = client.namespace(), Figures()
    await ns.create("s", ensemble="3/3/2")
    lines, size = await asyncio.to_thread(_lines, bench.folder / "lines"), 0
    for number, batch in enumerate(lines):
        step = await ns.bulk("s", application="fill", version=number)
        ledger = await step.create_ledger()
        await ledger.append_arrow(batch)
        await step.publish([await ledger.close()])
        size += batch.column("value").nbytes

    clock = _Clock(bench)
    await export_stream(client, ns.store, await plan_export(ns.store, _NAME, str(bench.folder / "lake")))
    figures |= clock.figures("export", size)
    clock = _Clock(bench)
    found = await verify(await stream_side(client, _NAME), await files_side(client, _NAME, str(bench.folder / "lake")))
    assert found.equal
    figures |= clock.figures("verify", size)

    clock = _Clock(bench)
    report = await offload_planned(
        client, ns.store, await plan_offload(ns.store, _NAME, to=str(bench.folder / "history"))
    )
    figures |= clock.figures("offload", size) | {"file_bytes_per_byte": round(report.file_bytes / size, 3)}
    clock, records = _Clock(bench), 0
    async for batch in ns.read("s").arrow_batches():
        records += batch.num_rows
    figures |= clock.figures("read_history", size)
    clock, plain = _Clock(bench), 0
    for file in await asyncio.to_thread(lambda: sorted(Path(report.location).glob("*.parquet"))):
        table = await asyncio.to_thread(pq.read_table, file, use_threads=False)
        plain += table.num_rows
    figures |= clock.figures("plain_parquet", size)
    assert plain == records
    figures["read_share_of_parquet"] = round(figures["read_history_mb_per_s"] / figures["plain_parquet_mb_per_s"], 3)

    await asyncio.to_thread(_csv, lines, bench.folder / "csv")
    lines.clear()
    places = {"parquet": report.location, "jsonl": str(bench.folder / "lines"), "csv": str(bench.folder / "csv")}
    for kind, place in places.items():
        assert await _import(bench, client, kind, place, f"import_{kind}", size, figures) == records
    # What three copies need of the disk decides on some machines: one copy, compressed ones, and plain files beside it.
    place = report.location
    await _import(bench, client, "parquet", place, "import_one_copy", size, figures, ensemble="1/1/1")
    await _import(bench, client, "parquet", place, "import_compressed", size, figures, compression="zstd")
    rates = [await asyncio.to_thread(plain_copy, bookie.directory, bench.folder, size) for bookie in bench.bookies]
    figures["plain_copies_mb_per_s"] = round(1e-6 / sum(1 / each for each in rates), 1)
    return figures


async def _import(
    bench: Bench,
    client: Client,
    kind: str,
    place: str,
    figure: str,
    size: int,
    figures: Figures,
    *,
    ensemble: str = "3/3/2",
    compression: Literal["none", "zstd"] = "none",
) -> int:
    """Import files into a stream of their own; returns how many records there were."""
    ns, name, source = client.namespace(), StreamName("default", figure), ImportSource(place)
    await ns.create(figure, ensemble=ensemble, compression=compression)
    clock = _Clock(bench)
    work = await plan_import(ns.store, name, source, kind, ImportColumns())
    done = await import_files(client, ns.store, work, source)
    figures |= clock.figures(figure, size)
    return done.records


def _csv(lines: list[pa.RecordBatch], folder: Path) -> None:
    folder.mkdir()
    for number, batch in enumerate(lines):
        texts = pa.table({"value": batch.column("value").cast(pa.string())})
        pa_csv.write_csv(texts, folder / f"{number:04d}.csv")


def _lines(folder: Path) -> list[pa.RecordBatch]:
    """Write files of lines, and return the same lines as record batches, one for each segment."""
    folder.mkdir()
    rng, found, number = random.Random(1), list[pa.RecordBatch](), 0
    for file in range(max(1, BYTES // SEGMENT_BYTES)):
        lines: list[str] = []
        size = 0
        while size < min(BYTES, SEGMENT_BYTES):
            number += 1
            noise = rng.getrandbits(320)
            line = (
                f'{{"id": {number}, "customer": "c{noise % 50_000}", "level": "info", "path": "/shop/{noise % 97}", '
                f'"trace": "{noise:080x}", "ms": {noise % 1000}}}'
            )
            lines.append(line)
            size += len(line) + 1
        (folder / f"{file:04d}.jsonl").write_text("\n".join(lines) + "\n")
        found.append(pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.binary())}))
    return found
