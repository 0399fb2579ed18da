"""A server of Apache Kafka for tests, and Spark's connector for it; `make setup-all` brings the jars of both."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from pathlib import Path
from types import TracebackType

import pytest
from javakit.programs import CONNECTOR, KAFKA, NoJava, end, jars
from tests.support.polling import wait_until

from buckram.launch.child_process import free_port
from buckram.launch.java import find_java

BUILD = Path(__file__).parents[2] / "build" / "jars"
HOST = "127.0.0.1"
START_S = 60
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
offsets.topic.num.partitions=1
log.retention.check.interval.ms=200
log.initial.task.delay.ms=100
"""
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


def kafka_jars(line: str) -> list[str]:
    """The jars of KAFKA or CONNECTOR. Without them the test is skipped, except in CI."""
    try:
        return jars(BUILD, line)
    except NoJava as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"imports from Kafka are not tested: {error}")


class KafkaServer:
    """One broker, which is the controller as well. `with KafkaServer(folder) as kafka`; `address` is HOST:PORT."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._classes = folder, ":".join(kafka_jars(KAFKA))
        port = free_port(HOST)
        self.address = f"{HOST}:{port}"
        self._settings, self._log = folder / "server.properties", folder / "kafka.log"
        controller = free_port(HOST, frozenset({port}))
        folder.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(SETTINGS.format(port=port, controller=controller, data=folder / "data"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KafkaServer:
        identity = uuid.uuid4().hex[:22]
        done = subprocess.run(
            self._command("kafka.tools.StorageTool", "format", "-t", identity, "-c", str(self._settings)),
            capture_output=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._settings)), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        wait_until(self._serves, "Kafka did not start", START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            end(self._process)

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        host, _, port = self.address.partition(":")
        with socket.socket() as attempt:
            return attempt.connect_ex((host, int(port))) == 0

    def _command(self, *words: str) -> list[str]:
        return [str(find_java(wanted_by="Kafka").home / "bin" / "java"), *QUICK, "-cp", self._classes, *words]


__all__ = ["CONNECTOR", "KAFKA", "KafkaServer", "kafka_jars"]
