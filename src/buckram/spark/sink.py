"""Writing a stream with Spark exactly once: the checks while Spark plans, and the writers that it sends to tasks.

    df.write.format("buckram").mode("append").option("metadata", uri).save("shop/orders")
    df.writeStream.format("buckram").option("metadata", uri).option("checkpointLocation", path).start("shop/orders")

Tasks write and close ledgers (`sink_task.py`), and the driver publishes them with a recorded transaction in one step
(`transactions.py`). Rows keep their order within a task; tasks follow one another in the order of their partitions.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from buckram.core.streams.names import check_name
from buckram.core.streams.transactions import ONCE, StepId
from buckram.errors import BuckramError, InvalidArgument
from buckram.spark import options as known
from buckram.spark.clients import connection
from buckram.spark.columns import STRUCT
from buckram.spark.replay import local_path
from buckram.spark.sink_rows import record_batches
from buckram.spark.sink_task import write_task
from buckram.spark.tracing import publishing, writing
from buckram.spark.transactions import Attempt, Identity, Part, batch_of, checkpoint_place, in_order, open_step, publish
from buckram.spark.typed_values import check_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamBase
    from pyspark.sql.types import StructType

    from buckram.client.client import Client
else:
    _StreamBase = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)

ARROW_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")
"""Whether streaming writers get Arrow record batches. PySpark 4.0 passes rows, which is several times slower."""
HEADERS = "array<struct<key:string,value:binary>>"
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "timestamp": ("timestamp",),
    "headers": (HEADERS,),
}
STREAM_COLUMN: Mapping[str, tuple[str, ...]] = {"stream": ("string",)}
"""The further column of a sink with the option byStream."""
_GIVEN_BY_THE_STREAM = ("offset", "append_time")


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked options of a write, as values that can be pickled."""

    metadata: str
    identity: Identity
    create: bool
    seal_live: bool
    beside_writer: bool
    segment_bytes: int | None
    small_bytes: int
    checkpoint: str
    """The path of the query's checkpoint if it is in the driver's file system, else empty."""
    keep_published: bool
    by_stream: bool
    """Whether rows go to the streams that their column `stream` names."""
    schema: StructType


# -- planning ---------------------------------------------------------------------------------------------


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of one batch job. Raises whatever is wrong with options, columns and stream."""
    try:
        return _batch_writer(options, schema, overwrite)
    except BuckramError as error:
        # Here and below errors leave without their traceback, because Spark would print every frame.
        raise error.with_traceback(None) from None


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of one micro-batch, after the checks of `batch_writer`. Spark asks for two in each batch."""
    try:
        return _stream_writer(options, schema, overwrite)
    except BuckramError as error:
        raise error.with_traceback(None) from None


def _batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise InvalidArgument('mode("overwrite"): a stream is only appended to; use mode("append")')
    settings, given = _settings(options, schema)
    version = given.get("txnVersion")
    if (settings.identity.application == "") is not (version is None):
        raise InvalidArgument("a batch job that is written once needs both txnAppId and txnVersion")
    # A job without a name gets a new application name, by which its publishing can be looked up after a lost reply.
    application = settings.identity.application or ONCE + uuid.uuid4().hex
    step = StepId(application, version or 0)
    done = connection(settings.metadata).run(lambda client: _planned(client, settings, step))
    return BatchWriter(settings, step, done)


def _stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    if overwrite:
        raise InvalidArgument('outputMode("complete"): a stream is only appended to; use append')
    settings, given = _settings(options, schema)
    if "txnVersion" in given:
        raise InvalidArgument('option "txnVersion" is for batch jobs: a streaming query counts its batches itself')
    if not settings.identity.application and not settings.identity.place:
        raise InvalidArgument(
            'neither "checkpointLocation" nor "txnAppId" is among the options of this sink, so that a checkpoint which '
            "was deleted or replaced could not be noticed and its rows were written twice: set one of them (Spark does "
            "not tell a sink what spark.sql.streaming.checkpointLocation says)"
        )
    # Only tasks know the query and batch. This step is never written; it finds out what is wrong with the stream.
    connection(settings.metadata).run(lambda client: _planned(client, settings, StepId("planning", 0)))
    return StreamWriter(settings)


def _settings(options: Mapping[str, str], schema: StructType) -> tuple[Settings, dict[str, Any]]:
    lower = {name.lower(): text for name, text in options.items()}
    if "stream" in lower:
        lower.pop("path", None)  # Spark adds the path where a table of the catalog would have its files.
    given = known.values(lower, "write")
    stream = given.get("stream")
    if stream is None:
        paths = given.get("path", ())
        if len(paths) != 1:
            raise InvalidArgument(
                'option "stream" is missing: the stream to write, NAMESPACE/STREAM, or .save("NAMESPACE/STREAM"); with '
                'option "byStream" that of rows whose column "stream" is null, which also records every batch'
                if not paths
                else f"{len(paths)} streams to write, {', '.join(paths)}: one sink writes one stream"
            )
        stream = paths[0]
    if given["sealLive"] and given["besideWriter"]:
        raise InvalidArgument('options "sealLive" and "besideWriter": one ends a live writer, the other lets it go on')
    _check_columns(schema, by_stream=given["byStream"])
    application = given.get("txnAppId", "")
    if application:
        check_name("application", application)
        if application.startswith(ONCE):
            raise InvalidArgument(f'option "txnAppId" = {application!r}: names that begin with {ONCE!r} are taken')
    identity = Identity(
        stream,
        application,
        checkpoint_place(lower.get("checkpointlocation", "")),
        given["onCheckpointReset"] == "newEpoch",
    )
    return Settings(
        given["metadata"],
        identity,
        given["createStream"],
        given["sealLive"],
        given["besideWriter"],
        given.get("segmentBytes"),
        given["smallPartBytes"],
        local_path(lower.get("checkpointlocation", "")),
        given["onReplayDiffers"] == "keep",
        given["byStream"],
        schema,
    ), given


