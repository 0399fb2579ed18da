"""Imports from a real Kafka through Spark's connector: each committed record once, whatever is repeated or killed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.jobs.kafka_driver import KafkaDriver
from tests.support.kafka_kit import CONNECTOR, KafkaServer, kafka_jars

from buckram import sync
from buckram.core.streams.records.batch import Record
from buckram.errors import ConfigError, InvalidArgument
from buckram.spark.jobs.kafka_topic import ORIGIN, read_config
from buckram.testing import ThreadedCluster

pytestmark = [pytest.mark.spark, pytest.mark.share(4)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaDriver]:
    """A driver of Spark beside a server of Kafka; both for all tests here."""
    folder = tmp_path_factory.mktemp("kafka")
    jars = kafka_jars(CONNECTOR)
    with KafkaServer(folder / "server") as server:
        driver = KafkaDriver(server.address, jars, folder / "driver.log")
        yield driver
        driver.close()


class Import:
    """A topic of three partitions, and the stream that it is imported into."""

    def __init__(self, driver: KafkaDriver, uri: str, name: str) -> None:
        self.driver, self.uri, self.topic, self.stream = driver, uri, name, f"default/{name}"
        driver.ask("create", topic=name, partitions=3)
        self.sent: dict[int, list[tuple[str | None, str | None]]] = {0: [], 1: [], 2: []}

    def send(self, count: int, partitions: tuple[int, ...] = (0, 1, 2)) -> None:
        rows: list[list[Any]] = []
        for partition in partitions:
            for _ in range(count):
                number = len(self.sent[partition])
                pair = (f"k{number % 5}" if number % 3 else None, f"{partition}.{number}" if number % 7 else None)
                self.sent[partition].append(pair)
                rows.append([partition, *pair])
        self.driver.ask("produce", topic=self.topic, rows=rows)

    def load(self, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.driver.ask(
            "load", metadata=self.uri, stream=self.stream, topic=self.topic, **options
        )
        return found

    def records(self, stream: str = "") -> list[Record]:
        name = (stream or self.stream).partition("/")[2]
        with sync.connect(self.uri) as client:
            return list(client.namespace().read(name))

    def check(self) -> None:
        """Every record that was sent is in the stream once, in the order of its partition."""
        found: dict[int, list[tuple[str | None, str | None]]] = {0: [], 1: [], 2: []}
        last = dict.fromkeys(found, -1)
        for record in self.records():
            headers = dict(record.headers)
            topic, partition, offset = headers[ORIGIN].decode().split("/")
            assert (topic, headers["h"]) == (self.topic, b"v")
            assert last[int(partition)] < int(offset)
            last[int(partition)] = int(offset)
            pair = tuple(None if one is None else bytes(one).decode() for one in (record.key, record.value))
            found[int(partition)].append((pair[0], pair[1]))
            assert record.timestamp > 1_600_000_000_000_000
        assert found == self.sent


@pytest.fixture
def orders(kafka: KafkaDriver, sqlite_cluster: ThreadedCluster, request: pytest.FixtureRequest) -> Import:
    plain = re.sub(r"[^a-z]", "-", request.node.name)[:60]
    return Import(kafka, sqlite_cluster.uri, f"{plain}-{os.urandom(4).hex()}")


def test_each_committed_record_is_imported_once_and_in_order(orders: Import) -> None:
    orders.send(100)
    orders.driver.ask("produce", topic=orders.topic, rows=[[0, "gone", "gone"]] * 20, abort=True)
    orders.send(50, (0, 2))
    first = orders.load(range_records=200)
    assert "error" not in first, first
    assert (first["records"], first["first_offset"], first["next_offset"]) == (400, 0, 400)
    (stream,) = first["streams"]
    assert (stream["stream"], stream["partitions"], stream["ranges"]) == (orders.stream, 3, 3)
    assert first["progress"][-1][0] == first["progress"][-1][1] >= 420  # Kafka's offsets, with those of no records
    assert first["bytes"] > 0
    orders.check()
    again = orders.load()
    assert (again["records"], again["first_offset"], again["next_offset"]) == (0, None, 400)
    orders.send(10)
    assert orders.load()["records"] == 30
    orders.check()


@pytest.mark.parametrize("crash", ["planned", "written"])
def test_a_run_that_is_killed_is_gone_on_with(orders: Import, crash: str) -> None:
    orders.send(40)
    assert orders.load(crash=crash)["error"] == "InterruptedError"
    orders.send(40)  # The range that was written down ends before these.
    assert orders.load()["records"] == (120 if crash == "written" else 240)
    orders.check()


def test_each_partition_into_a_stream_of_its_own(orders: Import) -> None:
    orders.send(30)
    orders.send(12, (1,))
    found = orders.load(per_partition=True, range_records=20)
    assert [one["records"] for one in found["streams"]] == [30, 42, 30]
    assert (found["records"], found["first_offset"]) == (102, None)
    for partition, sent in orders.sent.items():
        values = [record.value for record in orders.records(f"{orders.stream}-{partition}")]
        assert values == [None if value is None else value.encode() for _, value in sent]
    assert orders.load(per_partition=True)["records"] == 0


def test_what_is_gone_or_another_one_is_refused(orders: Import) -> None:
    orders.send(10)
    orders.load()
    orders.send(10)
    orders.driver.ask("forget", topic=orders.topic, partition=1, before=15)
    told = orders.load()
    assert told["error"] == "InvalidArgument"
    assert "Kafka has deleted the offsets 11 to 14 of partition 1 before they were imported" in told["text"]
    assert orders.load(skip_deleted=True)["records"] == 26
    with sync.connect(orders.uri) as client, client.namespace().writer(orders.topic) as writer:
        writer.append(b"mine")
        orders.send(1)
        told = orders.load()
        assert told["error"] == "StreamError"
        assert "a range from Kafka was not imported" in told["text"]
    assert orders.load()["records"] == 3
    orders.driver.ask("drop", topic=orders.topic)
    assert orders.load()["error"] == "SourceUnavailable"
    orders.driver.ask("create", topic=orders.topic, partitions=1)
    told = orders.load()
    assert told["error"] == "InvalidArgument"
    assert "deleted and made anew" in told["text"]
    assert orders.load(run="again")["records"] == 0


def test_settings_of_kafkas_clients(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# ours\nsecurity.protocol = SSL\n\nsasl.jaas.config=a b=c;\n")
    assert read_config(path) == {"security.protocol": "SSL", "sasl.jaas.config": "a b=c;"}
    path.write_text("group.id=x")
    with pytest.raises(InvalidArgument, match=r"group\.id cannot be set: an import is in no group"):
        read_config(path)
    path.write_text("a=b\nnonsense")
    with pytest.raises(ConfigError, match="line 2: needs NAME=VALUE"):
        read_config(path)
    with pytest.raises(ConfigError, match=r"absent: No such file"):
        read_config(tmp_path / "absent")
