"""Writing a table of a database with Spark exactly once: rows, and which batch they are, in one transaction.

Tasks send their rows to the driver in their messages. It writes them in one transaction of the database, which also
notes the batch in the table `buckram_spark`; a batch that is noted there is not written again. Not here: how the
transaction reaches the process that leads (`db_writing.py`), options (`db_options.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from buckram.core.streams.transactions import ONCE, StepId
from buckram.errors import BuckramError, InvalidArgument
from buckram.spark.db_options import DatabaseSinkOptions
from buckram.spark.db_writing import MOST_BYTES, write_once
from buckram.spark.sink_rows import record_batches
from buckram.spark.transactions import Attempt, Part, batch_of, in_order

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamBase
    from pyspark.sql.types import StructType
else:
    _StreamBase = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)

_ARROW = hasattr(datasource, "DataSourceStreamArrowWriter")
_KINDS = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary")


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of one batch job. Raises InvalidArgument for wrong options and columns."""
    settings = _settings(options, schema, overwrite)
    if bool(settings.application) is (settings.version is None):
        raise InvalidArgument("a batch job that is written once needs both txnAppId and txnVersion")
    application = settings.application or ONCE + uuid.uuid4().hex
    return BatchWriter(settings, StepId(application, settings.version or 0), schema)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of one micro-batch, after the checks of `batch_writer`."""
    settings = _settings(options, schema, overwrite)
    if settings.version is not None:
        raise InvalidArgument('option "txnVersion" is for batch jobs: a streaming query counts its batches itself')
    return StreamWriter(settings, schema)


def _settings(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DatabaseSinkOptions:
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
    return settings


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch job, pickled to the tasks."""

    def __init__(self, settings: DatabaseSinkOptions, step: StepId, schema: StructType) -> None:
        self.settings, self.step, self.schema = settings, step, schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _message(self.settings, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self.settings, self.step, messages, self.schema)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: nothing is written before the commit."""


class StreamWriter(_StreamBase):
    """The writer of a micro-batch. Spark makes one for the tasks and another for the commit; they share no state."""

    def __init__(self, settings: DatabaseSinkOptions, schema: StructType) -> None:
        self.settings, self.schema = settings, schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _message(self.settings, iterator if _ARROW else record_batches(iterator, self.schema))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if not messages:
            return
        try:
            query = batch_of(self.settings.database, in_order(self.settings.database, messages), batchId)
        except BuckramError as error:
            raise error.with_traceback(None) from None
        settings = self.settings
        step = StepId(settings.application or query, batchId, query, new_epoch=settings.new_epoch)
        _commit(settings, step, messages, self.schema)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: nothing is written before the commit."""


def _message(settings: DatabaseSinkOptions, batches: Iterator[pa.RecordBatch]) -> Part:
    import pyarrow as pa

    kept, size = list[Any](), 0
    for batch in batches:
        size += batch.nbytes
        if size > MOST_BYTES:
            raise _too_large(settings, size)
        if batch.num_rows:
            kept.append(batch)
    if not kept:
        return Part(Attempt.here())
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, kept[0].schema) as writer:
        for batch in kept:
            writer.write_batch(batch)
    return Part(Attempt.here(), small=bytes(out.getvalue()), rows=sum(batch.num_rows for batch in kept))


def _commit(
    settings: DatabaseSinkOptions, step: StepId, messages: Sequence[WriterCommitMessage | None], schema: StructType
) -> None:
    import pyarrow as pa

    try:
        found = in_order(settings.database, messages)
        texts = [one.small for one in found if one.small]
        size = sum(map(len, texts))
        if size > MOST_BYTES:
            raise _too_large(settings, size)
        rows: list[tuple[Any, ...]] = []
        for text in texts:
            table = pa.ipc.open_stream(text).read_all()
            rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
        write_once(settings, step, schema.names, rows)
    except BuckramError as error:
        raise error.with_traceback(None) from None


def _too_large(settings: DatabaseSinkOptions, size: int) -> InvalidArgument:
    return InvalidArgument(
        f"database {settings.database}: one batch has {size} bytes or more, the limit is {MOST_BYTES}, because it is "
        "one transaction; make batches smaller, by maxOffsetsPerTrigger of the source, say, or write jobs in parts"
    )


__all__ = ["batch_writer", "stream_writer"]
