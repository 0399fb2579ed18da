"""The table of a stream's history as DuckDB reads it, by its path and without a catalog. Spark: tests/spark."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

from tests.streams.maintain.history.test_export import rows_in, tuples
from tests.streams.maintain.test_offload import NAME
from tests.support.duckdb_kit import duckdb_with_iceberg
from tests.support.segments_kit import written

from buckram.cluster import Client
from buckram.namespace import Namespace
from buckram.streams.maintain.history.export import export_stream, plan_export
from buckram.streams.maintain.offload import offload_stream


async def test_duckdb_reads_what_was_offloaded(client: Client, ns: Namespace, tmp_path: Path) -> None:
    engine = duckdb_with_iceberg()
    before = await written(ns, 6)
    report = await offload_stream(client, ns.store, NAME, to=str(tmp_path))
    table = engine.execute(f"SELECT * FROM iceberg_scan('{report.table}')").to_arrow_table()
    found = rows_in(table)
    assert 0 < report.records == len(found) < len(before)
    there = {row[0] for row in found}
    assert found == [row for row in tuples(before) if row[0] in there]
    (counted,) = engine.execute(
        f"SELECT count(*) FROM iceberg_scan('{report.table}') WHERE producer = 'p' AND \"offset\" >= 5"
    ).fetchone()
    assert counted == sum(row[7] == "p" and row[0] >= 5 for row in found) > 0


async def test_duckdb_sees_each_export_as_a_whole(client: Client, ns: Namespace, tmp_path: Path) -> None:
    engine = duckdb_with_iceberg()
    counts = []
    for _ in range(2):
        async with ns.writer("s") as writer:
            await writer.append_many([b"%d" % number for number in range(50)])
        report = await export_stream(client, ns.store, await plan_export(ns.store, NAME, str(tmp_path)))
        counts += engine.execute(f"SELECT count(*) FROM iceberg_scan('{report.table}')").fetchone()
    assert counts == [50, 100]
