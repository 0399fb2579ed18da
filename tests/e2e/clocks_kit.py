"""A cluster whose processes each have a wall clock of their own that a test sets: bookies, a gateway, a janitor."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.e2e.conftest import environment

from buckram.cluster import Client, connect
from buckram.config import ClientConfig
from buckram.launch.processes import BookieProcess
from buckram.metadata.default import sqlite_uri
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.uri import init_cluster, open_store
from buckram.runtime.process.clock import OFFSET_VARIABLE, ShiftedClock, SystemClock
from buckram.runtime.production import production_runtime

DAY_S = 86_400
BELIEVE_S = 30
"""Stands for the hour after which a clock is believed."""
BOOKIES = ("b1", "b2", "b3")
EVERYBODY = (*BOOKIES, "gateway", "janitor", "client")


@dataclass(frozen=True)
class Said:
    """What a gateway answered."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Janitor:
    """`buckram stream janitor --every`: a process, and the reports of its rounds."""

    def __init__(self, uri: str, env: dict[str, str]) -> None:
        self.rounds: list[dict[str, Any]] = []
        words = ["stream", "janitor", "--every", "200ms", "--grace", "100ms", "--wait", "0s", "--json"]
        self._process = _started([*words, "--metadata", uri], env)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.rounds.append(json.loads(line))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Site:
    """The processes and their clocks. `set_clocks`, `ask` the gateway, `connect` a client; `close` it."""

    def __init__(self, folder: Path, uri: str, admin: str) -> None:
        self.folder, self.uri, self.admin = folder, uri, admin
        self.set_at = 0.0
        """When clocks were set last, by a clock that nobody sets."""
        self.bookies = {
            name: BookieProcess(uri, folder / name, bookie_id=name, environment=self._env(name)) for name in BOOKIES
        }
        for one in self.bookies.values():
            one.start()
        for one in self.bookies.values():
            one.wait_ready()
        self.janitor = Janitor(uri, self._env("janitor"))
        self.gateway, self.url = self.started_gateway("gateway")

    def _env(self, name: str) -> dict[str, str]:
        hour = {f"BUCKRAM_{part}_BELIEVE_CLOCK_AFTER_S": str(BELIEVE_S) for part in ("BOOKIE", "CLIENT")}
        places = {"BUCKRAM_JANITOR_OFFLOAD_PLACES": f"*={self.folder / 'history'}"}
        return {**environment(None), OFFSET_VARIABLE: str(self._offset(name)), **hour, **places}

    def _offset(self, name: str) -> Path:
        return self.folder / f"{name}.offset"

    def set_clocks(self, ahead_s: float, who: Sequence[str] = EVERYBODY) -> None:
        for name in who:
            made = self.folder / f"{name}.new"
            made.write_text(str(ahead_s))
            made.replace(self._offset(name))
        self.set_at = time.monotonic()

    def started_gateway(self, name: str) -> tuple[subprocess.Popen[bytes], str]:
        """One more gateway, with the clock of this name, and its URL."""
        process = _started(["gateway", "--port", "0", "--tokens", "--json", "--metadata", self.uri], self._env(name))
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())["url"]

    def ask(
        self, method: str, path: str, body: bytes | dict[str, Any] = b"", *, token: str = "", url: str = ""
    ) -> Said:
        """Ask the gateway, as an administrator unless a token is given."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        request = urllib.request.Request((url or self.url) + path, data or None, method=method)
        request.add_header("Authorization", f"Bearer {token or self.admin}")
        if data:
            kind = "json" if isinstance(body, dict) else "octet-stream"
            request.add_header("Content-Type", f"application/{kind}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Said(answer.status, answer.read())
        except HTTPError as error:
            return Said(error.code, error.read())

    def done(self, method: str, path: str, body: bytes | dict[str, Any] = b"") -> Any:
        """The JSON of an answer that is no error."""
        said = self.ask(method, path, body)
        assert said.status < 300, (method, path, said)
        return said.json

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        """A client in this process, whose clock is set with the others."""
        runtime = replace(production_runtime(), clock=ShiftedClock(self._offset("client")))
        config = ClientConfig(believe_clock_after_s=BELIEVE_S)
        async with connect(self.uri, config=config, runtime=runtime) as client:
            yield client

    def close(self) -> None:
        self.janitor.close()
        ended(self.gateway)
        for one in self.bookies.values():
            one.kill()


def _started(words: Sequence[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "buckram", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)


def ended(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and take what is left of it."""
    process.kill()
    process.communicate()


def wall_s() -> float:
    """The true time."""
    return SystemClock().wall_us() / 1e6


async def site_at(folder: Path) -> tuple[str, str]:
    """A new cluster's URI, and a token of an administrator that outlives every clock that a test sets."""
    uri = sqlite_uri(folder / "metadata.db")
    store = await open_store(uri)
    try:
        await init_cluster(store)
    finally:
        await store.close()
    return uri, await token(uri, -60 * DAY_S, 400 * DAY_S, role="admin")


async def token(uri: str, issued_s: float, expires_s: float, *, role: str = "") -> str:
    """A token that was made and expires so long after now."""
    store = await open_store(uri)
    try:
        security, now = SecurityStore(store), wall_s()
        roles = (role,) if role else ()
        return (await security.create_token("alice", roles, now + issued_s, now + expires_s))[1]
    finally:
        await store.close()
