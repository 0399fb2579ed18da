"""DatabaseServer: databases over HTTP by the Hrana protocol, versions 1 to 3 in JSON.

The path of a request is /NAMESPACE/DATABASE/v3/pipeline; `/shop/main@stale=5/...` reads this replica's state if it
lacks nothing older than 5 s, `@leader` without proof that nobody else leads. Other requests are the leader's: a server
that follows sends them on, and tells the client of a stream where to go (`base_url`).
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from buckram.client.client import Client
from buckram.config import TlsConfig
from buckram.core.hrana.requests import Batch, parse_batch, parse_cursor, parse_pipeline, parse_stmt
from buckram.core.hrana.values import Malformed
from buckram.db.database import Database
from buckram.db.settings import DatabaseLimits
from buckram.errors import BuckramError
from buckram.hrana.databases import IDLE_S, Databases
from buckram.hrana.failures import EXPECTED, error_of
from buckram.hrana.forwarding import FORWARDED, Forwarder
from buckram.hrana.limits import HranaLimits
from buckram.hrana.pipeline import Pipeline, SendOn
from buckram.hrana.streams import Stream, Streams
from buckram.http.application import Authenticate, Principal, anybody, application
from buckram.http.body import read_body, while_connected
from buckram.http.limits import MIB, HttpLimits
from buckram.http.origins import Origins
from buckram.http.problems import HttpProblem, json_answer
from buckram.http.server import HttpServer, url_of
from buckram.machine.machine import Consistency
from buckram.net.tls_files import TlsFiles
from buckram.sql.session import Session

_PATH = re.compile(r"/(?:(?P<database>.*)/)?(?P<version>v[123])/(?P<operation>pipeline|cursor|execute|batch)")
_SLASHES = re.compile("/+")
"""One is meant: some clients put one before their paths, and others do not."""
_OPERATIONS = {"v1": ("execute", "batch"), "v2": ("pipeline",), "v3": ("pipeline", "cursor")}
_READING = re.compile(r"(?P<name>.*)@(?P<how>leader|stale)(?:=(?P<seconds>\d{1,5}(?:\.\d{1,6})?))?")
_PASSED_ON = ("authorization",)
HTTP_LIMITS = HttpLimits(body_bytes=32 * MIB)

Authorize = Callable[[Principal, str], Awaitable[bool]]
"""Whether a principal may change a database, and not only read it. Raises HttpProblem 403 if it may not even that."""


async def allow(principal: Principal, database: str) -> bool:
    """Everybody may use every database."""
    return True


class Target(NamedTuple):
    """What a request is for."""

    database: str
    """Its full name."""
    consistency: Consistency
    at_most_s: float | None
    principal: Principal
    may_write: bool
    path: str
    """The version and the operation: v3/pipeline."""

    @property
    def key(self) -> str:
        """What a stream belongs to: a baton is good for the database and the kind of reads it was made for."""
        return f"{self.database}@{self.consistency}={self.at_most_s}/{self.may_write}"

    @property
    def address(self) -> str:
        """The path of the database at a leader."""
        return quote(f"{self.database}@leader" if self.consistency == "leader" else self.database)


class DatabaseServer:
    """Serves databases on a listening socket, which it takes over. `async with` or start() and close()."""

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        listening: socket.socket,
        *,
        namespaces: Sequence[str] = (),
        advertise: str | None = None,
        authenticate: Authenticate = anybody,
        authorize: Authorize = allow,
        origins: Origins | None = None,
        tls: TlsConfig | None = None,
        limits: HranaLimits | None = None,
        http_limits: HttpLimits = HTTP_LIMITS,
        database_limits: DatabaseLimits | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        """`idle_s`: a database of `namespaces` that nobody used for so long is closed until somebody asks for it.

        `tls`: certificate and key of this server, and whose certificates other servers of its databases have (`ca`);
        None: no TLS. `origins`: which pages in browsers may send requests; None: those that it serves itself."""
        files = None if tls is None else TlsFiles(tls, server_side=True)
        self.url = url_of(listening, "http" if files is None else "https")
        own = (advertise or self.url).rstrip("/")
        self.databases = Databases(client, names, namespaces, announce=own, limits=database_limits, idle_s=idle_s)
        self._limits, self._http_limits = limits or HranaLimits(), http_limits
        self._authenticate, self._authorize = authenticate, authorize
        self.streams = Streams(self._limits)
        others = TlsConfig("required") if tls is None else TlsConfig("required", tls.ca)
        self._forwarder = Forwarder(own, self._limits, TlsFiles(others, server_side=False).context)
        self._origins = origins or Origins([urlsplit(own).hostname or ""])
        app = application(
            [
                Route("/health", self._health, methods=["GET"]),
                Route("/{path:path}", self._post, methods=["POST"]),
                Route("/{path:path}", self._get, methods=["GET"]),
            ]
        )
        self._http = HttpServer(app, listening, http_limits, files)

    async def start(self) -> None:
        """Open the databases and serve."""
        await self.databases.start()
        await self._http.start()

    async def close(self) -> None:
        """Close streams that wait, serve what has begun, then close the databases. Idempotent."""
        await self.streams.close_idle()
        await self._http.close()
        await self.streams.close()
        await self._forwarder.close()
        await self.databases.close()

    async def __aenter__(self) -> DatabaseServer:
        try:
            await self.start()
        except BaseException:
            await self.databases.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def report(self) -> dict[str, Any]:
        """What is served: open databases with role and offset, and namespaces."""
        opened = {name: {"role": one.role, "offset": one.applied} for name, one in self.databases.opened().items()}
        return {"databases": opened, "namespaces": list(self.databases.namespaces)}

    # -- requests -----------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        return json_answer(request, {"status": "ok"})

    async def _get(self, request: Request) -> Response:
        """Which versions there are: GET v2 and GET v3 succeed, GET v3-protobuf does not. / shows what is served."""
        *before, last = request.url.path.rstrip("/").split("/")
        if last in ("v1", "v2", "v3"):
            return json_answer(request, {"version": last})
        if before or last:
            raise HttpProblem(404, "NOT_FOUND", f"{request.url.path}: GET is served for /, /health and /DATABASE/v3")
        self._origins.check(request)
        await self._authenticate(request)
        return json_answer(request, self.report())

    async def _post(self, request: Request) -> Response:
        target = await self._target(request)
        body = await read_body(request, self._http_limits)
        return await while_connected(request, self._answer(request, target, body))

    async def _target(self, request: Request) -> Target:
        found = _PATH.fullmatch(_SLASHES.sub("/", request.scope["path"]))
        if found is None or found["operation"] not in _OPERATIONS[found["version"]]:
            raise HttpProblem(
                404,
                "NOT_FOUND",
                f"POST {request.url.path}: served are /DATABASE/v3/pipeline, v3/cursor, v2/pipeline, v1/execute and "
                "v1/batch",
            )
        self._origins.check(request)
        principal = await self._authenticate(request)
        wanted = found["database"] or request.headers.get("buckram-database", "")
        reading = _READING.fullmatch(wanted)
        name = self.databases.find(reading["name"] if reading else wanted, request.headers.get("host", ""))
        may_write = await self._authorize(principal, name)
        consistency: Consistency = "linearizable"
        if reading:
            consistency = "leader" if reading["how"] == "leader" else "stale"
        seconds = None if reading is None or reading["seconds"] is None else float(reading["seconds"])
        path = f"{found['version']}/{found['operation']}"
        at_most_s = seconds if consistency == "stale" else None
        return Target(name, consistency, at_most_s, principal, may_write, path)

    async def _answer(self, request: Request, target: Target, body: bytes) -> Response:
        try:
            raw = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HttpProblem(400, "PROTOCOL_ERROR", f"the body is not JSON: {error}") from None
        try:
            use = await self.databases.take(target.database)
            try:
                return await self._execute(request, target, use.database, raw, body)
            except SendOn:
                return await self._send_on(request, target, use.database, raw, body)
            finally:
                use.give()
        except Malformed as error:
            raise HttpProblem(400, "PROTOCOL_ERROR", str(error)) from None
        except BuckramError as error:
            problem = error_of(error)
            raise HttpProblem(503 if error.retryable else 500, problem["code"], problem["message"]) from error

    async def _execute(self, request: Request, target: Target, database: Database, raw: Any, body: bytes) -> Response:
        baton = raw.get("baton") if isinstance(raw, dict) else None
        here = isinstance(baton, str) and self.streams.knows(baton)
        if not here and target.consistency != "stale" and database.role != "leader":
            return await self._send_on(request, target, database, raw, body)

        def session() -> Session:
            return Session(
                database, consistency=target.consistency, at_most_s=target.at_most_s, may_write=target.may_write
            )

        if target.path.startswith("v1/"):
            return await self._version_1(request, target, session(), raw)
        if target.path.endswith("/cursor"):
            asked = parse_cursor(raw)
            stream = await self._stream(asked.baton, session, target)
            return StreamingResponse(self._cursor(stream, asked.batch), media_type="application/json")
        pipeline = parse_pipeline(raw)
        stream = await self._stream(pipeline.baton, session, target)
        try:
            results = await Pipeline(stream, self._limits, fresh=pipeline.baton is None).run(pipeline.requests)
        except BaseException:
            await self.streams.drop(stream)
            raise
        answer = {"baton": self.streams.baton(stream), "base_url": None, "results": results}
        await self.streams.release(stream)
        return json_answer(request, answer)

    async def _stream(self, baton: str | None, session: Callable[[], Session], target: Target) -> Stream:
        if baton is not None:
            return self.streams.take(baton, target.key, target.principal)
        self.streams.check_room()
        return self.streams.open(session(), target.key, target.principal, await self.databases.take(target.database))

    async def _cursor(self, stream: Stream, batch: Batch) -> AsyncIterator[bytes]:
        """Lines of JSON. The stream takes the next request when they have all been sent."""
        ended = False
        try:
            yield _line({"baton": self.streams.baton(stream), "base_url": None})
            try:
                async for entry in Pipeline(stream, self._limits, fresh=False).entries(batch):
                    yield _line(entry)
            except EXPECTED as error:
                yield _line({"type": "error", "error": error_of(error)})
            ended = True
        finally:
            # Who is cancelled here may not wait.
            self.streams.finish(stream, closed=not ended)

    async def _version_1(self, request: Request, target: Target, session: Session, raw: Any) -> Response:
        """One statement or batch without a stream. The error of a statement is an error of HTTP."""
        stream = Stream(0, session, target.key, target.principal)
        pipeline = Pipeline(stream, self._limits, fresh=True)
        try:
            if not isinstance(raw, dict):
                raise Malformed("the body: needs an object")
            if target.path == "v1/batch":
                return json_answer(request, {"result": await pipeline.batch(parse_batch(raw.get("batch"), "batch"))})
            stmt = parse_stmt(raw.get("stmt"), "stmt")
            try:
                return json_answer(request, {"result": await pipeline.execute(stmt)})
            except EXPECTED as error:
                return json_answer(request, error_of(error), 400)
        finally:
            await session.close()

    async def _send_on(self, request: Request, target: Target, database: Database, raw: Any, body: bytes) -> Response:
        """Let the leader answer. What was sent on once is not sent on again: whoever did so looks for the leader."""
        if FORWARDED in request.headers:
            raise HttpProblem(421, "NOT_LEADER", f"this server does not lead database {target.database}")
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        found = await self._forwarder.send(database, f"/{target.address}/{target.path}", headers, body)
        if found is None:
            return await self._execute(request, target, database, raw, body)
        status, answer, address = found
        if status == 200 and not target.path.startswith("v1/"):
            answer = _with_base_url(answer, f"{address.rstrip('/')}/{target.address}/")
        return Response(answer, status, media_type="application/json")


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _with_base_url(answer: bytes, url: str) -> bytes:
    """Tell the client of a stream to go to the leader itself from now on."""
    first, newline, rest = answer.partition(b"\n")
    head = json.loads(first)
    if head.get("baton") is None or head.get("base_url") is not None:
        return answer
    return _line({**head, "base_url": url}).rstrip(b"\n") + newline + rest


__all__ = ["HTTP_LIMITS", "Authorize", "DatabaseServer", "allow"]
