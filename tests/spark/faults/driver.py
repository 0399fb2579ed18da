"""A Spark driver in a process that tests can kill: `python -m tests.spark.faults.driver JSON` runs a query to its end.

The test starts it as the leader of a process group (`Driver`), so that one signal ends it together with its JVM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.spark.faults.kit import Lines

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 180.0


@dataclass
class Driver:
    """One run of a query over `lines` in a process group of its own: `with Driver(...) as driver: driver.wait()`."""

    lines: Lines
    uri: str
    stream: str
    faults: str = ""
    master: str = "local[2,3]"
    settings: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Driver:
        self.marks.mkdir(exist_ok=True)
        work = {
            "directory": str(self.lines.directory), "uri": self.uri, "stream": self.stream, "master": self.master,
            "settings": self.settings, "options": {**self.options, "faults": self.faults, "marks": str(self.marks)},
        }  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.faults.driver", json.dumps(work)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        return self

    @property
    def marks(self) -> Path:
        return self.lines.directory / "marks"

    @property
    def log(self) -> Path:
        return self.lines.directory / "driver.log"

    def wait(self, seconds: float = WAIT_S) -> int:
        """Wait for the exit code, which is -9 if it was killed. Raises TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(seconds)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the whole process group at once."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def main(text: str) -> None:
    from tests.spark.faults.chaos import ChaosSource

    from buckram.spark.session import QUIET, class_archive, local_session

    work = json.loads(text)
    marks = Path(work["options"]["marks"])
    (marks / "driver").write_text(str(os.getpid()))
    java = f"-Dlog4j2.configurationFile={QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    if (archive := class_archive()).exists():
        java += f" -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    settings = {"spark.master": work["master"], "spark.driver.extraJavaOptions": java, **work["settings"]}
    session = local_session("to be killed", settings=settings)
    session.dataSource.register(ChaosSource)
    lines = Lines(Path(work["directory"]), files=0, rows=0)
    lines.run(session, work["uri"], work["stream"], source="buckram_chaos", **work["options"])
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
