"""Imports into a stream, the pure part: the order of what is imported, and the record that proves it has not changed.

Files: a source is a list of files in the order of their names. Each file is cut into ranges, and each range is one
version of a transaction: the number of the file and that of the range in it. The record of the import says which files
had which numbers, so a file that comes between others, changes or goes is noticed before anything is imported twice or
left out; files that come after the last one are imported by the next run.

A topic of Kafka: a range has, for each partition, the offsets from one to another. It is written down before anything
is read, and is one version of a transaction: so whoever repeats it reads the same offsets, and publishes them once.
When a range is done the record moves on to the next one by compare-and-set. Pure. Not here: reading files
(`streams/maintain/import_sources.py`, `streams/maintain/import_source_rows.py`), asking Kafka and reading it
(`spark/jobs/kafka_topic.py`), writing and publishing (`streams/maintain/imports.py`, `spark/jobs/import_kafka.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from buckram.addresses import host_port
from buckram.core.streams.json_values import is_int64
from buckram.errors import InvalidArgument, MalformedRecord

FORMAT = 1
FORMATS = ("parquet", "jsonl", "csv")
TIME_UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
"""Microseconds of each unit of time."""
RANGE_BYTES = 128 * 1024 * 1024
"""Approximate bytes of a file in one range, which becomes one ledger and one transaction."""
MAX_FILES = 30_000
"""The most files of one import: their marks must fit into one value of every metadata store."""
_RANGE_BITS = 32


class SourceFile(NamedTuple):
    """One file of a source: its name below the source, and its size in bytes."""

    name: str
    size: int

    @property
    def mark(self) -> str:
        """Return the mark of the file in the import's record: 12 hexadecimal digits of a hash of size and name."""
        return hashlib.sha256(f"{self.size} {self.name}".encode()).hexdigest()[:12]


class ImportPosition(NamedTuple):
    """A range of a source: the number of its file, and its own in that file."""

    file: int
    range: int

    @property
    def version(self) -> int:
        """Return the transaction's version, which grows from range to range."""
        return self.file << _RANGE_BITS | self.range


def position_of(version: int) -> ImportPosition:
    """Return the range that a version is of."""
    return ImportPosition(version >> _RANGE_BITS, version & ((1 << _RANGE_BITS) - 1))


@dataclass(frozen=True, slots=True)
class ImportColumns:
    """Columns of a source for each part of a record. Empty: the column of the usual name if there is one, otherwise
    none.

    Lines of JSON without a column for the value are values themselves.
    """

    value: str = ""
    key: str = ""
    time: str = ""
    headers: str = ""
    time_unit: str = "us"
    """Unit of times that are whole numbers: s, ms or us."""

    def __post_init__(self) -> None:
        if self.time_unit not in TIME_UNITS:
            raise InvalidArgument(f"--time-unit {self.time_unit!r}: choose one of {', '.join(TIME_UNITS)}")


@dataclass(frozen=True, slots=True)
class Import:
    """Record of an import: its source and settings, and how far it is. `version` is that of its key; -1: the key does
    not exist.
    """

    source: str
    format: str
    columns: ImportColumns
    range_bytes: int = RANGE_BYTES
    marks: tuple[str, ...] = ()
    done: int = -1
    """The version of the last range that is certainly published; the stream's transaction may say a later one."""
    version: int = -1


def application_of(source: str, run: str = "") -> str:
    """Return the application of an import. `run` tells imports of the same source from each other."""
    return f"import {hashlib.sha256(f'{run} {source}'.encode()).hexdigest()[:24]}"


def key_of(application: str) -> str:
    """Return the name of the key of an import's record."""
    return application.removeprefix("import ")


def continued(known: Import, given: Import, files: Sequence[SourceFile], done: int) -> Import:
    """Return the record for a run that goes on after version `done`. InvalidArgument if the source is another one now.

    `given` has the caller's settings, `known` the record as it was stored.
    """
    name = given.source
    if (known.format, known.columns) != (given.format, given.columns):
        raise InvalidArgument(
            f"{name}: was imported as {known.format} with {_shown(known.columns)} before; go on with the same options, "
            "or import it once more under another name (--run NAME)"
        )
    begun = position_of(done).file + 1 if done >= 0 else 0
    for number, mark in enumerate(known.marks[:begun]):
        file = files[number] if number < len(files) else None
        if file is None or file.mark != mark:
            there = f"{file.name} ({file.size} bytes)" if file is not None else "nothing"
            raise InvalidArgument(
                f"{name}: file {number + 1} of {begun} that were imported has changed, was removed, or another one "
                f"came before it: there is {there} now; put it back, or import what is new from a place of its own"
            )
    return replace(known, marks=marks_of(name, files), done=max(done, known.done))


