"""The data source `buckram`: streams and ledgers as DataFrames, batch and streaming, and streams as a sink.

    spark.read.format("buckram").option("metadata", uri).load("shop/orders")
    spark.readStream.format("buckram").option("metadata", uri).option("subscribe", "shop/orders").load()

It only picks the implementation: `spark/source/batch_read.py`, `spark/source/micro_batches.py`,
`spark/source/batch_read.py` and `spark/source/cluster_tables.py` read, `spark/sink/stream_sink.py` writes, `options.py`
has the options and `columns.py` the columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from buckram.errors import BuckramError, InvalidArgument
from buckram.spark.shared.clients import connection, prepare_process, without_traceback
from buckram.spark.shared.columns import HEADERS, LEDGER_COLUMNS, STREAM_COLUMNS, STRUCT, Shape, ddl
from buckram.spark.shared.options import values
from buckram.spark.source.cluster_tables import TABLES, TableReader
from buckram.spark.source.planning import LedgerOptions, StreamOptions, reads_ledgers, streams_of_table, table_asked_for

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class BuckramDataSource(DataSource):
    """The data source. PySpark finds it through the module pyspark_buckram, or buckram.spark.register registers it.

    A query fails with RecordsLost (records were truncated or their stream deleted), NotReadable (bookies are down),
    ReplayDiffers, CheckpointReset, UnknownQuery or BatchesLost; docs/tutorial/spark.md says what to do then.
    """

    @classmethod
    def name(cls) -> str:
        return "buckram"

    def schema(self) -> str:
        prepare_process()
        with without_traceback():
            self._check_no_table()
            # Spark asks for the schema before it says whether this will be a batch or a streaming read.
            found = values(self.options, "read", "stream")
            if (table := table_asked_for(self.options)) is not None:
                return ddl(TABLES[table].columns)
            if reads_ledgers(self.options):
                return ddl(LEDGER_COLUMNS)
            from buckram.spark.shared.typed_values import value_type

            streams = found.get("subscribe") or found.get("streams") or found.get("path") or ()
            kind = value_type(found["metadata"], streams, found["values"])
            columns = {**STREAM_COLUMNS, "value": kind}
            return ddl({**columns, **HEADERS} if found["includeHeaders"] else columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        prepare_process()
        with without_traceback():
            found = values(self.options, "read")
            if (table := table_asked_for(self.options)) is not None:
                return TableReader(found["metadata"], table, streams_of_table(self.options, table), schema)
            if reads_ledgers(self.options):
                from buckram.spark.source.batch_read import LedgerReader

                return LedgerReader(LedgerOptions.parse(self.options), Shape.of(schema, LEDGER_COLUMNS))
            from buckram.spark.source.batch_read import StreamBatchReader

            options = StreamOptions.parse(self.options, "read")
            return StreamBatchReader(options, self._shape(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except BuckramError as error:
            from buckram.spark.source.micro_batches import RefusingReader

            return RefusingReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from buckram.spark.sink.stream_sink import batch_writer

        prepare_process()
        with without_traceback():
            return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from buckram.spark.sink.stream_sink import stream_writer

        prepare_process()
        with without_traceback():
            return stream_writer(self.options, schema, overwrite)

    def _check_no_table(self) -> None:
        """Refuse CREATE TABLE without columns, which asks for the schema with the properties of the table.

        Spark does not pass the table's options when the table is used, so such a table could never be read.
        """
        if any(name.lower() == "provider" for name in self.options):
            raise InvalidArgument(
                "CREATE TABLE ... USING buckram: Spark does not tell a Python data source the options of a table when "
                "it is read or written. Make a view: CREATE TEMPORARY VIEW name USING buckram OPTIONS (metadata "
                "'...', subscribe '...'). A table whose columns are named, CREATE TABLE name (value STRING) USING "
                "buckram, can be made; each use says where it is: INSERT INTO name WITH (metadata = '...', stream = "
                "'...') ..., SELECT * FROM name WITH (metadata = '...', subscribe = '...')"
            )

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        values(self.options, "stream")
        reads_ledgers(self.options)
        options = StreamOptions.parse(self.options, "stream")
        shape = self._shape(schema, options)
        try:
            from buckram.spark.source.micro_batch_limits import LimitedReader
        except ImportError:
            from buckram.spark.source.micro_batches import LiveReader

            if options.max_offsets is not None or options.max_bytes is not None or options.min_offsets:
                raise InvalidArgument(
                    'options "maxOffsetsPerTrigger", "maxBytesPerTrigger" and "minOffsetsPerTrigger" need PySpark 4.2 '
                    "or newer; leave them out, each batch then takes all there is"
                ) from None
            return LiveReader(options, shape)
        return LimitedReader(options, shape)

    def _shape(self, schema: StructType, options: StreamOptions) -> Shape:
        known = {**STREAM_COLUMNS, **HEADERS} if options.headers else STREAM_COLUMNS
        value = schema["value"].dataType.simpleString() if "value" in schema.names else ""
        if not value.startswith(STRUCT):
            return Shape.of(schema, known)
        from buckram.spark.shared.typed_values import arrow_type, schemas_of

        link = connection(options.metadata)
        schemas = link.run(lambda client: schemas_of(client, options.streams))
        shape = Shape.of(schema, known, typed=arrow_type(schema["value"].dataType))
        return replace(shape, uri=options.metadata, schemas={name: one.texts for name, one in schemas.items()})
