"""A Spark driver with the connector for Kafka: `python -m tests.spark.jobs.kafka_driver KAFKA JARS`.

Its JVM must begin with the connector, so it is a process of its own. It carries out the commands that it reads as lines
of JSON, [NAME, ARGUMENTS], and answers each with a line. `KafkaDriver` is the tests' side.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class KafkaDriver:
    """The process, until `close`."""

    def __init__(self, kafka: str, jars: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.jobs.kafka_driver", kafka, ",".join(jars)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def ask(self, name: str, **arguments: Any) -> Any:
        """What a command gives. Raises AssertionError if the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, arguments]).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.log.read_text(errors="replace")[-4000:]
        return json.loads(line)

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(60)


class Commands:
    """What the process does."""

    def __init__(self, kafka: str, jars: str) -> None:
        from buckram.spark import local_session
        from buckram.spark.session import QUIET

        java = f"-Dlog4j2.configurationFile={QUIET} {JAVA_OPTIONS}"
        self.session = local_session("kafka", settings={"spark.jars": jars, "spark.driver.extraJavaOptions": java})
        self.address, jvm = kafka, self.session.sparkContext._jvm
        self.java: Any = jvm.java  # type: ignore[union-attr]
        self.kafka: Any = jvm.org.apache.kafka  # type: ignore[union-attr]
        self.admin = self.kafka.clients.admin.Admin.create(self._settings())

    def _settings(self, **more: str) -> Any:
        settings = self.java.util.Properties()
        for name, value in {"bootstrap.servers": self.address, **more}.items():
            settings.put(name.replace("_", "."), value)
        return settings

    def create(self, topic: str, partitions: int) -> None:
        new = self.kafka.clients.admin.NewTopic(topic, partitions, 1)
        self.admin.createTopics([new]).all().get()

    def drop(self, topic: str) -> None:
        self.admin.deleteTopics([topic]).all().get()

    def forget(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition below an offset, as retention does."""
        wanted = self.java.util.HashMap()
        from py4j.java_gateway import JavaMember

        # It has a method of its instances with the same name, for which py4j does not find the static one by itself.
        client = self.session.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
        below = JavaMember("beforeOffset", None, "z:org.apache.kafka.clients.admin.RecordsToDelete", client)(before)
        wanted.put(self.kafka.common.TopicPartition(topic, partition), below)
        self.admin.deleteRecords(wanted).all().get()

    def produce(self, topic: str, rows: list[list[Any]], abort: bool = False) -> None:
        """Rows of partition, key, value, each a text or None. In one transaction, which is aborted if `abort`."""
        form = "org.apache.kafka.common.serialization.StringSerializer"
        settings = self._settings(key_serializer=form, value_serializer=form, transactional_id="tests")
        producer = self.kafka.clients.producer.KafkaProducer(settings)
        producer.initTransactions()
        producer.beginTransaction()
        for partition, key, value in rows:
            record = self.kafka.clients.producer.ProducerRecord(topic, partition, key, value)
            record.headers().add("h", b"v")
            producer.send(record)
        producer.flush()
        (producer.abortTransaction if abort else producer.commitTransaction)()
        producer.close()

    def load(self, metadata: str, stream: str, topic: str, crash: str = "", **options: Any) -> dict[str, Any]:
        """The report of an import, or the error. `crash`: it ends there as if killed, when `planned` or `written`."""
        from buckram.errors import BuckramError

        job = import_module("buckram.spark.jobs.import_kafka")
        write = job._write

        def dying(*arguments: Any) -> None:
            if crash == "written":
                write(*arguments)
            raise InterruptedError("killed")

        job._write = dying if crash else write
        seen: list[tuple[int, int]] = []
        try:
            url = f"kafka://{self.address}/{topic}"
            found = job.import_kafka(
                self.session, metadata, url, stream, progress=lambda done, total: seen.append((done, total)), **options
            )
            return {**dataclasses.asdict(found), "progress": seen}
        except (BuckramError, InterruptedError) as error:
            return {"error": type(error).__name__, "text": str(error)}
        finally:
            job._write = write


def main() -> None:
    commands = Commands(sys.argv[1], sys.argv[2])
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(commands, name)(**arguments)), flush=True)
    commands.session.stop()


if __name__ == "__main__":
    main()
