"""The process in which Spark runs, made to be killed: `python -m examples.debian.driver JSON`.

It counts what comes until it reads `finish` from its standard input, then `report FILE`, `copies`,
`history FILE PLACES` and `maintainers`. What it says are JSON lines on standard output, and between the answers how far
it is. It keeps nothing in files of its own: each run begins in a directory that holds nothing. `Driver` is the parent's
side.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.debian import queries, report
from examples.debian.files import environment
from examples.debian.progress import Far
from examples.debian.watching import watch

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(frozen=True)
class Work:
    """What a driver has to do: all that one knows of another."""

    uri: str
    streams: dict[str, list[str]]
    """By kind of records."""
    checkpoints: str
    """A directory of the cluster."""
    settings: dict[str, str]
    """What Spark is told about the gateway."""


class Driver:
    """One run of it, the leader of a process group: one signal ends it together with its JVM and its workers."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.log = folder / "spark.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.debian.driver", json.dumps(dataclasses.asdict(work))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                cwd=tempfile.mkdtemp(dir=folder, prefix="driver-"), env=environment(),
            )  # fmt: skip
        self.pid = self._process.pid
        self.far = Far()
        """What Spark is at: records that queries counted, or tasks of stages."""
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reading = threading.Thread(target=self._read, name="driver", daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()).endswith(b"\n"):
            said = json.loads(line)
            if "far" in said:
                self.far = Far(*said["far"])
            else:
                self._answers.put(said)
        self._answers.put(None)

    def answer(self) -> dict[str, Any]:
        """The next thing that it says. RuntimeError when it ended instead."""
        said = self._answers.get()
        if said is None:
            self._answers.put(None)
            raise RuntimeError(f"the Spark driver ended with code {self._process.wait()}: {self._last_words()}")
        return said

    def _last_words(self) -> str:
        """Spark ends with its plans, which are long: what went wrong is above them."""
        lines = [line[:300] for line in self.log.read_text(errors="replace").strip().splitlines()]
        named = [line for line in lines if "Error" in line or "Exception" in line]
        return "\n".join([*named[-12:], "...", *lines[-6:]])

    def ask(self, *words: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self.far = Far()
        self._process.stdin.write((" ".join(words) + "\n").encode())
        self._process.stdin.flush()
        return self.answer()

    def kill(self) -> None:
        """kill -9 of all of it."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reading.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


_saying = threading.Lock()


def say(**words: Any) -> None:
    with _saying:
        print(json.dumps(words), flush=True)


def main(work: Work) -> None:
    from buckram.spark import find_java, local_session
    from buckram.spark.session import QUIET

    uri, streams = work.uri, work.streams
    # A job of a minute has no use for the second compiler and several collectors: starting takes half as long.
    java = f"-Dlog4j2.configurationFile={QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {
        **work.settings,
        JAVA_OPTIONS: f"{java} {work.settings.get(JAVA_OPTIONS, '')}".strip(),
        "spark.sql.streaming.minBatchesToRetain": "1000",
    }
    session = local_session("debian-records", settings=settings)
    running = queries.start(session, uri, streams, work.checkpoints, {"processingTime": "1 second"})
    watch(session, lambda done, whole: say(far=[done, whole]))
    say(spark=session.version, java=find_java().version)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "finish":
            queries.finish(session, uri, streams, work.checkpoints, running)
            say(finished=True)
        elif command == "report":
            say(**dataclasses.asdict(report.run(session, uri, streams, Path(words[0]))))
        elif command == "copies":
            say(**dataclasses.asdict(report.copies(session, uri)))
        elif command == "history":
            places = json.loads(Path(words[1]).read_text())
            say(**dataclasses.asdict(report.history(session, uri, streams, Path(words[0]), places)))
        elif command == "maintainers":
            say(parts=report.maintainers(session, uri, streams))
    session.stop()


if __name__ == "__main__":
    main(Work(**json.loads(sys.argv[1])))
