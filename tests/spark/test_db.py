"""The format `buckram.db` without Spark: reads at one offset, changes of rows, and a table that is written once."""

from __future__ import annotations

import itertools
import json
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructField, StructType
from tests.serve.hrana.processes import ServeProcess
from tests.spark.older_server import without_history
from tests.spark.test_sink_parts import task
from tests.spark.test_sink_replay import planned_now
from tests.support.polling import wait_until

from buckram import sync
from buckram.core.streams.metadata.transactions import ONCE, StepId
from buckram.errors import (
    BatchesLost,
    BuckramError,
    ChangesGone,
    ChangesNotKept,
    CheckpointReset,
    InvalidArgument,
    NoEarlierState,
    NotDatabase,
    RecordsLost,
    ReplayDiffers,
    SqlError,
    StaleTransaction,
    UnknownQuery,
)
from buckram.spark.databases import local_copies as db_copies
from buckram.spark.databases import row_changes as db_changes
from buckram.spark.databases.data_source import DatabaseDataSource
from buckram.spark.databases.database_options import DATABASE_OPTIONS, DatabaseSinkOptions
from buckram.spark.databases.row_changes import CHANGE_COLUMNS
from buckram.spark.databases.table_sink import DatabaseStep, RemoteServer, inserts
from buckram.spark.shared.clients import connection
from buckram.state.db.commits.changes import change_fold
from buckram.testing import ThreadedCluster

pytest.importorskip("apsw")
TYPES: dict[str, types.DataType] = {
    "bigint": types.LongType(), "int": types.IntegerType(), "string": types.StringType(), "double": types.DoubleType(),
    "binary": types.BinaryType(), "boolean": types.BooleanType(), "timestamp": types.TimestampType(),
}  # fmt: skip
ITEM = "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL, photo BLOB, sold BOOLEAN, note)"


@pytest.fixture
def database(stream: str) -> str:
    return stream.rpartition("-")[0][-30:].strip("-/").replace("/", "-") + stream[-9:]


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of copies for this test alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def schema(**columns: str) -> StructType:
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns.items()])


def execute(
    cluster: ThreadedCluster, database: str, *statements: str | tuple[str, Sequence[Any]], cdc: bool = False
) -> int:
    """Execute each statement as a transaction, and return the offset after the last."""
    with sync.connect(cluster.uri) as client:

        async def run() -> int:
            ns = client._client.namespace()
            if cdc:
                await ns.create_database(database, cdc=True)
            async with ns.database(database) as db:
                await db.lead()
                for one in statements:
                    await db.execute(*((one,) if isinstance(one, str) else one))
                return db.applied

        return client._thread.run(run)


def query(cluster: ThreadedCluster, database: str, sql: str) -> list[Any]:
    with sync.connect(cluster.uri) as client:

        async def run() -> list[Any]:
            async with client._client.namespace().database(database, create=False) as db:
                await db.lead()
                return list((await db.query(sql)).rows)

        return client._thread.run(run)


def source(cluster: ThreadedCluster, database: str, **options: object) -> DatabaseDataSource:
    given = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
    return DatabaseDataSource({"metadata": cluster.uri, "path": database, **given})


