"""A gateway in a process of its own, which tests stop, kill and start again at the same port."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from types import TracebackType

from tests.e2e.conftest import environment


class GatewayProcess:
    """`with GatewayProcess(uri) as gateway`; `address` is HOST:PORT, which stays over restarts."""

    def __init__(self, uri: str, *options: str) -> None:
        self._uri, self._options, self._port = uri, options, "0"
        self._process: subprocess.Popen[bytes] | None = None
        self.address, self._scheme = "", ""

    def start(self) -> None:
        command = [sys.executable, "-m", "buckram", "gateway", "--metadata", self._uri, "--port", self._port, "--json"]
        process = subprocess.Popen([*command, *self._options], stdout=subprocess.PIPE, env=environment(None))
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        self.address, self._scheme = ready["webhdfs"], "swebhdfs" if ready["url"].startswith("https:") else "webhdfs"
        self._port, self._process = self.address.rpartition(":")[2], process

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdout is not None
            process.send_signal(number)
            process.wait(60)
            process.stdout.close()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def start_again(self) -> None:
        """Start it, unless it runs."""
        if self._process is None:
            self.start()

    @property
    def root(self) -> str:
        return f"{self._scheme}://{self.address}"

    def __enter__(self) -> GatewayProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
