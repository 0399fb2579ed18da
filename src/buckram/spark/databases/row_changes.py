"""Changes of rows as a table and as a streaming source: what committed transactions did, in their order.

An offset is `{"shop/main": 120, "uid": "5f..."}`: the next record of the database's log, and the log's uid; and what
tells whether the log went back with its metadata (`spark/shared/rollback_detection.py`). Each record is one
transaction, so a micro-batch has whole transactions. A task folds the log as `state/db/commits/changes.py` does and
keeps the state for the next micro-batch. Not here: what a change is (`core/db/changes.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from buckram.core.db.changes import Change
from buckram.core.streams.names import stream_name
from buckram.core.streams.records.positions import same_history
from buckram.errors import ChangesGone, ChangesNotKept, InvalidArgument, NotReadable, OffsetTruncated, RecordsLost
from buckram.serve.json_views.databases import plain
from buckram.spark.databases.database_options import DatabaseOptions
from buckram.spark.databases.local_copies import check_engine, state_offset
from buckram.spark.shared.clients import connection, prepare_process, without_traceback
from buckram.spark.shared.columns import Shape
from buckram.spark.shared.first_batch import INITIAL, KeptStartReader, Offset, as_initial, with_start
from buckram.spark.shared.rollback_detection import lost, mark_in, noted
from buckram.spark.source.planning import resolve
from buckram.streams.read.locate import known_end, known_reach, went_back
from buckram.streams.read.position_check import history_now, time_before, verdict_on

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram.cluster import Client
    from buckram.core.machine.fold import Fold
    from buckram.state.db.commits.changes import ChangeState

UID = "uid"
ROWS = 2048
"""Maximum rows of one record batch."""
CHANGE_COLUMNS: Mapping[str, str] = {
    "database": "string",
    "table": "string",
    "op": "string",
    "key": "string",
    "before": "string",
    "after": "string",
    "rowid": "bigint",
    "new_rowid": "bigint",
    "sql": "string",
    "offset": "bigint",
    "transaction": "bigint",
    "commit_time": "timestamp",
    "last": "boolean",
}


@dataclass
class ChangesPartition(InputPartition):
    """The changes of the transactions at offsets from `first` to stop - 1."""

    uid: str
    first: int
    stop: int

    def __init__(self, uid: str, first: int, stop: int) -> None:
        super().__init__(None)
        self.uid, self.first, self.stop = uid, first, stop


# -- planning ---------------------------------------------------------------------------------------------


async def bounds(client: Client, options: DatabaseOptions) -> tuple[str, int, int]:
    """Return the uid of the log, the first offset whose changes are kept, and the end.

    Raises ChangesNotKept, NotDatabase, NoSuchStream.
    """
    check_engine()
    from buckram.state.db.commits.changes import oldest
    from buckram.state.db.commits.database_log import check_database, has_changes

    name = stream_name(options.database)
    head = await check_database(client.namespace(name.namespace), name)
    if not has_changes(head):
        raise ChangesNotKept(options.database)
    uid, end = await state_offset(client, options.database, None, None)
    if uid != head.uid:
        raise RecordsLost(options.database, end, None, "the database was deleted and made anew")
    return uid, oldest(head), end


async def first_change(client: Client, options: DatabaseOptions) -> tuple[str, int, int]:
    """Return the uid, and where a query without a checkpoint begins and could end. ChangesGone, InvalidArgument."""
    uid, least, end = await bounds(client, options)
    first = resolve(options.starting, options.database, least, end)
    if first < least:
        raise ChangesGone(options.database, first, least)
    if first > end:
        raise InvalidArgument(
            f"database {options.database}: offset {first} is beyond the end of its log, which is {end}"
        )
    return uid, first, end


def offset_at(options: DatabaseOptions, uid: str, position: int, start: Offset) -> Offset:
    """Return the offset of a position, with what it remembers; `start`: one that may have the same position."""
    known = mark_in(start, options.database) if options.database in start else None
    if known is not None and known.offset == position and known.append_time and start[UID] == uid:
        time = known.append_time
    else:
        time = connection(options.metadata).run(lambda client: _time_before(client, options, position))
    history = history_now(connection(options.metadata).client)
    return {options.database: position, UID: uid, **noted({options.database: time}, history)}


async def _time_before(client: Client, options: DatabaseOptions, position: int) -> int:
    name = stream_name(options.database)
    store = client.namespace(name.namespace).store
    head = (await store.read(name)).head
    reach = await known_reach(client, name, head)
    if reach.end == position and reach.append_time:
        return reach.append_time
    return await time_before(client, store, name, head, position)


def check_same(options: DatabaseOptions, offset: Offset) -> None:
    """RecordsLost if the log has other records below an offset than were read: its metadata were restored."""
    mark, name = mark_in(offset, options.database), stream_name(options.database)

    async def compared(client: Client) -> RecordsLost | None:
        store = client.namespace(name.namespace).store
        if not mark.append_time or same_history(mark.epoch, mark.restore, history_now(client)):
            return None
        head = (await store.read(name)).head
        end = await known_end(client, name, head)
        return lost(str(name), mark, head.earliest, await verdict_on(client, store, name, head, end, mark))

    error = connection(options.metadata).run(compared)
    if error is not None:
        raise error


def check_reaches(options: DatabaseOptions, first: int, end: int) -> None:
    """RecordsLost if a database's log ends below the offset up to which a query has read it, as `end` seems to say."""
    name = stream_name(options.database)

    async def is_shorter(client: Client) -> bool:
        return await went_back(client, client.namespace(name.namespace).store, name, first)

    if connection(options.metadata).run(is_shorter):
        raise RecordsLost(options.database, first, None, f"the log went back, it ends at {end}")


