"""Import from Kafka: a topic's records become records of a stream, or of one stream for each partition.

Range by range: the offsets of the next range are recorded, Spark reads exactly these and publishes them as one version
of a transaction, and then the record moves on. It may be killed anywhere: the next run reads the recorded range again,
and publishes it unless it was published. Not here: which offsets are a range
(`core/streams/external/imports.py`), Kafka itself (`kafka_topic.py`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from buckram.core.streams.external.imports import (
    RANGE_RECORDS,
    Bounds,
    KafkaImport,
    application,
    check_same,
    decode_kafka_import,
    encode_kafka_import,
    kafka_source,
    key_of,
    left,
    planned,
)
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import Transaction
from buckram.core.streams.metadata.purposes import Act, check_act
from buckram.core.streams.metadata.transactions import newest
from buckram.core.streams.names import StreamName, stream_name
from buckram.errors import (
    InvalidArgument,
    KeyExists,
    NoSuchKey,
    StreamError,
    StreamExists,
    VersionConflict,
)
from buckram.runtime.net.pace import Pace
from buckram.spark.jobs.executor_tasks import Driver, Progress, driver, parallelism
from buckram.spark.jobs.kafka_topic import KafkaTopic
from buckram.spark.session import register
from buckram.streams.shared.metadata import StreamStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from buckram.cluster import Client

_AT_ONCE = 8
"""The most partitions that are imported at the same time into streams of their own."""
_REASON = 1000
"""Maximum characters of an error of Spark that are reported."""


@dataclass(slots=True)
class KafkaStream:
    """Report of an import into one stream."""

    stream: str
    partitions: int
    """The number of the topic's partitions that go into this stream."""
    records: int = 0
    bytes: int = 0
    """The payload of these records."""
    first_offset: int | None = None
    """The first record of this run; None if there was nothing to import."""
    next_offset: int = 0
    """Offset after the last record that was imported from this topic."""
    ranges: int = 0
    """The number of ranges that this run imported."""
    imported: dict[int, int] = field(default_factory=dict)
    """For each partition the offset of Kafka up to which everything is imported."""


@dataclass(slots=True)
class KafkaReport:
    """Report of an import of a topic."""

    source: str
    streams: list[KafkaStream] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    first_offset: int | None = None
    """First record of this run in the one stream; None if there are several streams."""
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """A stream, and which partitions go into it."""

    name: StreamName
    application: str
    partitions: Sequence[int]
    until: Mapping[int, Bounds]
    """Bounds of Kafka's offsets when the run began: it ends there, however many records are added meanwhile."""
    start: KafkaImport
    """The record as it was when the run began."""


def import_kafka(
    session: SparkSession,
    metadata: str,
    url: str,
    stream: str,
    *,
    per_partition: bool = False,
    config: Mapping[str, str] | None = None,
    range_records: int = RANGE_RECORDS,
    bytes_per_s: float | None = None,
    skip_deleted: bool = False,
    run: str = "",
    progress: Progress = lambda done, total: None,
) -> KafkaReport:
    """Import what a topic has now and what earlier runs have not imported, each committed record once.

    `url`: kafka://HOST:PORT[,HOST:PORT...]/TOPIC. All partitions go into `stream`, each in its own order, or with
    `per_partition` each into a stream of its own, STREAM-0, STREAM-1 and so on. Streams that do not exist are made.
    `config`: settings of Kafka's clients. `range_records`: the most records of one transaction. `bytes_per_s`: the most
    to write in the long run; it is kept from range to range. `run` tells imports of the same topic from each other.
    `progress` is called with the number of Kafka's offsets done and their total. Raises ConfigError without Spark's
    connector, SourceUnavailable, InvalidArgument, and StreamError if a range could not be read or published (a writer
    has the stream, for example) or another run of the same import took over.
    """
    source = kafka_source(url)
    if range_records < 1:
        raise InvalidArgument(f"range_records = {range_records}: needs at least 1")
    if bytes_per_s is not None and bytes_per_s < 1:
        raise InvalidArgument(f"bytes_per_s = {bytes_per_s}: needs at least 1, or None for no limit")
    name = stream_name(stream)
    register(session)
    with driver(metadata) as home, KafkaTopic(session, source, config or {}) as topic:
        targets = _targets(home, topic, name, per_partition, run)
        shared = _Shared(home, topic, Pace(bytes_per_s), range_records, skip_deleted, progress)
        shared.total = sum(left(replace(one.start, end=one.start.start), one.until) for one in targets)
        progress(0, shared.total)
        width = min(len(targets), _AT_ONCE, max(parallelism(session), 1))
        with ThreadPoolExecutor(width, "import") as threads:
            try:
                streams = list(threads.map(partial(_import, shared), targets))
            except BaseException:
                shared.stopped.set()
                raise
    return _report(source.url, streams)


def _targets(home: Driver, topic: KafkaTopic, name: StreamName, per_partition: bool, run: str) -> list[_Target]:
    """Return the streams of an import with their records, and make those that do not exist."""
    identity, partitions = topic.look()
    bounds = topic.bounds(partitions)
    wanted: list[tuple[StreamName, int | None, Sequence[int]]] = [(name, None, partitions)]
    if per_partition:
        wanted = [(stream_name(f"{name}-{one}"), one, [one]) for one in partitions]
    targets = []
    for target, only, parts in wanted:
        app = application(identity, only, run)
        found = home.run(partial(_opened, name=target, application=app, fresh=KafkaImport(identity)))
        check_same(found, identity)
        targets.append(_Target(target, app, parts, {part: bounds[part] for part in parts}, found))
    return targets


