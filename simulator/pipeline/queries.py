"""What a user of Spark has written: a query's source, its rows, its sink, and the options, which change between runs.

A row of an input has a value of its own in the whole life; the query writes it with its label in front. A label stands
for one query as a user sees it: who begins one anew on purpose, to write rows in addition, takes another label.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from buckram.spark.data_source import BuckramDataSource
from buckram.spark.databases.data_source import DatabaseDataSource

URI = "sim:cluster"
NAMESPACE = "default"
DATABASE, TABLE = f"{NAMESPACE}/base", "found"
READ = StructType([
    StructField("value", BinaryType()), StructField("stream", StringType()), StructField("offset", LongType()),
])  # fmt: skip
WRITE = StructType([StructField("value", BinaryType())])
BY_STREAM = StructType([StructField("value", BinaryType()), StructField("stream", StringType())])
ROWS = StructType([StructField("label", StringType()), StructField("value", StringType())])
TARGETS = 3
"""Number of streams to which the rows of a sink with `byStream` go, with its own one."""
Batches = Iterator[pa.RecordBatch]


@dataclass(slots=True)
class Query:
    """One query of a user."""

    name: str
    label: str
    kind: str
    path: str
    """Where its checkpoint is, without a scheme: in the driver's file system if `local`."""
    sink: str
    selector: dict[str, str]
    starting: str = "earliest"
    source: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    application: str = ""
    local: bool = False
    shuffled: bool = False

    @property
    def targets(self) -> list[str]:
        """Return the streams that it writes, its own first; none if it writes a table."""
        if self.kind == "database":
            return []
        further = [f"{self.sink}-{n}" for n in range(1, TARGETS)] if self.kind == "byStream" else []
        return [self.sink, *further]

    @property
    def limited(self) -> bool:
        return "maxOffsetsPerTrigger" in self.source or "maxBytesPerTrigger" in self.source

    def reads(self, stream: str) -> bool:
        """Return whether it reads the stream of this full name, if that exists."""
        named = self.selector.get("subscribe")
        return stream in named.split(",") if named is not None else stream.startswith(f"{NAMESPACE}/in")

    def reader(self) -> DataSource:
        """Return its source, as Spark makes it of the options."""
        given = {"metadata": URI, **self.selector, **self.source, "startingOffsets": self.starting}
        return BuckramDataSource(given)

    def writer(self) -> DataSource:
        """Return its sink, as Spark makes it of the options."""
        place = self.path if self.local else f"s3a://checkpoints{self.path}"
        given = {"metadata": URI, "checkpointlocation": place, **self.options}
        if self.application:
            given["txnappid"] = self.application
        if self.kind == "database":
            return DatabaseDataSource({**given, "database": DATABASE, "dbtable": TABLE})
        if self.kind == "byStream":
            given["bystream"] = "true"
        return BuckramDataSource({**given, "stream": self.sink, "createstream": "true"})

    @property
    def schema(self) -> StructType:
        """Return the columns that it writes."""
        return {"database": ROWS, "byStream": BY_STREAM}.get(self.kind, WRITE)

    def rows(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return what makes rows of the sink of rows of the source."""
        return Rows(self.label, self.kind, self.targets)

    def target_of(self, value: bytes) -> str:
        """Return the stream to which the row of an input goes; empty if that is a table."""
        return self.targets[place_of(value) % len(self.targets)] if self.targets else ""


@dataclass(frozen=True, slots=True)
class Rows:
    """The transformation of a query. It can be pickled."""

    label: str
    kind: str
    targets: list[str]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values: list[bytes] = batch.column("value").to_pylist()
        if self.kind == "database":
            columns = [pa.array([self.label] * len(values)), pa.array([value.decode() for value in values])]
            return pa.RecordBatch.from_arrays(columns, names=ROWS.names)
        rows = pa.array([written(self.label, value) for value in values], pa.binary())
        if self.kind != "byStream":
            return pa.RecordBatch.from_arrays([rows], names=WRITE.names)
        places = [place_of(value) % len(self.targets) for value in values]
        names = pa.array([self.targets[place] if place else None for place in places], pa.string())
        return pa.RecordBatch.from_arrays([rows, names], names=BY_STREAM.names)


def written(label: str, value: bytes) -> bytes:
    """Return what a query writes for the row of an input."""
    return b"%s %s" % (label.encode(), value)


def place_of(value: bytes) -> int:
    """Return a number of a row, always the same, by which rows go to partitions and streams."""
    return zlib.crc32(value)


__all__ = ["DATABASE", "NAMESPACE", "READ", "TABLE", "URI", "Query", "place_of", "written"]
