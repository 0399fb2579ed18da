"""Servers of databases at the hosts of replicas, and the network between them and their clients.

A server is the real `Service` of `serve/hrana`, with its forwarding to the leader; only HTTP between two hosts is
simulated. A message takes time, is refused where the server is gone, and is lost at times: on its way, or the answer
on its way back, when all of it has been executed. A server notices a client that is gone, or not. Not here: clients
(`net_clients.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.types import Message

from buckram.cluster import Client
from buckram.serve.hrana import forwarding
from buckram.serve.hrana.database_access import Everybody
from buckram.serve.hrana.databases import Databases
from buckram.serve.hrana.forwarding import Forwarder, Sent, rights_left
from buckram.serve.hrana.limits import HTTP_LIMITS, HranaLimits
from buckram.serve.hrana.service import Service
from buckram.serve.hrana.targets import Target, parse_reading
from buckram.serve.http import server_registry
from buckram.serve.http.application import anybody
from buckram.serve.http.origins import Origins
from buckram.serve.http.problems import HttpProblem
from buckram.state.db.database import Database
from buckram.state.machine.settings import MachineSettings
from simulator.database.rules import DATABASE
from simulator.engine.checkers.report import Report
from simulator.engine.loop import PROCESS, Process
from simulator.engine.planting import patched
from simulator.engine.world import Died, World
from simulator.machine.faults import MACHINE, NAMESPACE

PATH = "v2/pipeline"
_LIMITS = HranaLimits(leader_wait_s=3.0, answer_wait_s=4.0, stream_idle_s=2.0)
_LOST_BEFORE, _LOST_AFTER = 0.03, 0.12


class Unreachable(OSError):
    """The server was not reached: nothing was executed."""


class Lost(OSError):
    """No answer came: the request may have been executed."""


class _ServedDatabases(Databases):
    """The databases of a server, with the settings and the directory of the life."""

    def __init__(self, client: Client, url: str, settings: MachineSettings, directory: Path) -> None:
        super().__init__(client, [DATABASE], [], announce=url)
        self._settings, self._directory = settings, str(directory)

    async def _opened(self, name: str) -> Database:
        database = await self._client.namespace(NAMESPACE).database(
            MACHINE, create=False, announce=self.announce, settings=self._settings, directory=self._directory
        )
        database.show(self.announce)
        return database


class Servers:
    """The servers of one life."""

    def __init__(self, world: World, settings: MachineSettings, directory: Path) -> None:
        self.world, self._settings, self._directory = world, settings, directory
        self.rng = random.Random(f"{world.seed} servers")
        self.over = False
        """Set when the network is to lose nothing any more."""
        self._services: dict[str, tuple[Service, Process]] = {}
        """The servers by host, each with the process that it runs in: a host may have another one by now."""

    @asynccontextmanager
    async def serving(self, host: str, client: Client) -> AsyncIterator[Database]:
        """Serve the database at a host. Called in its process."""
        databases = _ServedDatabases(client, f"http://{host}:80", self._settings, self._directory)
        service = Service(
            databases,
            access=Everybody(),
            origins=Origins([host]),
            ca="",
            limits=_LIMITS,
            http_limits=HTTP_LIMITS,
            refused=lambda name, code: None,
        )
        try:
            await service.start()
            database = await databases.get(DATABASE)
            self._services[host] = service, self.world.processes[host]
            yield database
        finally:
            self._services.pop(host, None)
            await service.end_waiting()
            await service.close()

    def hosts(self) -> list[str]:
        """Return the hosts whose server runs."""
        return [host for host, (_, process) in self._services.items() if not process.dead]

    async def exchange(self, source: str, host: str, path: str, headers: Mapping[str, str], body: bytes) -> Sent:
        """Send a request from one host to the server of another. Raises Unreachable, Lost."""
        await self._travel(source, host)
        if host not in self.hosts() or self.world.fabric.blocked(source, host):
            raise Unreachable(f"{host} is not reached")
        service, process = self._services[host]
        if not self.over and self.rng.random() < _LOST_BEFORE:
            raise Lost(f"the request to {host} is lost")
        gone = asyncio.Event()
        try:
            work = _answer(service, self.world.report, host, path, headers, body, gone)
            answer = await self.world.join(process, work, "request")
        except Died:
            raise Lost(f"{host} dies") from None
        finally:
            if self.rng.random() < 0.5:
                gone.set()
        await self._travel(host, source)
        if self.world.fabric.blocked(host, source) or (not self.over and self.rng.random() < _LOST_AFTER):
            self.world.report.situation("an answer was lost on the network")
            raise Lost(f"the answer of {host} is lost")
        return answer

    async def _travel(self, source: str, target: str) -> None:
        await asyncio.sleep(self.rng.choice((0.0005, 0.002, 0.02)))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let servers pass requests on through this network, and be known by names that the seed decides."""
        ids = random.Random(f"{self.world.seed} ids of servers")

        async def ask(_: Forwarder, address: str, path: str, headers: Mapping[str, str], body: bytes) -> Sent:
            source, host = PROCESS.get(self.world.loop.world).name, urlsplit(address).hostname or ""
            self.world.report.situation("a request was passed on to the leader")
            try:
                return await self.exchange(source, host, path, {**headers, forwarding.FORWARDED: "1"}, body)
            except Unreachable as error:
                raise forwarding._NotYet from error

        named = SimpleNamespace(token_hex=lambda size: f"{ids.getrandbits(8 * size):0{2 * size}x}")
        with patched((Forwarder, "_ask", ask), (server_registry, "secrets", named)):
            yield


async def _answer(
    service: Service,
    report: Report,
    host: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    gone: asyncio.Event,
) -> Sent:
    """Answer a request, in the server's process."""

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    process = PROCESS.get()
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw, "query_string": b"", "server": (host, 80)}
    request = Request(scope, receive)
    try:
        found = parse_reading(unquote(path.removesuffix(f"/{PATH}").strip("/")))
        reading = found._replace(database=service.databases.find(found.database, ""))
        may_write = rights_left(True, request.headers)
        target = Target.of(reading, await anybody(request), may_write, PATH, request.headers)
        response = await service.post(request, target, body)
    except HttpProblem as problem:
        return Sent(problem.status, f"{problem.code}: {problem.message}".encode(), "", problem.headers)
    except Exception as error:  # A real server would answer with 500, and call it a bug.
        if process.dead:
            raise  # The life is over, and its coroutines are closed.
        report.check("served", False, "{} answers {} with an internal error: {!r}", host, path, error)
        return Sent(500, repr(error).encode(), "", {})
    report.check("served", True)
    return Sent(response.status_code, bytes(response.body), "", dict(response.headers))


__all__ = ["PATH", "Lost", "Servers", "Unreachable"]