def _report(url: str, streams: list[KafkaStream]) -> KafkaReport:
    found = KafkaReport(url, streams, sum(one.records for one in streams), sum(one.bytes for one in streams))
    if len(streams) == 1:
        found.first_offset, found.next_offset = streams[0].first_offset, streams[0].next_offset
    return found


class _Shared:
    """Shared state of the imports of all streams of one run."""

    def __init__(
        self, home: Driver, topic: KafkaTopic, pace: Pace, most: int, skip_deleted: bool, progress: Progress
    ) -> None:
        self.home, self.topic, self.pace = home, topic, pace
        self.most, self.skip_deleted = most, skip_deleted
        self.total = 0
        self._progress, self._done, self._lock = progress, 0, threading.Lock()
        self.stopped = threading.Event()
        """Set when one of the streams failed: the others end after their range."""

    def advanced(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress(min(self._done, self.total), self.total)


def _import(shared: _Shared, target: _Target) -> KafkaStream:
    """Import what is left for one stream."""
    found = KafkaStream(str(target.name), len(target.partitions))
    try:
        _ranges(shared, target, found)
    except BaseException:
        shared.stopped.set()
        raise
    return found


def _ranges(shared: _Shared, target: _Target, found: KafkaStream) -> None:
    record, home = target.start, shared.home
    while True:
        if not record.planned:
            record = planned(record, target.until, shared.most, skip_deleted=shared.skip_deleted)
            found.imported = dict(record.start)
            if not record.planned or shared.stopped.is_set():
                break
            record = home.run(partial(_kept, target=target, record=record))
        done = home.run(partial(_published, target=target))
        if done is None or done.version < record.number:
            _write(shared, target, record)
            done = home.run(partial(_published, target=target))
            if done is not None and done.version == record.number:
                found.first_offset = done.first_offset if found.first_offset is None else found.first_offset
                found.records += done.next_offset - done.first_offset
                size = home.run(partial(_bytes, name=target.name, first=done.first_offset, stop=done.next_offset))
                found.bytes += size
                home.run(lambda _: shared.pace.take(size))  # noqa: B023 - waited for here
            found.ranges += 1
        if done is not None:
            found.next_offset = done.next_offset
        shared.advanced(sum(stop - at for at, stop in record.parts().values()))
        record = home.run(partial(_kept, target=target, record=record.done()))
    last = home.run(partial(_published, target=target))
    found.next_offset = last.next_offset if last is not None else 0


def _write(shared: _Shared, target: _Target, record: KafkaImport) -> None:
    """Publish the range, unless another run has done so."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        shared.topic.enter_thread()
        rows = shared.topic.rows(record.parts())
        rows.write.format("buckram").mode("append").options(
            metadata=str(shared.home.cluster), txnAppId=target.application, txnVersion=str(record.number)
        ).save(str(target.name))
    except (PySparkException, Py4JJavaError) as error:
        done = shared.home.run(partial(_published, target=target))
        if done is not None and done.version > record.number:
            raise _taken_over(target) from None
        raise StreamError(str(target.name), f"a range from Kafka was not imported: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return the reason from a long error text of Spark: our own error, or the deepest cause."""
    said = str(error)
    for pattern in (r"buckram\.errors[\w.]*: (.+)", r"Caused by: (.+)", r"(\S.*)"):
        if found := re.findall(pattern, said):
            return str(found[-1] if pattern != r"(\S.*)" else found[0])[:_REASON]
    return type(error).__name__


def _taken_over(target: _Target) -> StreamError:
    return StreamError(
        str(target.name), "another run of the same import from Kafka took over; import again to go on after it"
    )


# -- metadata ---------------------------------------------------------------------------------------------


async def _opened(client: Client, name: StreamName, application: str, fresh: KafkaImport) -> KafkaImport:
    """Make the stream if it does not exist, and return the record of the import."""
    streams, ns = StreamStore(client.services.store), client.namespace(name.namespace)
    if not await ns.exists(name.stream):
        with suppress(StreamExists):
            await ns.create(name.stream)
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    check_act(str(name), head, Act.WRITE)
    key = _key(streams, head.uid, application)
    try:
        found = await streams.keys.get(key)
    except NoSuchKey:
        return fresh
    return decode_kafka_import(key, found.value, found.version)


async def _kept(client: Client, target: _Target, record: KafkaImport) -> KafkaImport:
    """Store the record if it is unchanged since this run has read it. Raises StreamError otherwise."""
    streams = StreamStore(client.services.store)
    key = _key(streams, (await streams.read(target.name)).head.uid, target.application)
    data = encode_kafka_import(record)
    try:
        if record.version < 0:
            await streams.keys.create(key, data)
            return replace(record, version=0)
        return replace(record, version=await streams.keys.set(key, data, record.version))
    except (KeyExists, VersionConflict, NoSuchKey):
        raise _taken_over(target) from None


def _key(streams: StreamStore, uid: str, application: str) -> str:
    return f"{streams.layout.imports(uid)}/{key_of(application)}"


async def _published(client: Client, target: _Target) -> Transaction | None:
    """Return the transaction of the last range that was published; None if none was."""
    head = (await StreamStore(client.services.store).read(target.name)).head
    found = newest(head.transactions, target.application, "")
    return None if found is None else found[1]


async def _bytes(client: Client, name: StreamName, first: int, stop: int) -> int:
    """Return the payload bytes of the segments with these offsets."""
    streams, size = StreamStore(client.services.store), 0
    async for row in streams.segments_backwards((await streams.read(name)).head):
        if row.base < first:
            break
        if row.summary is not None and row.base < stop:
            size += row.summary.bytes
    return size
