"""A standalone Spark cluster on this machine; its workers have different addresses, as speculation needs hosts."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from types import TracebackType

import pyspark

from buckram.launch.java import find_java

READY_S = 90.0
FOREIGN = ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


class Standalone:
    """A master and workers with one core each: `with Standalone(directory, ["127.0.0.2"]) as cluster: cluster.url`."""

    def __init__(self, directory: Path, hosts: list[str]) -> None:
        self._directory, self._hosts = directory, hosts
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Standalone:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            master = self._start("master", "127.0.0.1", "master.Master", ["--port", "0"])
            self.url = self._said(master, r"Starting Spark master at (spark://\S+)")
            for host in self._hosts:
                work = str(self._directory / f"work-{host}")
                words = ["--port", "0", "--cores", "1", "--memory", "1g", "--work-dir", work, self.url]
                self._start(host, host, "worker.Worker", words)
            for host in self._hosts:
                self._said(self._log(host), r"(Successfully registered with master)")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _start(self, name: str, host: str, program: str, words: list[str]) -> Path:
        environment = {key: value for key, value in os.environ.items() if key not in FOREIGN}
        environment |= {
            "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }  # fmt: skip
        runner = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [str(runner), f"org.apache.spark.deploy.{program}", "--host", host, "--webui-port", "0", *words]
        with self._log(name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            )
        return self._log(name)

    def _said(self, log: Path, pattern: str) -> str:
        limit = time.monotonic() + READY_S
        while time.monotonic() < limit:
            if found := re.search(pattern, log.read_text(errors="replace")):
                return found[1]
            for process in self._processes:
                assert process.poll() is None, f"ended: {log.read_text(errors='replace')[-2000:]}"
            time.sleep(0.05)
        raise TimeoutError(f"{log} does not say {pattern!r}")

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


__all__ = ["Standalone"]
