"""The options of the format `buckram.db`: one database of a cluster as tables, as changes of rows, and as a sink.

Not here: the options of streams (`options.py`), which also has how a text becomes a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from buckram.errors import InvalidArgument
from buckram.spark.shared.options import (
    ACCESS,
    ALL,
    EXACTLY_ONCE,
    READ,
    READS,
    STREAM,
    WRITE,
    Option,
    Position,
    Role,
    a_flag,
    a_number,
    a_position,
    a_stream,
    a_text,
    values,
)

if TYPE_CHECKING:
    from buckram.spark.sink.exactly_once import Once

DATABASE_OPTIONS: tuple[Option, ...] = (
    *ACCESS,
    Option(
        "database", ALL, None, 'The database, NAMESPACE/DATABASE; `.load("shop/main")` is the same for short', a_stream
    ),
    Option("path", ALL, None, "What `.load(...)`, `.save(...)` and `.start(...)` give: the database", a_stream),
    Option("dbtable", ALL, None, "The table to read or to write, or of which to read the changes", a_text),
    # tables and queries
    Option("query", READ, None, "A SELECT in SQLite's SQL, in place of `dbtable`; it is one partition", a_text),
    Option("offset", READ, None, "The state below this offset of the database's log", a_number(0), "the newest"),
    Option(
        "timestamp",
        READ,
        None,
        "The state of what was committed before this time (milliseconds since 1970)",
        a_number(0),
    ),
    Option("numPartitions", READ, "1", "Partitions of a table, by its row ids", a_number(1)),
    # changes
    Option(
        "changes",
        READS,
        "false",
        "Changes of rows instead of rows, of a database that was made with `--cdc`; a streaming query always needs it",
        a_flag,
    ),
    Option(
        "startingOffsets",
        READS,
        None,
        'The first change: `earliest`, `latest`, or an offset of the log as JSON: `{"shop/main": 120}`',
        a_position("earliest"),
        "earliest; streaming: latest",
    ),
    Option("maxOffsetsPerTrigger", STREAM, None, "Maximum number of records of the log in a micro-batch", a_number(1)),
    # writing
    Option("key", WRITE, None, "Columns, separated by commas, by which a row replaces the one that is there", a_text),
    Option(
        "server",
        WRITE,
        None,
        "The address of `buckram db serve`; without it the driver leads the database while it writes",
        a_text,
    ),
    *EXACTLY_ONCE,
)

EARLIEST = Position("earliest")


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Options of a read of a database; `time` is in microseconds UTC."""

    metadata: str
    database: str
    table: str = ""
    query: str = ""
    offset: int | None = None
    time: int | None = None
    partitions: int = 1
    changes: bool = False
    starting: Position = EARLIEST
    max_offsets: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str], *roles: Role) -> DatabaseOptions:
        """Parse the options. InvalidArgument for an unknown option, a bad value, or two that exclude each other."""
        found = values(given, *roles, known=DATABASE_OPTIONS)
        table, query, changes = found.get("dbtable", ""), found.get("query", ""), found["changes"]
        offset, time, partitions = found.get("offset"), found.get("timestamp"), found.get("numPartitions", 1)
        if changes:
            foreign = [name for name, value in (("query", query), ("offset", offset), ("timestamp", time)) if value]
            if foreign or partitions > 1:
                name = foreign[0] if foreign else "numPartitions"
                raise InvalidArgument(f'option "{name}" is for reading rows; leave it out with "changes"')
        elif "startingOffsets" in found:
            raise InvalidArgument('option "startingOffsets" is for reading changes: set "changes" to true, or "offset"')
        elif bool(table) == bool(query):
            raise InvalidArgument(
                'give "dbtable", the table to read, or "query", a SELECT; "changes" is for their changes'
            )
        if offset is not None and time is not None:
            raise InvalidArgument('options "offset" and "timestamp" exclude each other: give one of them')
        if query and partitions > 1:
            raise InvalidArgument('option "numPartitions" is for "dbtable": a query has one partition')
        starting = found.get("startingOffsets", Position("earliest" if "read" in roles else "latest"))
        name = database_of(found)
        other = [database for database in starting.offsets if database != name]
        if other:
            raise InvalidArgument(f'option "startingOffsets" names {other[0]}, and {name} is read')
        micros = None if time is None else time * 1000
        most = found.get("maxOffsetsPerTrigger")
        return cls(found["metadata"], name, table, query, offset, micros, partitions, changes, starting, most)


def database_of(found: Mapping[str, object]) -> str:
    """Return the database that the options name. InvalidArgument if they name none."""
    name = found.get("database") or found.get("path")
    if not isinstance(name, str):
        raise InvalidArgument('option "database" is missing: NAMESPACE/DATABASE, or .load("NAMESPACE/DATABASE")')
    return name


@dataclass(frozen=True, slots=True)
class DatabaseSinkOptions:
    """Options of a write: the database and table, and the identity of the writer."""

    metadata: str
    database: str
    table: str
    key: tuple[str, ...]
    server: str
    once: Once

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> DatabaseSinkOptions:
        """Parse the options. InvalidArgument for an unknown option, a bad value, or one that is missing."""
        from buckram.spark.sink.exactly_once import Once

        found = values(given, "write", known=DATABASE_OPTIONS)
        if "dbtable" not in found:
            raise InvalidArgument('option "dbtable" is missing: the table to write')
        key = tuple(part.strip() for part in found.get("key", "").split(",") if part.strip())
        name, server = database_of(found), found.get("server", "").rstrip("/")
        return cls(found["metadata"], name, found["dbtable"], key, server, Once.of(name, given, found))