def _check_columns(schema: StructType, *, by_stream: bool) -> None:
    columns = {**COLUMNS, **STREAM_COLUMN} if by_stream else COLUMNS
    there = {field.name: field.dataType.simpleString() for field in schema.fields}
    if len(there) < len(schema.fields):
        raise InvalidArgument(f"two columns have one name: {', '.join(schema.names)}; leave one of them out")
    for name, kind in there.items():
        if name not in columns and name.lower() in columns:
            raise InvalidArgument(f'column "{name}": the name is "{name.lower()}", in small letters; rename it')
        if name == "stream" and not by_stream:
            raise InvalidArgument(
                'column "stream": drop it; or set option "byStream" to true, and each row is written to the stream '
                "that it names"
            )
        if name in _GIVEN_BY_THE_STREAM:
            raise InvalidArgument(f'column "{name}": the stream gives it; drop the column')
        if name not in columns:
            raise InvalidArgument(f'column "{name}": a record has only {", ".join(columns)}; put the rest into value')
        if name == "value" and kind.startswith(STRUCT):
            continue  # It is checked against the stream's schema.
        if kind not in columns[name] and not (kind.startswith("string ") and "string" in columns[name]):
            raise InvalidArgument(f'column "{name}" is {kind}: needs {" or ".join(columns[name])}; cast it')
    if by_stream and "stream" not in there:
        raise InvalidArgument('option "byStream" needs a column "stream" of strings, NAMESPACE/STREAM')
    if "value" not in there:
        raise InvalidArgument(f'column "value" is missing: there are {", ".join(there) or "none"}')


async def _planned(client: Client, settings: Settings, step: StepId) -> bool:
    """Create the stream if that is wanted; returns whether the step is published already. Raises as Bulk.foreseen."""
    bulk = await open_step(client, settings.identity.stream, step, create=settings.create)
    if not settings.by_stream:
        check_columns(bulk.stream, bulk.schemas, settings.schema["value"].dataType)
    return not bulk.foreseen(seal_live=settings.seal_live, beside_writer=settings.beside_writer)


# -- batch ------------------------------------------------------------------------------------------------


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch job, pickled to the tasks. `done`: its version was published before; it writes nothing."""

    def __init__(self, settings: Settings, step: StepId, done: bool) -> None:
        self.settings, self.step, self.done = settings, step, done

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        attempt = Attempt.here()
        if self.done:
            return Part(attempt, skipped=True)
        try:
            return _write(self.settings, self.step, attempt, iterator)
        except BuckramError as error:
            raise error.with_traceback(None) from None

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        try:
            _commit(self.settings, self.step, in_order(self.settings.identity.stream, messages))
        except BuckramError as error:
            raise error.with_traceback(None) from None

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing, since Spark also calls this after a commit whose reply was lost. The janitor cleans up."""


# -- streaming --------------------------------------------------------------------------------------------


class StreamWriter(_StreamBase):
    """The writer of a micro-batch. Spark makes one for the tasks and another for the commit; they share no state."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.began_ns = settings, time.time_ns()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        attempt, identity = Attempt.here(), self.settings.identity
        batches = iterator if ARROW_STREAMS else record_batches(iterator, self.settings.schema)
        if not attempt.query or attempt.batch < 0:
            raise InvalidArgument(f"stream {identity.stream}: Spark did not tell this task its query and batch")
        try:
            with writing(attempt, identity.stream):
                part = _write(self.settings, identity.of_batch(attempt.query, attempt.batch), attempt, batches)
            return replace(part, began_ns=self.began_ns)
        except BuckramError as error:
            raise error.with_traceback(None) from None

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        identity = self.settings.identity
        try:
            parts = in_order(identity.stream, messages)
            if parts:
                query = batch_of(identity.stream, parts, batchId)
                with publishing(identity.stream, query, batchId, parts):
                    _commit(self.settings, identity.of_batch(query, batchId), parts)
        except BuckramError as error:
            raise error.with_traceback(None) from None

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing; see BatchWriter.abort."""


def _write(settings: Settings, step: StepId, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Part:
    return write_task(
        settings.metadata,
        settings.identity.stream,
        step,
        attempt,
        batches,
        segment_bytes=settings.segment_bytes,
        small_bytes=settings.small_bytes,
        seal_live=settings.seal_live,
        beside_writer=settings.beside_writer,
        by_stream=settings.by_stream,
        create=settings.create,
    )


def _commit(settings: Settings, step: StepId, parts: Sequence[Part]) -> None:
    connection(settings.metadata).run(
        lambda client: publish(
            client,
            settings.identity.stream,
            step,
            parts,
            seal_live=settings.seal_live,
            beside_writer=settings.beside_writer,
            checkpoint=settings.checkpoint,
            compared=not settings.keep_published,
        )
    )
