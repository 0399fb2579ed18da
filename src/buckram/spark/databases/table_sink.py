"""A table of a database as a sink of Spark: rows, and which batch they are, in one transaction.

Tasks send their rows to the driver in their messages. It writes them in one transaction of the database, which also
notes the batch in the table `buckram_spark`, as `exactly_once.py` decides. Not here: records and how the transaction
reaches the process that leads (`sink_transactions.py`), options (`database_options.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

from buckram.core.streams.metadata.transactions import StepId
from buckram.errors import InvalidArgument
from buckram.spark.databases.database_options import DatabaseSinkOptions
from buckram.spark.databases.sink_transactions import MOST_BYTES, DatabaseStep, row_tally
from buckram.spark.sink import exactly_once
from buckram.spark.sink.exactly_once import Once
from buckram.spark.sink.replay_check import Tally
from buckram.spark.sink.transactions import Attempt, Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_KINDS = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary")


class DatabaseSink:
    """`Sink` of `exactly_once.py` for a table."""

    def __init__(self, settings: DatabaseSinkOptions, schema: StructType) -> None:
        self.settings, self._schema = settings, schema

    @property
    def name(self) -> str:
        return self.settings.database

    @property
    def once(self) -> Once:
        return self.settings.once

    @property
    def schema(self) -> StructType:
        return self._schema

    def planned(self, step: StepId | None) -> bool:
        return True  # Nothing is asked before the commit, which alone leads the database.

    def write(self, step: StepId, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Part:
        import pyarrow as pa

        kept, size, seen = list[Any](), 0, Tally()
        for batch in batches:
            size += batch.nbytes
            if size > MOST_BYTES:
                raise _too_large(self.settings, size)
            if batch.num_rows:
                kept.append(batch)
                seen = seen.plus(row_tally(batch.schema.names, rows_of(batch)) if attempt.query else Tally())
        if not kept:
            return Part(attempt, seen=seen)
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, kept[0].schema) as writer:
            for batch in kept:
                writer.write_batch(batch)
        small = bytes(out.getvalue())
        rows = sum(batch.num_rows for batch in kept)
        return Part(attempt, small=small, rows=rows, seen=seen if attempt.query else None)

    def kept(self, step: StepId, parts: Sequence[Part]) -> DatabaseStep:
        import pyarrow as pa

        texts = [one.small for one in parts if one.small]
        size = sum(map(len, texts))
        if size > MOST_BYTES:
            raise _too_large(self.settings, size)
        rows: list[tuple[Any, ...]] = []
        for text in texts:
            rows += rows_of(pa.ipc.open_stream(text).read_all())
        return DatabaseStep(self.settings, step, self.schema.names, rows)


def rows_of(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the rows of a table as values of Python."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of one batch job. Raises InvalidArgument for wrong options and columns."""
    return exactly_once.batch_writer(lambda: _sink(options, schema, overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of one micro-batch, after the checks of `batch_writer`."""
    return exactly_once.stream_writer(lambda: _sink(options, schema, overwrite))


def _sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DatabaseSink:
    if overwrite:
        raise InvalidArgument('rows are only added to a table, or replaced by "key"; use mode("append")')
    settings = DatabaseSinkOptions.parse(options)
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if kind.partition(" ")[0] not in _KINDS:
            raise InvalidArgument(f'column "{field.name}" is {kind}: SQLite has no such values; cast it, to string say')
    missing = [name for name in settings.key if name not in schema.names]
    if missing:
        raise InvalidArgument(
            f'option "key" names {missing[0]!r}, which is none of the columns {", ".join(schema.names)}'
        )
    return DatabaseSink(settings, schema)


def _too_large(settings: DatabaseSinkOptions, size: int) -> InvalidArgument:
    return InvalidArgument(
        f"database {settings.database}: one batch has {size} bytes or more, the limit is {MOST_BYTES}, because it is "
        "one transaction; make batches smaller, by maxOffsetsPerTrigger of the source, say, or write jobs in parts"
    )
