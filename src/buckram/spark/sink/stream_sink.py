"""Streams as a sink of Spark: the checks while Spark plans, and what its tasks and the driver do.

    df.write.format("buckram").mode("append").option("metadata", uri).save("shop/orders")
    df.writeStream.format("buckram").option("metadata", uri).option("checkpointLocation", path).start("shop/orders")

Tasks write and close ledgers (`write_task.py`), and the driver publishes them with a recorded transaction in one step
(`transactions.py`), as `exactly_once.py` decides. Rows keep their order within a task; tasks follow one another in the
order of their partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

from buckram.core.streams.metadata.transactions import StepId
from buckram.errors import InvalidArgument
from buckram.spark.shared import options as known
from buckram.spark.shared.clients import connection
from buckram.spark.shared.columns import STRUCT
from buckram.spark.shared.typed_values import check_columns
from buckram.spark.sink import exactly_once
from buckram.spark.sink.exactly_once import Once
from buckram.spark.sink.transactions import Attempt, Part, StreamStep, foreseen_step
from buckram.spark.sink.write_task import write_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from buckram.cluster import Client

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
    once: Once
    create: bool
    seal_live: bool
    beside_writer: bool
    segment_bytes: int | None
    small_bytes: int
    by_stream: bool
    """True if rows go to the streams that their column `stream` names."""
    schema: StructType


class StreamSink:
    """`Sink` of `exactly_once.py` for a stream, or for many (`byStream`)."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def name(self) -> str:
        return self.once.identity.stream

    @property
    def once(self) -> Once:
        return self.settings.once

    @property
    def schema(self) -> StructType:
        return self.settings.schema

    def planned(self, step: StepId | None) -> bool:
        # Only tasks know query and batch of a streaming query. A step that is never written finds out what is wrong.
        wanted = step or StepId("planning", 0)
        return connection(self.settings.metadata).run(lambda client: _planned(client, self.settings, wanted))

    def write(self, step: StepId, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Part:
        settings = self.settings
        return write_task(
            settings.metadata,
            self.name,
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

    def kept(self, step: StepId, parts: Sequence[Part]) -> StreamStep:
        settings = self.settings
        return StreamStep(
            connection(settings.metadata),
            self.name,
            step,
            parts,
            seal_live=settings.seal_live,
            beside_writer=settings.beside_writer,
        )


# -- planning ---------------------------------------------------------------------------------------------


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of one batch job. Raises whatever is wrong with options, columns and stream."""
    return exactly_once.batch_writer(
        lambda: _sink(options, schema, 'mode("overwrite"): a stream is only appended to; use mode("append")', overwrite)
    )


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of one micro-batch, after the checks of `batch_writer`."""
    return exactly_once.stream_writer(
        lambda: _sink(options, schema, 'outputMode("complete"): a stream is only appended to; use append', overwrite)
    )


def _sink(options: Mapping[str, str], schema: StructType, no_overwriting: str, overwrite: bool) -> StreamSink:
    if overwrite:
        raise InvalidArgument(no_overwriting)
    return StreamSink(_settings(options, schema))


def _settings(options: Mapping[str, str], schema: StructType) -> Settings:
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
    return Settings(
        given["metadata"],
        Once.of(stream, lower, given),
        given["createStream"],
        given["sealLive"],
        given["besideWriter"],
        given.get("segmentBytes"),
        given["smallPartBytes"],
        given["byStream"],
        schema,
    )


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
    """Create the stream if that is wanted; returns whether the step has to be written. Raises as Bulk.foreseen."""
    bulk, needed = await foreseen_step(
        client,
        settings.once.identity.stream,
        step,
        seal_live=settings.seal_live,
        beside_writer=settings.beside_writer,
        create=settings.create,
    )
    if not settings.by_stream:
        check_columns(bulk.stream, bulk.schemas, settings.schema["value"].dataType)
    return needed
