"""A topic of Kafka as Spark sees it: what it is, which offsets it has, and its records as rows of a stream.

It uses Kafka's own client in Spark's JVM, which Spark's connector brings (spark-sql-kafka-0-10). Not here: which
offsets are read when (`core/streams/external/imports.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buckram.core.streams.external.imports import Bounds, KafkaSource, TopicIdentity
from buckram.errors import ConfigError, InvalidArgument, SourceUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN = "kafka.origin"
"""The header of each record that says where it was in Kafka: TOPIC/PARTITION/OFFSET."""
_WAIT_S = 60
_OURS = {
    "bootstrap.servers": "--from names the servers",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "values are bytes",
    "group.id": "an import is in no group; its offsets are kept with the stream",
    "auto.offset.reset": "the offsets of each range are fixed",
    "enable.auto.commit": "an import commits nothing to Kafka",
    "isolation.level": "only committed records are imported",
}


def coordinates(spark_version: str) -> str:
    """Return the Maven coordinates of the connector for a version of Spark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark_version}"


def read_config(path: Path) -> dict[str, str]:
    """Return the settings of Kafka's clients from a file of NAME=VALUE lines, as Kafka's own tools take it.

    Raises ConfigError, and InvalidArgument for settings that the import makes itself.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: {getattr(error, 'strerror', None) or error}; name a file of NAME=VALUE lines"
        ) from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals or text.endswith("\\"):
            raise ConfigError(f"{path}, line {number}: needs NAME=VALUE on one line")
        found[name.strip()] = value.strip()
    for name in found:
        if name in _OURS:
            raise InvalidArgument(f"{path}: {name} cannot be set: {_OURS[name]}; take it out")
    return found


class KafkaTopic:
    """One topic, asked through a session whose JVM has the connector. Use as a context manager.

    Raises ConfigError without the connector, SourceUnavailable when Kafka does not answer or knows no such topic.
    """

    def __init__(self, session: SparkSession, source: KafkaSource, config: Mapping[str, str]) -> None:
        self.source, self._session, self._config = source, session, config
        _check_no_connect()
        jvm: Any = session.sparkContext._jvm
        self._kafka = jvm.org.apache.kafka
        self._java = jvm.java
        _check_connector(jvm, session.version)
        settings = self._java.util.Properties()
        for name, value in {**config, "bootstrap.servers": source.servers}.items():
            settings.put(name, value)
        settings.put("default.api.timeout.ms", str(_WAIT_S * 1000))
        with self._told("cannot be asked"):
            self._admin = self._kafka.clients.admin.Admin.create(settings)

    def __enter__(self) -> KafkaTopic:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def enter_thread(self) -> None:
        """Make the session the active one of this thread. Spark looks there for the formats that are registered, and
        takes a format that it does not find for the name of a class."""
        jvm: Any = self._session.sparkContext._jvm
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._session._jsparkSession)

    def look(self) -> tuple[TopicIdentity, list[int]]:
        """Return which topic it is, and its partitions."""
        topic = self.source.topic
        with self._told("cannot be described"):
            cluster = self._got(self._admin.describeCluster().clusterId())
            found = self._got(self._admin.describeTopics([topic]).allTopicNames())[topic]
            partitions = sorted(int(one.partition()) for one in found.partitions())
            return TopicIdentity(str(cluster), topic, str(found.topicId().toString())), partitions

    def bounds(self, partitions: Iterable[int]) -> dict[int, Bounds]:
        """Return which offsets Kafka has of these partitions: those that are committed."""
        specs = self._kafka.clients.admin.OffsetSpec
        with self._told("its offsets cannot be asked for"):
            first, last = (self._offsets(partitions, spec) for spec in (specs.earliest(), specs.latest()))
        return {partition: Bounds(at, last[partition]) for partition, at in first.items()}

    def _offsets(self, partitions: Iterable[int], spec: Any) -> dict[int, int]:
        committed = self._kafka.common.IsolationLevel.READ_COMMITTED
        places = {one: self._kafka.common.TopicPartition(self.source.topic, one) for one in partitions}
        wanted = self._java.util.HashMap()
        for place in places.values():
            wanted.put(place, spec)
        found = self._admin.listOffsets(wanted, self._kafka.clients.admin.ListOffsetsOptions(committed))
        return {one: int(self._got(found.partitionResult(place)).offset()) for one, place in places.items()}

    def _got(self, future: Any) -> Any:
        return future.get(_WAIT_S, self._java.util.concurrent.TimeUnit.SECONDS)

    def rows(self, parts: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Return the committed records from one offset to before another of each partition, as columns of a record.

        Each partition is read by one task, in the order of its offsets. The job fails if Kafka has deleted some.
        """
        from pyspark.sql import functions as f

        topic = self.source.topic

        def offsets(end: int) -> str:
            return json.dumps({topic: {str(part): both[end] for part, both in parts.items()}})

        reader = self._session.read.format("kafka")
        for name, value in {**self._config, "bootstrap.servers": self.source.servers}.items():
            reader = reader.option(f"kafka.{name}", value)
        frame = reader.options(
            assign=json.dumps({topic: sorted(parts)}),
            startingOffsets=offsets(0),
            endingOffsets=offsets(1),
            includeHeaders="true",
            failOnDataLoss="true",
            **{"kafka.isolation.level": "read_committed"},
        ).load()
        numbers = (f.col("partition").cast("string"), f.col("offset").cast("string"))
        place = f.concat_ws("/", "topic", *numbers).cast("binary")
        origin = f.array(f.struct(f.lit(ORIGIN).alias("key"), place.alias("value")))
        headers = f.concat(f.coalesce("headers", f.array().cast("array<struct<key:string,value:binary>>")), origin)
        return frame.select("value", "key", "timestamp", headers.alias("headers"))

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn errors of the JVM into sentences without Java's stack."""
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause.getCause() is not None:
                cause = cause.getCause()
            raise SourceUnavailable(self.source.url, f"{what}: {cause.toString()}") from None
        except Py4JError as error:
            raise SourceUnavailable(self.source.url, f"{what}: {error}") from None


def _check_no_connect() -> None:
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise ConfigError(
            "an import from Kafka asks Kafka through the JVM of its session, which a session of Spark Connect has not: "
            "run `buckram job import-kafka`, or import with a session that is not remote"
        )


def _check_connector(jvm: Any, version: str) -> None:
    from py4j.java_gateway import JavaClass

    names = ("org.apache.kafka.clients.admin.Admin", "org.apache.spark.sql.kafka010.KafkaSourceProvider")
    for name in names:
        found = jvm
        for part in name.split("."):
            found = getattr(found, part)
        if not isinstance(found, JavaClass):
            raise ConfigError(
                f"Spark has no connector for Kafka here ({name} is missing): give spark-submit --packages "
                f"{coordinates(version)}, or name its jars with --jars"
            )