class ChangesReader(DataSourceReader):
    """The reader of a batch query."""

    def __init__(self, options: DatabaseOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema
        Shape.of(schema, CHANGE_COLUMNS)

    def partitions(self) -> Sequence[InputPartition]:
        with without_traceback():
            options = self.options
            uid, first, end = connection(options.metadata).run(lambda client: first_change(client, options))
            return [ChangesPartition(uid, first, end)] if first < end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.options, self.schema, partition)


class ChangesStream(KeptStartReader):
    """The reader of a streaming query on PySpark 4.0 and 4.1, where each batch takes everything that is readable."""

    def __init__(self, options: DatabaseOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema
        self._initial: Offset | None = None
        Shape.of(schema, CHANGE_COLUMNS)

    def first_offset(self) -> Offset:
        options = self.options
        uid, first, _ = connection(options.metadata).run(lambda client: first_change(client, options))
        self._initial = as_initial(offset_at(options, uid, first, {}))
        return self._initial

    def latestOffset(self) -> Offset:  # type: ignore[override]  # the signature of 4.0 and 4.1
        with without_traceback():
            uid, _, end = connection(self.options.metadata).run(lambda client: bounds(client, self.options))
            start, self._initial = self._initial or {}, None
            return with_start(start, offset_at(self.options, uid, end, start))

    def between(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        name = self.options.database
        if start[UID] != end[UID]:
            raise RecordsLost(name, start[name], None, "the database was deleted and made anew")
        first, stop = start[name], end[name]
        if first > stop:
            check_reaches(self.options, first, stop)
        if first > stop and start.get(INITIAL):
            # The first batch was planned by an earlier release, and its end does not say where it began.
            raise ChangesGone(name, stop, first)
        for offset in (start, end):  # The batch may have been planned before a restore.
            check_same(self.options, offset)
        return [ChangesPartition(end[UID], first, stop)] if first < stop else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self.options, self.schema, partition)

    def commit(self, end: Offset) -> None:
        """Do nothing: snapshots free the log, whatever a query has read."""

    def stop(self) -> None:
        """Do nothing: Spark ends the process without calling this."""


# -- reading ----------------------------------------------------------------------------------------------


def read_partition(options: DatabaseOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a partition. Raises ChangesGone if snapshots have freed their part of the log."""
    if not isinstance(partition, ChangesPartition):
        return
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    prepare_process()
    arrow = to_arrow_schema(schema, timezone="UTC")
    link = connection(options.metadata)
    with without_traceback():
        found = _changes(link.client, options, partition)
        more = True
        while more:
            rows: list[dict[str, Any]] = []
            while more and len(rows) < ROWS:
                change = link.run(lambda _: anext(found, None))
                more = change is not None
                if change is not None and options.table in ("", change.table):
                    rows.append(row_of(options.database, change))
            if rows:
                yield pa.RecordBatch.from_pylist([{k: row[k] for k in schema.names} for row in rows], schema=arrow)


def row_of(database: str, change: Change) -> dict[str, Any]:
    """Return a change as a row of CHANGE_COLUMNS; images of rows are JSON, in which blobs are {"base64": TEXT}."""
    return {
        "database": database,
        "table": change.table or None,
        "op": change.operation,
        "key": _json(change.key),
        "before": _json(change.old),
        "after": _json(change.new),
        "rowid": change.rowid,
        "new_rowid": change.new_rowid,
        "sql": change.sql,
        "offset": change.offset,
        "transaction": change.transaction,
        "commit_time": round(change.time * 1e6),
        "last": change.last,
    }


def _json(row: Mapping[str, Any] | None) -> str | None:
    return None if row is None else json.dumps(plain(dict(row)), ensure_ascii=False)


_folds: dict[tuple[int, str, str], tuple[Fold, ChangeState]] = {}
"""Fold of the log and its state after the last micro-batch, by process, cluster and log."""


async def _changes(client: Client, options: DatabaseOptions, part: ChangesPartition) -> AsyncIterator[Change]:
    from buckram.state.db.commits.changes import change_fold, folded
    from buckram.state.db.commits.database_log import check_database

    name = stream_name(options.database)
    ns = client.namespace(name.namespace)
    head = await check_database(ns, name)
    if head.uid != part.uid:
        raise RecordsLost(options.database, part.first, None, "the database was deleted and made anew")
    key = (os.getpid(), str(options.metadata), part.uid)
    fold, state = _folds.pop(key, (None, None))
    if fold is None or state is None or fold.applied > part.first:
        fold, state = await change_fold(client, ns, name, head, part.first)
    if fold.applied > part.first:
        raise ChangesGone(options.database, part.first, fold.applied)
    try:
        async for offset in folded(ns, name, fold, 0, part.stop):
            found, state.found = state.found, []
            for change in found if offset >= part.first else ():
                yield change
    except OffsetTruncated as error:
        raise ChangesGone(options.database, part.first, error.earliest) from None
    if fold.applied < part.stop:
        raise NotReadable(options.database, part.stop, fold.applied)
    _folds[key] = fold, state
