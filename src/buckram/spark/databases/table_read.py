"""Batch reads of databases: a table or a query, all partitions at one offset.

    spark.read.format("buckram.db").options(metadata=uri, dbtable="item").load("shop/main")

Not here: the copies that are read (`local_copies.py`), changes of rows (`row_changes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from buckram.errors import InvalidArgument
from buckram.spark.databases.database_options import DatabaseOptions
from buckram.spark.databases.local_copies import described, opened_copy, state_offset
from buckram.spark.shared.clients import connection, prepare_process, without_traceback

if TYPE_CHECKING:
    import apsw
    import pyarrow as pa
    from pyspark.sql.types import StructType

ROWS = 4096
"""Maximum rows of one record batch."""
Convert = Callable[[Any], Any]


@dataclass
class DatabasePartition(InputPartition):
    """The rows of a state with row ids from `first` to stop - 1, or all of them."""

    uid: str
    offset: int
    first: int | None = None
    stop: int | None = None

    def __init__(self, uid: str, offset: int, first: int | None = None, stop: int | None = None) -> None:
        super().__init__(None)
        self.uid, self.offset, self.first, self.stop = uid, offset, first, stop


class DatabaseReader(DataSourceReader):
    """The reader of a query; it is pickled to the executors, so it holds only values."""

    def __init__(self, options: DatabaseOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema
        for field in schema.fields:
            if field.dataType.simpleString() not in _CONVERTERS:
                raise InvalidArgument(
                    f'column "{field.name}" {field.dataType.simpleString()}: SQLite has no such values; ask for '
                    f"{', '.join(_CONVERTERS)}, and cast in Spark"
                )

    def partitions(self) -> Sequence[InputPartition]:
        with without_traceback():
            options = self.options
            uid, offset = connection(options.metadata).run(
                lambda client: state_offset(client, options.database, options.offset, options.time)
            )
            if options.partitions == 1:
                return [DatabasePartition(uid, offset)]
            with opened_copy(options.metadata, options.database, uid, offset) as found:
                return [DatabasePartition(uid, offset, *part) for part in _row_ids(found, options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns that the query asks for."""
        if not isinstance(partition, DatabasePartition):
            return
        prepare_process()
        with without_traceback():
            yield from self._read(partition)

    def _read(self, part: DatabasePartition) -> Iterator[pa.RecordBatch]:
        options = self.options
        with opened_copy(options.metadata, options.database, part.uid, part.offset) as found:
            there = [name for name, _ in columns(found, options)]
            missing = [name for name in self.schema.names if name not in there]
            if missing:
                raise InvalidArgument(f'column "{missing[0]}": there are only {", ".join(there)}')
            chosen = ", ".join(map(quoted, self.schema.names)) or "1"
            sql = f"SELECT {chosen} FROM ({selected(options)})"
            if part.first is not None:
                sql = (
                    f"SELECT {chosen} FROM {quoted(options.table)} WHERE rowid >= {part.first} AND rowid < {part.stop}"
                )
            with sql_errors(options.database):
                cursor = found.execute(sql)
            while True:
                with sql_errors(options.database):
                    rows = list(islice(cursor, ROWS))
                if not rows:
                    return
                yield record_batch(self.schema, rows)


def columns(found: apsw.Connection, options: DatabaseOptions) -> list[tuple[str, str]]:
    """Return the columns of the table or query with their types in Spark. Raises InvalidArgument."""
    with sql_errors(options.database):
        there = described(found, selected(options))
    names = [name for name, _ in there]
    double = [name for name in names if names.count(name) > 1]
    if double:
        raise InvalidArgument(f'two columns have the name "{double[0]}": give one of them another one with AS')
    return [(name, _spark_type(kind)) for name, kind in there]


def selected(options: DatabaseOptions) -> str:
    """Return the statement whose rows are read."""
    return options.query.rstrip().rstrip(";") if options.query else f"SELECT * FROM {quoted(options.table)}"


def quoted(name: str) -> str:
    """Return a name as SQLite takes it."""
    return '"' + name.replace('"', '""') + '"'


class sql_errors:
    """Context manager that turns errors of SQLite into InvalidArgument."""

    def __init__(self, database: str) -> None:
        self._database = database

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        import apsw

        if isinstance(error, apsw.Error):
            raise InvalidArgument(f"database {self._database}: SQLite says: {error}") from None


def _row_ids(found: apsw.Connection, options: DatabaseOptions) -> list[tuple[int, int]]:
    """Cut the row ids of a table into ranges, from the first to the last plus one."""
    with sql_errors(options.database):
        rows: Any = found.execute(f"SELECT min(rowid), max(rowid) FROM {quoted(options.table)}").fetchall()
    first, last = rows[0]
    if first is None:
        return []
    parts = min(options.partitions, last - first + 1)
    edges = [first + (last - first + 1) * n // parts for n in range(parts + 1)]
    return list(pairwise(edges))


def _spark_type(kind: str) -> str:
    """Return the type in Spark for a declared type, by the rules of SQLite's column affinity."""
    if "INT" in kind:
        return "bigint"
    if any(word in kind for word in ("CHAR", "CLOB", "TEXT")):
        return "string"
    if "BLOB" in kind:
        return "binary"
    if any(word in kind for word in ("REAL", "FLOA", "DOUB")):
        return "double"
    return "boolean" if "BOOL" in kind else "string"


# -- values -----------------------------------------------------------------------------------------------


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError
    return float(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        raise ValueError
    return str(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str | bytes):
        raise ValueError
    return value.encode() if isinstance(value, str) else value


def _truth(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError
    return bool(value)


_CONVERTERS: dict[str, Convert] = {
    "bigint": _whole,
    "int": _whole,
    "double": _number,
    "string": _text,
    "binary": _bytes,
    "boolean": _truth,
}


def record_batch(schema: StructType, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as a record batch with the types of the schema. InvalidArgument for a value of another type."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow, arrays = to_arrow_schema(schema, timezone="UTC"), []
    for place, field in enumerate(schema.fields):
        kind = field.dataType.simpleString()
        convert, column = _CONVERTERS[kind], [row[place] for row in rows]
        try:
            values = [None if value is None else convert(value) for value in column]
            arrays.append(pa.array(values, arrow.field(place).type))
        except (ValueError, OverflowError, pa.ArrowInvalid):
            raise InvalidArgument(
                f'column "{field.name}" has {_first_bad(column, convert)!r}, which is no {kind}: SQLite lets every row '
                f"have a value of another type; ask for another one, as in .schema('{field.name} string')"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=arrow) if arrays else pa.RecordBatch.from_pylist([{}] * len(rows))


def _first_bad(column: Sequence[Any], convert: Convert) -> Any:
    for value in column:
        try:
            if value is not None:
                convert(value)
        except ValueError:
            return value
    return max((value for value in column if isinstance(value, int)), key=abs, default=None)
