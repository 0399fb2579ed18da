"""The client's side of HTTP in the simulated network: a request on a connection of its own, whose answer may be lost.

Not here: what is asked, and when it is asked again (`appending.py`, `following.py`, `filing.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

from buckram.seams import Network
from simulator.gateways.serving import PORT
from simulator.gateways.stage import Stage

GATEWAY, KEY, OUTCOME = "buckram-gateway", "idempotency-key", "buckram-outcome"
REDIRECTS = 5
"""Redirects that a client follows, one after the other."""


class Lost(Exception):
    """No whole answer came. `sent`: the request, or a part of it, may have reached the gateway."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Answer(NamedTuple):
    """A whole answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.status} {self.body[:160]!r}"

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else {}

    @property
    def code(self) -> str:
        """The code of an error of /v2; empty if there is none."""
        try:
            found = self.json
        except ValueError:
            return ""
        return str(found.get("code", "")) if isinstance(found, dict) else ""

    @property
    def unknown(self) -> bool:
        """Return whether an error says that its outcome is unknown."""
        return self.headers.get(OUTCOME) == "unknown"


class _Incoming(asyncio.Protocol):
    """Parses an answer as it comes."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status, self.headers = 0, dict[str, str]()
        self.pieces: list[bytes] = []
        self.whole = self.begun = False
        self.error = ""
        self.changed = asyncio.Event()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status, self.begun = self.parser.get_status_code(), True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.whole = True

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.error = f"no HTTP: {error!r} in {data[:80]!r}"
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = self.error or f"the connection ended: {exc!r}"
        self.changed.set()


class Asker:
    """Asks gateways from one host."""

    def __init__(self, stage: Stage, host: str, rng: random.Random) -> None:
        self.stage, self.world, self.host, self.rng = stage, stage.world, host, rng
        self.only = ""
        """The gateway to ask; empty: any."""

    @property
    def network(self) -> Network:
        return self.world.fabric.face(self.world.loop.world, self.host)

    def choose(self) -> str:
        """Return the host of a gateway, which may be dead."""
        return self.only or self.rng.choice(self.stage.gateways.gateway_hosts)

    async def ask(
        self,
        gateway: str,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        within_s: float = 40.0,
        fate: str = "",
    ) -> Answer:
        """Return the answer. `fate`: `cut` sends a part of the body only, `leave` does not wait for the answer.

        Raises Lost.
        """
        async with self._sent(gateway, method, target, headers or {}, body, fate) as incoming:
            await self._until(incoming, lambda: incoming.whole, within_s)
            answer = Answer(incoming.status, incoming.headers, b"".join(incoming.pieces))
        bug = answer.status == 500 and answer.code in ("", "INTERNAL_ERROR")
        self.world.report.check("answers", not bug, "{} {} at {} is answered {}", method, target, gateway, answer)
        return answer

    @asynccontextmanager
    async def _sent(
        self, gateway: str, method: str, target: str, headers: Mapping[str, str], body: bytes, fate: str
    ) -> AsyncIterator[_Incoming]:
        """Send a request; the connection ends with the block."""
        try:
            async with asyncio.timeout(3.0):
                transport, incoming = await self.network.connect(gateway, PORT, _Incoming)
        except (OSError, TimeoutError) as error:
            raise Lost(f"no connection to {gateway}: {error!r}", sent=False) from None
        assert isinstance(incoming, _Incoming)
        changes = int(method != "GET")
        self.stage.waiting[gateway] += 1
        self.stage.appending[gateway] += changes
        try:
            said = {"host": f"{gateway}:{PORT}", **headers}
            if body or method in ("POST", "PUT"):
                said["content-length"] = str(len(body))
            head = "".join(
                [f"{method} {target} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in said.items())]
            )
            transport.write(f"{head}\r\n".encode() + (body[: self.rng.randrange(len(body))] if fate == "cut" else body))
            if fate:
                await self._gives_up(fate)
            yield incoming
        finally:
            self.stage.waiting[gateway] -= 1
            self.stage.appending[gateway] -= changes
            transport.abort()

    async def _gives_up(self, fate: str) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.003, 0.05, 0.5)) * self.rng.random())
        self.world.report.situation("a body was cut" if fate == "cut" else "a client left before its answer")
        raise Lost(f"the client leaves: {fate}", sent=True)

    async def _until(self, incoming: _Incoming, done: Any, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not done():
                    if incoming.error:
                        self.world.report.situation("an answer was lost")
                        no_http = incoming.error.startswith("no HTTP")
                        self.world.report.check("answers", not no_http, "{}", incoming.error)
                        raise Lost(incoming.error, sent=True)
                    incoming.changed.clear()
                    await incoming.changed.wait()
        except TimeoutError:
            raise Lost(f"no answer within {within_s:g} s", sent=True) from None

    @asynccontextmanager
    async def following(self, gateway: str, target: str, headers: Mapping[str, str]) -> AsyncIterator[_Incoming]:
        """Ask for an answer that comes in pieces for ever; its head has come. Raises Lost."""
        async with self._sent(gateway, "GET", target, headers, b"", "") as incoming:
            await self._until(incoming, lambda: incoming.begun, 20.0)
            yield incoming

    async def more(self, incoming: _Incoming, within_s: float) -> bytes:
        """Return what has come of such an answer; empty at its end. Raises Lost."""
        await self._until(incoming, lambda: bool(incoming.pieces) or incoming.whole, within_s)
        found = b"".join(incoming.pieces)
        incoming.pieces.clear()
        return found


class Caller:
    """A client whose calls are drawn from `acts`, which have weights, as many as the plan says."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.histories, self.host = stage, stage.world, stage.rules.histories, host
        self.rng = random.Random(f"{stage.plan.seed} gateways {host}")
        self.asker = Asker(stage, host, self.rng)
        self.acts: list[tuple[float, Callable[[], Awaitable[None]]]] = []
        self._serial = 0

    async def run(self) -> None:
        weights = [weight for weight, _ in self.acts]
        for _ in range(self.stage.gateways.calls):
            if self.stage.over:
                return
            (act,) = self.rng.choices([act for _, act in self.acts], weights)
            await act()
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.01, 0.2, 0.8)))


def place_of(url: str) -> tuple[str, str]:
    """Return the host and the target of an absolute URL."""
    parts = urlsplit(url)
    return str(parts.hostname), parts.path + (f"?{parts.query}" if parts.query else "")


__all__ = ["GATEWAY", "KEY", "OUTCOME", "REDIRECTS", "Answer", "Asker", "Caller", "Lost", "place_of"]