def rows(reader: Any, parts: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    parts = reader.partitions() if parts is None else parts
    other = pickle.loads(pickle.dumps(reader))
    return [
        row for part in parts for batch in other.read(pickle.loads(pickle.dumps(part))) for row in batch.to_pylist()
    ]


# -- tables and queries -----------------------------------------------------------------------------------


def test_a_table_with_the_types_that_it_declares(cluster: ThreadedCluster, database: str) -> None:
    row = ("INSERT INTO item VALUES (?, ?, ?, ?, ?, ?)", (1, "bolt", 0.5, b"\0\1", 1, "n"))
    execute(cluster, database, ITEM, row, "INSERT INTO item (id, note) VALUES (2, 7)")
    item = source(cluster, database, dbtable="item")
    assert item.schema() == "`id` bigint, `name` string, `price` double, `photo` binary, `sold` boolean, `note` string"
    kinds = {
        "id": "bigint",
        "name": "string",
        "price": "double",
        "photo": "binary",
        "sold": "boolean",
        "note": "string",
    }
    assert [tuple(row.values()) for row in rows(item.reader(schema(**kinds)))] == [
        (1, "bolt", 0.5, b"\0\1", True, "n"),
        (2, None, None, None, None, "7"),
    ]
    assert rows(item.reader(schema(price="double", id="bigint"))) == [{"price": 0.5, "id": 1}, {"price": None, "id": 2}]
    some = source(cluster, database, query="SELECT sum(price) AS total, count(*) AS n FROM item;")
    assert some.schema() == "`total` string, `n` string"
    assert rows(some.reader(schema(total="double", n="bigint"))) == [{"total": 0.5, "n": 2}]


def test_all_partitions_are_of_one_offset(cluster: ThreadedCluster, database: str) -> None:
    begin = execute(cluster, database, "CREATE TABLE n (k INTEGER PRIMARY KEY)")
    many = ", ".join(f"({n})" for n in range(1000))
    then = execute(cluster, database, f"INSERT INTO n VALUES {many}")
    reader = source(cluster, database, dbtable="n", numPartitions=4).reader(schema(k="bigint"))
    parts = reader.partitions()
    assert len(parts) == 4
    execute(cluster, database, "UPDATE n SET k = k + 100000")
    assert [row["k"] for row in rows(reader, parts)] == list(range(1000))
    assert [row["k"] for row in rows(reader)] == list(range(100000, 101000))
    for offset, count in ((begin, 0), (then, 1000)):
        earlier = source(cluster, database, dbtable="n", offset=offset, numPartitions=3).reader(schema(k="bigint"))
        assert sorted(row["k"] for row in rows(earlier)) == list(range(count))
    for offset in (10**9,):
        with pytest.raises(NoEarlierState, match=str(offset)):
            source(cluster, database, dbtable="n", offset=offset).reader(schema(k="bigint")).partitions()


def test_few_copies_stay_on_a_machine(cluster: ThreadedCluster, database: str, copies: Path) -> None:
    offsets = [execute(cluster, database, "CREATE TABLE n (k INTEGER)")]
    offsets += [execute(cluster, database, f"INSERT INTO n VALUES ({n})") for n in range(6)]
    for at, offset in enumerate(offsets):
        for _ in range(2):
            reader = source(cluster, database, dbtable="n", offset=offset).reader(schema(k="bigint"))
            assert [row["k"] for row in rows(reader)] == list(range(at))
    assert len(list(copies.glob("buckram-spark-databases-*/*.db"))) == db_copies.KEPT
    folder = next(copies.glob("buckram-spark-databases-*"))
    folder.chmod(0o755)
    with pytest.raises(BuckramError, match="others can enter it"):
        rows(reader)


def test_what_cannot_be_read_is_named(cluster: ThreadedCluster, database: str) -> None:
    execute(cluster, database, "CREATE TABLE n (k INTEGER, t TEXT)", "INSERT INTO n VALUES ('many', x'00')")
    for options, asked, said in (
        ({"dbtable": "n"}, {"k": "bigint"}, "column \"k\" has 'many', which is no bigint"),
        ({"dbtable": "n"}, {"t": "string"}, "column \"t\" has b'.x00', which is no string"),
        ({"dbtable": "n"}, {"z": "string"}, 'column "z": there are only k, t'),
        ({"dbtable": "nothing"}, {"k": "bigint"}, "no such table: nothing"),
        ({"query": "SELECT k, k FROM n"}, {"k": "bigint"}, 'two columns have the name "k"'),
        ({"query": "SELEC"}, {"k": "bigint"}, "SQLite says"),
        ({"dbtable": "n"}, {"k": "timestamp"}, 'column "k" timestamp: SQLite has no such values'),
    ):
        with pytest.raises(InvalidArgument, match=said):
            rows(source(cluster, database, **options).reader(schema(**asked)))
    for options, said in (
        ({}, '"dbtable", the table to read, or "query"'), ({"dbtable": "n", "query": "x"}, '"dbtable"'),
        ({"dbtable": "n", "offset": 1, "timestamp": 1}, "exclude each other"), ({"dbtabel": "n"}, "unknown option"),
        ({"query": "SELECT 1", "numPartitions": 2}, "a query has one partition"),
        ({"changes": "true", "query": "SELECT 1"}, '"query" is for reading rows'),
        ({"dbtable": "n", "startingOffsets": "latest"}, 'set "changes" to true'),
        ({"changes": "true", "startingOffsets": '{"a/b": 1}'}, "names a/b, and default/"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match=said):
            source(cluster, database, **options).reader(schema(k="bigint"))
    with pytest.raises(InvalidArgument, match='"database" is missing'):
        DatabaseDataSource({"metadata": cluster.uri, "dbtable": "n"}).reader(schema(k="bigint"))
    with sync.connect(cluster.uri) as client:
        client.namespace().create(f"{database}-stream")
    with pytest.raises(NotDatabase):
        source(cluster, f"{database}-stream", dbtable="n").schema()
    assert len({option.name for option in DATABASE_OPTIONS}) == len(DATABASE_OPTIONS)


# -- changes ----------------------------------------------------------------------------------------------

CHANGES = schema(op="string", table="string", before="string", after="string", offset="bigint", last="boolean")


def drained(reader: Any, start: dict[str, Any], limit: Any = None) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
    """Run micro-batches until there is nothing new; their rows, and the last offset."""
    batches = []
    while True:
        end = json.loads(json.dumps(reader.latestOffset(start, limit or reader.getDefaultReadLimit())))
        if end == start:
            return batches, end
        batches.append(rows(reader, reader.partitions(start, end)))
        start = end


def test_changes_come_in_whole_transactions_and_once(cluster: ThreadedCluster, database: str) -> None:
    table = "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, photo BLOB)"
    execute(cluster, database, table, "INSERT INTO item VALUES (1, 'bolt', x'00'), (2, 'nut', NULL)", cdc=True)
    options = {"changes": "true", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2}
    reader = source(cluster, database, **options).streamReader(CHANGES)
    batches, end = drained(reader, reader.initialOffset())
    found = [row for batch in batches for row in batch]
    assert [row["op"] for row in found] == ["schema", "insert", "insert"]
    assert json.loads(found[1]["after"]) == {"id": 1, "name": "bolt", "photo": {"base64": "AA=="}}
    assert (found[1]["offset"], found[1]["last"], found[2]["last"]) == (found[2]["offset"], False, True)
    execute(cluster, database, "UPDATE item SET name = 'screw' WHERE id = 1", "DELETE FROM item WHERE id = 2")
    # The same query goes on, another one begins at its checkpoint, and a batch that is repeated has the same rows.
    again = source(cluster, database, changes=True).streamReader(CHANGES)
    for one in (reader, again, reader):
        more, _ = drained(one, end)
        update, delete = (row for batch in more for row in batch)
        assert (update["op"], json.loads(update["before"])["name"], json.loads(update["after"])["name"]) == (
            "update", "bolt", "screw",
        )  # fmt: skip
        assert (delete["op"], json.loads(delete["before"])["id"], delete["after"]) == ("delete", 2, None)
    whole = source(cluster, database, changes=True, dbtable="item").reader(CHANGES)
    assert [row["op"] for row in rows(whole)] == ["insert", "insert", "update", "delete"]
    late = source(cluster, database, changes=True).streamReader(CHANGES)
    assert drained(late, late.initialOffset(), ReadAllAvailable())[0] == []
    assert set(CHANGE_COLUMNS) > set(CHANGES.names)


def test_a_repeated_first_batch_of_changes_begins_where_it_began(
    cluster: ThreadedCluster, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats batch 0 with a start that it asks for anew, which is later once snapshots have freed the log."""
    execute(cluster, database, "CREATE TABLE n (k)", *[f"INSERT INTO n VALUES ({n})" for n in range(3)], cdc=True)
    options = {"changes": "true", "startingOffsets": "earliest"}
    reader = source(cluster, database, **options).streamReader(CHANGES)
    start = reader.initialOffset()
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    whole = rows(reader, reader.partitions(start, end))
    assert len(whole) == 4
    again = source(cluster, database, changes=True).streamReader(CHANGES)  # now `latest`
    assert rows(again, again.partitions(again.initialOffset(), end)) == whole
    stop = end[f"default/{database}"]
    monkeypatch.setattr("buckram.state.db.commits.changes.oldest", lambda head: stop)
    monkeypatch.setattr(db_changes, "_folds", {})

    async def freed(client: Any, ns: Any, name: Any, head: Any, first: int) -> Any:
        fold, state = await change_fold(client, ns, name, head, first)
        fold.applied = stop
        return fold, state

    monkeypatch.setattr("buckram.state.db.commits.changes.change_fold", freed)
    late = source(cluster, database, **options).streamReader(CHANGES)
    begin = late.initialOffset()
    assert begin[f"default/{database}"] == stop
    with pytest.raises(ChangesGone):
        rows(late, late.partitions(begin, end))
    with pytest.raises(ChangesGone):  # a batch that an earlier release planned
        late.partitions(begin, {f"default/{database}": stop - 1, "uid": end["uid"]})


def test_a_checkpoint_that_is_ahead_of_the_log_ends_the_query(cluster: ThreadedCluster, database: str) -> None:
    """The metadata were restored: the log has less than the query has read."""
    execute(cluster, database, "CREATE TABLE n (k)", "INSERT INTO n VALUES (1)", cdc=True)
    limited = source(cluster, database, changes=True, startingOffsets="latest").streamReader(CHANGES)
    start = limited.initialOffset()
    (name,) = (key for key in start if "/" in key)
    ahead = {name: start[name] + 5, **{key: value for key, value in start.items() if key not in (name, "initial")}}
    assert drained(limited, start)[0] == []
    with pytest.raises(RecordsLost, match="the log went back"):
        limited.latestOffset(ahead, ReadAllAvailable())
    with pytest.raises(RecordsLost, match="the log went back"):
        limited.partitions(ahead, start)


def test_a_log_that_has_grown_beyond_the_checkpoint_again_ends_the_query(
    cluster: ThreadedCluster, database: str
) -> None:
    """The metadata were restored: the log has other records than the query has read."""
    execute(cluster, database, "CREATE TABLE n (k)", *[f"INSERT INTO n VALUES ({n})" for n in range(4)], cdc=True)
    limited = source(cluster, database, changes=True, startingOffsets="earliest", maxOffsetsPerTrigger=3).streamReader(
        CHANGES
    )
    start = limited.latestOffset(limited.initialOffset(), limited.getDefaultReadLimit())
    (name,) = (key for key in start if "/" in key)
    restored = {**start, "history": [7, "another"]}
    later = limited.latestOffset(restored, ReadAllAvailable())
    assert (later[name] > start[name], later["history"] == start["history"]) == (True, True), "it has what was read"
    other = {**restored, "times": {name: start["times"][name] - 1}}
    with pytest.raises(RecordsLost, match="has other records below it now"):
        limited.latestOffset(other, ReadAllAvailable())
    for first, last in ((other, later), (start, {**later, "history": [7, "another"], "times": {name: 1}})):
        with pytest.raises(RecordsLost, match="has other records below it now"):
            limited.partitions(first, last)
    older = {name: start[name], "uid": start["uid"]}
    assert limited.latestOffset(older, ReadAllAvailable())[name] == later[name], "of an earlier release"


def test_an_available_now_run_ends_where_it_began(cluster: ThreadedCluster, database: str) -> None:
    execute(cluster, database, "CREATE TABLE n (k)", *[f"INSERT INTO n VALUES ({n})" for n in range(4)], cdc=True)
    reader = source(cluster, database, changes=True, startingOffsets="earliest", maxOffsetsPerTrigger=1).streamReader(
        CHANGES
    )
    reader.prepareForTriggerAvailableNow()
    execute(cluster, database, "INSERT INTO n VALUES (99)")
    batches, _ = drained(reader, reader.initialOffset())
    assert [row["after"] for batch in batches for row in batch if row["op"] == "insert"] == [
        json.dumps({"k": n}) for n in range(4)
    ]
    assert reader.reportLatestOffset()[f"default/{database}"] > 5


def test_changes_that_are_not_kept_are_an_error(cluster: ThreadedCluster, database: str) -> None:
    execute(cluster, database, "CREATE TABLE n (k)")
    for reader in (source(cluster, database, changes=True).reader(CHANGES),):
        with pytest.raises(ChangesNotKept):
            reader.partitions()
    with pytest.raises(ChangesNotKept):
        source(cluster, database, changes=True).streamReader(CHANGES).initialOffset()
    with pytest.raises(InvalidArgument, match='set option "changes" to true'):
        source(cluster, database, dbtable="n").streamReader(CHANGES).initialOffset()


# -- the sink ---------------------------------------------------------------------------------------------

ROW = schema(id="bigint", name="string")


def batch(*found: tuple[int, str | None]) -> pa.RecordBatch:
    ids, names = [one for one, _ in found], [name for _, name in found]
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())})


def commit(
    cluster: ThreadedCluster, database: str, number: int, *parts: Sequence[tuple[int, str | None]], name: str = "q",
    **options: object,
) -> None:  # fmt: skip
    messages, options = [], {"dbtable": "item", "checkpointLocation": f"/{name}", **options}
    for place, part in enumerate(parts):
        with task(place, query=name, number=number):
            writer = source(cluster, database, **options).streamWriter(ROW, False)
            messages.append(pickle.loads(pickle.dumps(writer.write(iter([batch(*part)] if part else [])))))
    source(cluster, database, **options).streamWriter(ROW, False).commit(messages, number)


@pytest.fixture(params=["led", "served"])
def server(request: pytest.FixtureRequest, cluster: ThreadedCluster, database: str) -> Any:
    """Options of a sink that leads the database itself, or writes through a server."""
    execute(cluster, database, "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT CHECK (name <> 'bad'))")
    if request.param == "led":
        yield {}
    else:
        with ServeProcess(cluster.uri, f"default/{database}") as running:
            yield {"server": running.url}


def test_batches_are_written_once(cluster: ThreadedCluster, database: str, server: dict[str, str]) -> None:
    commit(cluster, database, 0, [(1, "a"), (2, None)], [], [(3, "c")], **server)
    commit(cluster, database, 0, [(3, "c")], [(2, None), (1, "a")], **server)
    with pytest.raises(ReplayDiffers, match="published with 3 rows and now has 1"):
        commit(cluster, database, 0, [(4, "other")], **server)
    with pytest.raises(ReplayDiffers, match="not the same ones"):
        commit(cluster, database, 0, [(1, "a"), (2, "b"), (3, "c")], **server)
    commit(cluster, database, 0, [(4, "other")], onReplayDiffers="keep", **server)
    commit(cluster, database, 1, [], **server)
    commit(cluster, database, 2, [(1, "A"), (9, "z")], key="id", **server)
    commit(cluster, database, 2, [(9, "z"), (1, "A")], key="id", **server)
    with pytest.raises(StaleTransaction, match=r"older than batch 2.*Put the newest checkpoint back"):
        commit(cluster, database, 1, [(7, "zombie")], **server)
    # A row that SQLite refuses takes the others and the note with it.
    for bad in ([(5, "e"), (6, "bad")], [(5, "e"), (1, "doubled")]):
        with pytest.raises(SqlError, match=r"(?i)constraint"):
            commit(cluster, database, 3, bad, **server)
    commit(cluster, database, 3, [(5, "e")], **server)
    commit(cluster, database, 0, [(8, "other")], name="q2", **server)
    with pytest.raises(SqlError, match=r"no such column|has no column"):
        commit(cluster, database, 4, [(10, "x")], key="id", dbtable="buckram_spark", **server)
    if server:
        # The server leads; what it has written is read there.
        with pytest.raises(BuckramError, match=r'leads it, .*option "server"'):
            commit(cluster, database, 4, [(10, "x")])
        return
    found = query(cluster, database, "SELECT id, name FROM item ORDER BY id")
    assert [tuple(row) for row in found] == [(1, "A"), (2, None), (3, "c"), (5, "e"), (8, "other"), (9, "z")]
    noted = query(cluster, database, "SELECT application, version, rows FROM buckram_spark ORDER BY application")
    assert [tuple(row) for row in noted] == [("q", 3, 1), ("q2", 0, 1)]


def test_two_drivers_that_both_found_a_step_missing(cluster: ThreadedCluster, database: str) -> None:
    """What one of them found out before its transaction does not count: the records in it decide."""
    execute(cluster, database, "CREATE TABLE item (id INTEGER, name TEXT)")
    given = {"metadata": cluster.uri, "path": database, "dbtable": "item", "txnAppId": "q"}
    settings = DatabaseSinkOptions.parse(given)
    late, twin = (DatabaseStep(settings, StepId("q", 0, "q"), ["id"], [(n,)]) for n in (1, 2))
    assert late.foreseen()
    assert twin.publish()
    assert not late.publish()
    assert not late.foreseen()
    assert [tuple(row) for row in query(cluster, database, "SELECT id FROM item")] == [(2,)]
    assert inserts("item", ["id"], [], []) == []


def test_records_that_count_once_are_forgotten_only_when_they_are_old_for_certain(
    cluster: ThreadedCluster, database: str, server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a record tells what became of a lost reply, also while all clocks are ahead."""
    settings = DatabaseSinkOptions.parse(
        {"metadata": cluster.uri, "path": database, "dbtable": "item", "txnAppId": "q", **server}
    )
    steps = itertools.count()

    def known() -> set[str]:
        """What is on record after one more step of another application."""
        step = DatabaseStep(settings, StepId("other", next(steps)), ["id"], [])
        assert step.publish()
        return {str(row[0]) for row in step._link.batch([("SELECT application FROM buckram_spark", ())])[0]}

    assert DatabaseStep(settings, StepId(f"{ONCE}a", 0), ["id"], []).publish()
    right = time.time_ns
    with monkeypatch.context() as all_clocks:
        all_clocks.setattr(time, "time_ns", lambda: right() + 40 * 86_400 * 10**9)
        assert known() == {f"{ONCE}a", "other"}
    if server:
        return  # The server leads, so the record cannot be made older here.
    ((written,),) = query(cluster, database, "SELECT max(written) FROM buckram_spark")
    assert abs(written / 1e6 - time.time()) < 600, "it is dated by the time that is believed"
    assert known() == {f"{ONCE}a", "other"}
    execute(cluster, database, "UPDATE buckram_spark SET written = written - 7200000000")
    wait_until(lambda: known() == {"other"}, "an old record is not forgotten")


def test_the_sink_knows_queries_and_places_as_that_of_streams_does(cluster: ThreadedCluster, database: str) -> None:
    execute(cluster, database, "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
    with pytest.raises(InvalidArgument, match='neither "checkpointLocation" nor "txnAppId"'):
        source(cluster, database, dbtable="item").streamWriter(ROW, False)
    with pytest.raises(UnknownQuery):
        commit(cluster, database, 3, [(1, "late")])
    commit(cluster, database, 0, [])  # The first batch is recorded, although it is empty.
    commit(cluster, database, 3, [(1, "a")])
    # The checkpoint at this place was deleted: another query begins there.
    with pytest.raises(CheckpointReset, match="the checkpoint was reset"):
        commit(cluster, database, 0, [(2, "b")], name="q2", checkpointLocation="/q")
    commit(cluster, database, 0, [(2, "b")], name="q2", checkpointLocation="/q", onCheckpointReset="newEpoch")
    with pytest.raises(CheckpointReset, match="was replaced by query q2"):
        commit(cluster, database, 4, [(3, "zombie")], onCheckpointReset="newEpoch")
    assert [tuple(row) for row in query(cluster, database, "SELECT id FROM item ORDER BY id")] == [(1,), (2,)]


def test_records_of_an_earlier_release_are_gone_on_with(cluster: ThreadedCluster, database: str) -> None:
    """Its table had no places and no digests, so that only the number of rows can be compared once."""
    execute(
        cluster, database, "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)",
        """CREATE TABLE buckram_spark (
 application TEXT PRIMARY KEY, version INTEGER NOT NULL, query TEXT NOT NULL, rows INTEGER NOT NULL,
 newer INTEGER NOT NULL CHECK (newer))""",
        "INSERT INTO buckram_spark VALUES ('q', 4, 'q', 2, 1)",
    )  # fmt: skip
    commit(cluster, database, 4, [(7, "x"), (8, "y")])
    with pytest.raises(ReplayDiffers, match="with 2 rows and now has 1"):
        commit(cluster, database, 4, [(7, "x")])
    commit(cluster, database, 5, [(1, "a")])
    commit(cluster, database, 5, [(1, "a")])
    with pytest.raises(ReplayDiffers):
        commit(cluster, database, 5, [(1, "b")])
    assert [tuple(row) for row in query(cluster, database, "SELECT * FROM item")] == [(1, "a")]


def test_another_plan_of_a_batch_is_compared(cluster: ThreadedCluster, database: str, tmp_path: Path) -> None:
    execute(cluster, database, "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
    planned_now(tmp_path, 0, ago_s=30)
    commit(cluster, database, 0, [(1, "uuid 1")], checkpointLocation=str(tmp_path))
    commit(cluster, database, 0, [(1, "uuid 2")], checkpointLocation=str(tmp_path))  # The same plan once more.
    planned_now(tmp_path, 0, ago_s=20)
    with pytest.raises(ReplayDiffers):
        commit(cluster, database, 0, [(1, "uuid 2")], checkpointLocation=str(tmp_path))
    assert [tuple(row) for row in query(cluster, database, "SELECT * FROM item")] == [(1, "uuid 1")]


def test_batches_that_may_have_gone_with_a_restore_are_noticed(cluster: ThreadedCluster, database: str) -> None:
    execute(cluster, database, "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
    for number in (0, 1, 3):  # batch 2 had no rows
        commit(cluster, database, number, [(number, "q")], txnAppId="items")
    assert query(cluster, database, "SELECT length(history) FROM buckram_spark")[0][0] == 8
    execute(cluster, database, "UPDATE buckram_spark SET history = 'before'")
    with pytest.raises(BatchesLost, match="batch 6, and the newest of its batches that is known here is 3"):
        commit(cluster, database, 6, [(6, "q")], txnAppId="items")
    commit(cluster, database, 6, [(6, "q")], txnAppId="items", onCheckpointReset="newEpoch")
    commit(cluster, database, 8, [(8, "q")], txnAppId="items")
    assert [row[0] for row in query(cluster, database, "SELECT id FROM item")] == [0, 1, 3, 6, 8]


def test_a_server_says_in_which_history_it_writes_unless_it_is_an_older_one(
    cluster: ThreadedCluster, database: str
) -> None:
    execute(cluster, database, "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
    mark = connection(cluster.uri).client.services.identities.history_mark
    with ServeProcess(cluster.uri, f"default/{database}") as running, without_history(running.url) as older:

        def noted(*also: str) -> Any:
            settings = DatabaseSinkOptions.parse(
                {"metadata": cluster.uri, "path": database, "dbtable": "item", "server": running.url}
            )
            return RemoteServer(settings).batch(
                [*((sql, ()) for sql in also), ("SELECT history FROM buckram_spark", ())]
            )[-1]

        def write(number: int, url: str) -> None:
            commit(cluster, database, number, [(number, "q")], server=url)

        for number in (0, 2):
            write(number, running.url)
        assert (len(mark), noted()) == (8, [[mark]])
        assert noted("UPDATE buckram_spark SET history = 'before'") == [["before"]]
        with pytest.raises(BatchesLost, match="batch 5, and the newest of its batches that is known here is 2"):
            write(5, running.url)
        write(5, older)
        assert noted() == [[""]], "not known, and not compared"
        write(7, running.url)
        assert noted() == [[mark]]


def test_a_reset_checkpoint_is_noticed_by_the_name(cluster: ThreadedCluster, database: str) -> None:
    execute(cluster, database, "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
    for number in range(2):
        commit(cluster, database, number, [(number, "q1")], name="q1", txnAppId="items")
    with pytest.raises(CheckpointReset, match="q1"):
        commit(cluster, database, 0, [(7, "q2")], name="q2", txnAppId="items")
    for _ in range(2):
        commit(cluster, database, 0, [(7, "q2")], name="q2", txnAppId="items", onCheckpointReset="newEpoch")
    assert [tuple(row) for row in query(cluster, database, "SELECT * FROM item")] == [(0, "q1"), (1, "q1"), (7, "q2")]


def test_batch_jobs_and_wrong_options(cluster: ThreadedCluster, database: str) -> None:
    execute(cluster, database, "CREATE TABLE item (id INTEGER, name TEXT)")
    for version in (1, 1, 2):
        job = source(cluster, database, dbtable="item", txnAppId="nightly", txnVersion=version).writer(ROW, False)
        with task():
            job.commit([job.write(iter([batch(*[(n, "x") for n in range(1200)])]))])
    assert query(cluster, database, "SELECT count(*) FROM item")[0][0] == 2400
    for options, said in (
        ({}, '"dbtable" is missing'), ({"dbtable": "item", "txnAppId": "a"}, "both txnAppId and txnVersion"),
        ({"dbtable": "item", "key": "no"}, "names 'no'"), ({"dbtable": "item", "query": "x"}, "for batch reads only"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match=said):
            source(cluster, database, **options).writer(ROW, False)
    with pytest.raises(InvalidArgument, match='column "at" is timestamp'):
        source(cluster, database, dbtable="item").writer(schema(at="timestamp"), False)
    with pytest.raises(InvalidArgument, match=r'mode\("append"\)'):
        source(cluster, database, dbtable="item").writer(ROW, True)
    writer = source(cluster, database, dbtable="item", server="ftp://x").writer(ROW, False)
    with task(), pytest.raises(InvalidArgument, match="http://HOST:PORT"):
        writer.commit([writer.write(iter([batch((1, "a"))]))])
    writer = source(cluster, database, dbtable="item", server="http://127.0.0.1:1").writer(ROW, False)
    with task(), pytest.raises(BuckramError, match="cannot be reached"):
        writer.commit([writer.write(iter([batch((1, "a"))]))])


def test_a_batch_has_a_limit(cluster: ThreadedCluster, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.spark.databases.table_sink.MOST_BYTES", 1000)
    writer = source(cluster, database, dbtable="item").writer(ROW, False)
    with task(), pytest.raises(InvalidArgument, match="the limit is 1000"):
        writer.write(iter([batch(*[(n, "x" * 100) for n in range(20)])]))
    with task(0):
        one = writer.write(iter([batch(*[(n, "x") for n in range(20)])]))
    with task(1):
        two = writer.write(iter([batch(*[(n, "x") for n in range(20)])]))
    with pytest.raises(InvalidArgument, match="the limit is 1000"):
        writer.commit([one, two])