def marks_of(source: str, files: Sequence[SourceFile]) -> tuple[str, ...]:
    """Return the marks of all files. InvalidArgument if there are too many."""
    if len(files) > MAX_FILES:
        raise InvalidArgument(
            f"{source}: has {len(files)} files, the limit of one import is {MAX_FILES}; import its directories one "
            "by one"
        )
    return tuple(file.mark for file in files)


def encode_import(record: Import) -> bytes:
    columns = record.columns
    return json.dumps(
        {
            "format": FORMAT,
            "source": record.source,
            "kind": record.format,
            "columns": [columns.value, columns.key, columns.time, columns.headers, columns.time_unit],
            "range_bytes": record.range_bytes,
            "marks": "".join(record.marks),
            "done": record.done,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def decode_import(key: str, data: bytes, version: int) -> Import:
    """Return the record of an import. MalformedRecord names the key."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise MalformedRecord(f"{key}: format {raw['format']!r}, this version of buckram knows {FORMAT}")
        if not is_int64(raw["range_bytes"]) or not is_int64(raw["done"]):
            raise TypeError("a number is none")
        marks = str(raw["marks"])
        return Import(
            str(raw["source"]),
            str(raw["kind"]),
            ImportColumns(*map(str, raw["columns"])),
            raw["range_bytes"],
            tuple(marks[at : at + 12] for at in range(0, len(marks), 12)),
            raw["done"],
            version,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not the record of an import ({error!r}); restore it from a backup") from None


def _shown(columns: ImportColumns) -> str:
    named = {"value": columns.value, "key": columns.key, "time": columns.time, "headers": columns.headers}
    options = [f"--{option} {column}" for option, column in named.items() if column]
    if columns.time_unit != "us":
        options.append(f"--time-unit {columns.time_unit}")
    return " ".join(options) or "no columns named"


RANGE_RECORDS = 1_000_000
"""The most Kafka offsets of one range, all partitions together: one transaction, a ledger for each partition."""
MAX_PARTITIONS = 10_000
"""The most partitions of a topic: their offsets must fit into one value of every metadata store."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_URL = re.compile(r"kafka://(?P<servers>[^/?#]+)/(?P<topic>[^/?#]+)")


class KafkaSource(NamedTuple):
    """A topic, and the servers at which its cluster is found."""

    servers: str
    """HOST:PORT[,HOST:PORT...]"""
    topic: str

    @property
    def url(self) -> str:
        return f"kafka://{self.servers}/{self.topic}"


class TopicIdentity(NamedTuple):
    """Identity of a topic: cluster, name and id. A name alone can be that of another topic tomorrow."""

    cluster: str
    topic: str
    topic_id: str


class Bounds(NamedTuple):
    """Offsets that Kafka has of a partition: from `earliest` to before `latest`."""

    earliest: int
    latest: int


def kafka_source(url: str) -> KafkaSource:
    """Parse kafka://HOST:PORT[,HOST:PORT...]/TOPIC. Raises InvalidArgument."""
    found = _URL.fullmatch(url)
    if found is None:
        raise InvalidArgument(f"{url[:100]!r}: needs kafka://HOST:PORT/TOPIC, with a comma between servers")
    if not _TOPIC.fullmatch(found["topic"]):
        raise InvalidArgument(f"topic {found['topic'][:100]!r}: Kafka's names have up to 249 of A-Z a-z 0-9 . _ -")
    for server in found["servers"].split(","):
        host, port = host_port(server, f"server {server[:60]!r}")
        if not host or not port:
            raise InvalidArgument(f"server {server[:60]!r}: needs HOST:PORT, such as 10.0.0.7:9092")
    return KafkaSource(found["servers"], found["topic"])


@dataclass(frozen=True, slots=True)
class KafkaImport:
    """Record of an import: the topic and the current range. Offsets are Kafka's, by partition."""

    identity: TopicIdentity
    number: int = 0
    """The transaction's version of the range from `start` to `end`."""
    start: Mapping[int, int] = field(default_factory=dict)
    end: Mapping[int, int] = field(default_factory=dict)
    version: int = -1
    """Version of the record's key; -1: the key does not exist."""

    @property
    def planned(self) -> bool:
        """Return whether the record has a range, which may or may not be published already."""
        return any(stop > self.start[partition] for partition, stop in self.end.items())

    def parts(self) -> dict[int, tuple[int, int]]:
        """Return the offsets of the range by partition, without partitions that have none in it."""
        return {part: (self.start[part], stop) for part, stop in self.end.items() if stop > self.start[part]}

    def done(self) -> KafkaImport:
        """Return the record after the range was published."""
        return replace(self, number=self.number + 1, start=dict(self.end))


def application(identity: TopicIdentity, partition: int | None, run: str) -> str:
    """Return the application of an import; `partition` is None for all of them into one stream."""
    where = "" if partition is None else f" {partition}"
    return application_of(f"kafka {identity.cluster} {identity.topic}{where}", run)


def check_same(known: KafkaImport, identity: TopicIdentity) -> None:
    """Raise InvalidArgument if the topic is not the one that was imported before."""
    if known.identity != identity:
        raise InvalidArgument(
            f"topic {identity.topic}: was deleted and made anew since it was imported (its id was "
            f"{known.identity.topic_id}, now it is {identity.topic_id}); import the new one under another name "
            "(--run NAME)"
        )


def left(known: KafkaImport, bounds: Mapping[int, Bounds]) -> int:
    """Return how many offsets Kafka has beyond those that were imported."""
    return sum(max(at.latest - known.end.get(part, at.earliest), 0) for part, at in bounds.items())


def planned(
    known: KafkaImport, bounds: Mapping[int, Bounds], most: int = RANGE_RECORDS, *, skip_deleted: bool = False
) -> KafkaImport:
    """Return the record with the next range, of at most `most` offsets; without a range if nothing is left.

    Partitions that are new begin at the first offset that Kafka has. Raises InvalidArgument for offsets that Kafka has
    deleted before they were imported, unless they are to be skipped, and for a topic with too many partitions.
    """
    if len(bounds) > MAX_PARTITIONS:
        raise InvalidArgument(
            f"topic {known.identity.topic}: has {len(bounds)} partitions, the limit of one import is {MAX_PARTITIONS}"
        )
    start = dict(known.end)
    for part, at in sorted(bounds.items()):
        before = start.setdefault(part, at.earliest)
        if before < at.earliest and not skip_deleted:
            raise InvalidArgument(
                f"topic {known.identity.topic}: Kafka has deleted the offsets {before} to {at.earliest - 1} of "
                f"partition {part} before they were imported; go on after them with --skip-deleted"
            )
        if at.latest < before:
            raise InvalidArgument(
                f"topic {known.identity.topic}: partition {part} ends at offset {at.latest}, and was imported up to "
                f"{before}: Kafka has lost records; look after that first"
            )
        start[part] = max(before, at.earliest)
    waiting = {part: at.latest - start[part] for part, at in bounds.items() if at.latest > start[part]}
    taken = _shared(waiting, most)
    return replace(known, start=start, end={part: at + taken.get(part, 0) for part, at in start.items()})


def _shared(waiting: Mapping[int, int], most: int) -> dict[int, int]:
    """Divide `most` among the partitions, as evenly as what waits in them allows."""
    taken: dict[int, int] = {}
    rest = most
    for number, part in enumerate(sorted(waiting, key=lambda part: (waiting[part], part))):
        taken[part] = min(waiting[part], -(-rest // (len(waiting) - number)))
        rest -= taken[part]
    return taken


def encode_kafka_import(record: KafkaImport) -> bytes:
    identity = record.identity
    offsets = [[part, at, record.end[part]] for part, at in sorted(record.start.items())]
    raw = {"format": FORMAT, "kafka": list(identity), "number": record.number, "offsets": offsets}
    return json.dumps(raw, separators=(",", ":")).encode()


def decode_kafka_import(key: str, data: bytes, version: int) -> KafkaImport:
    """Return the record of an import. MalformedRecord names the key."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise MalformedRecord(f"{key}: format {raw['format']!r}, this version of buckram knows {FORMAT}")
        cluster, topic, topic_id = map(str, raw["kafka"])
        rows = [(part, start, end) for part, start, end in raw["offsets"]]
        if not all(is_int64(number) for row in [*rows, (raw["number"],)] for number in row):
            raise TypeError("a number is none")
        if any(not 0 <= start <= end for _, start, end in rows):
            raise ValueError("a range ends before it begins")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(
            f"{key}: not the record of an import from Kafka ({error!r}); restore it from a backup"
        ) from None
    start, end = ({row[0]: row[at] for row in rows} for at in (1, 2))
    return KafkaImport(TopicIdentity(cluster, topic, topic_id), raw["number"], start, end, version)
