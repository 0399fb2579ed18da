"""The data source `buckram.db`: tables, queries and changes of replicated databases, and tables as sinks.

    spark.read.format("buckram.db").options(metadata=uri, dbtable="item").load("shop/main")

It only picks the implementation: `table_read.py` and `row_changes.py` read, `table_sink.py` writes,
`database_options.py` has the options. Not here: streams, ledgers and tables of the cluster (`spark/data_source.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from buckram.errors import BuckramError, InvalidArgument
from buckram.spark.databases.database_options import DatabaseOptions
from buckram.spark.shared.clients import connection, prepare_process, without_traceback
from buckram.spark.shared.columns import ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DatabaseDataSource(DataSource):
    """The data source. PySpark finds it through the module pyspark_buckram_db, or buckram.spark.register registers it.

    A query fails with ChangesGone, NoEarlierState or CheckpointReset; docs/tutorial/spark.md says what to do then.
    """

    @classmethod
    def name(cls) -> str:
        return "buckram.db"

    def schema(self) -> str:
        prepare_process()
        with without_traceback():
            from buckram.spark.databases.local_copies import opened_copy, state_offset
            from buckram.spark.databases.row_changes import CHANGE_COLUMNS
            from buckram.spark.databases.table_read import columns, quoted

            options = DatabaseOptions.parse(self.options, "read", "stream")
            if options.changes:
                return ddl(CHANGE_COLUMNS)
            uid, offset = connection(options.metadata).run(
                lambda client: state_offset(client, options.database, options.offset, options.time)
            )
            with opened_copy(options.metadata, options.database, uid, offset) as found:
                there = columns(found, options)
            return ", ".join(f"{quoted(name).replace('`', '``').replace(chr(34), '`')} {kind}" for name, kind in there)

    def reader(self, schema: StructType) -> DataSourceReader:
        prepare_process()
        with without_traceback():
            options = DatabaseOptions.parse(self.options, "read")
            if options.changes:
                from buckram.spark.databases.row_changes import ChangesReader

                return ChangesReader(options, schema)
            from buckram.spark.databases.table_read import DatabaseReader

            return DatabaseReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except BuckramError as error:
            from buckram.spark.source.micro_batches import RefusingReader

            return RefusingReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from buckram.spark.databases.table_sink import batch_writer

        prepare_process()
        with without_traceback():
            return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from buckram.spark.databases.table_sink import stream_writer

        prepare_process()
        with without_traceback():
            return stream_writer(self.options, schema, overwrite)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        options = DatabaseOptions.parse(self.options, "stream")
        if not options.changes:
            raise InvalidArgument('a streaming query reads changes of rows: set option "changes" to true')
        try:
            from buckram.spark.databases.row_changes_limits import LimitedChanges
        except ImportError:
            from buckram.spark.databases.row_changes import ChangesStream

            if options.max_offsets is not None:
                raise InvalidArgument(
                    'option "maxOffsetsPerTrigger" needs PySpark 4.2 or newer; leave it out'
                ) from None
            return ChangesStream(options, schema)
        return LimitedChanges(options, schema)
