"""DatabaseServer: databases over HTTP by the Hrana protocol, versions 1 to 3 in JSON.

The path of a request is /NAMESPACE/DATABASE/v3/pipeline; `/shop/main@stale=5/...` reads this replica's state if it
lacks nothing older than 5 s, `@leader` without proof that nobody else leads. Other requests are the leader's: a server
that follows sends them on, and tells the client of a stream where to go (`base_url`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from buckram.cluster import Client
from buckram.config import TlsConfig
from buckram.core.security.required_permissions import NEEDS, Effect
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.serve.hrana.database_access import DatabaseAccess, Everybody, lacks_permission, may_change, watch
from buckram.serve.hrana.database_files import BACKUP, LOAD
from buckram.serve.hrana.databases import IDLE_S, Databases, Sees
from buckram.serve.hrana.forwarding import rights_left
from buckram.serve.hrana.limits import HTTP_LIMITS, HranaLimits
from buckram.serve.hrana.service import Service
from buckram.serve.hrana.targets import Reading, Target, parse_reading
from buckram.serve.http.application import Principal, application
from buckram.serve.http.body import limited_pieces, read_body
from buckram.serve.http.limits import HttpLimits, option_of
from buckram.serve.http.origins import Origins
from buckram.serve.http.problems import HttpProblem, json_answer
from buckram.serve.http.refusal_audit import Refusals, known_as
from buckram.serve.http.server import HttpServer, Listening, url_of
from buckram.state.db.settings import DatabaseLimits

_PATH = re.compile(r"/(?:(?P<database>.*)/)?(?P<version>v[123])/(?P<operation>pipeline|cursor|execute|batch)")
_SLASHES = re.compile("/+")
"""One is meant: some clients put one before their paths, and others do not."""
_OPERATIONS = {"v1": ("execute", "batch"), "v2": ("pipeline",), "v3": ("pipeline", "cursor")}


class DatabaseServer:
    """Serves databases on listening sockets, which it takes over. `async with` or start() and close()."""

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        listening: Listening,
        *,
        namespaces: Sequence[str] = (),
        advertise: str | None = None,
        access: DatabaseAccess | None = None,
        origins: Origins | None = None,
        tls: TlsConfig | None = None,
        ca: str = "",
        limits: HranaLimits | None = None,
        http_limits: HttpLimits = HTTP_LIMITS,
        database_limits: DatabaseLimits | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        """Serve `names` and all of `namespaces`. `idle_s`: a database of `namespaces` is closed after so many seconds
        without use.

        `access`: tokens and grants; None: every client may do everything. `tls`: certificate and key of this server;
        None: no TLS. `ca`: file of the authorities of other servers' certificates; default that of `tls`. `origins`:
        pages in browsers that may send requests; None: only those of this server.
        """
        files = None if tls is None else TlsFiles(tls, server_side=True)
        self.url = url_of(listening, "http" if files is None else "https")
        own = (advertise or self.url).rstrip("/")
        self._http_limits, limits = http_limits, limits or HranaLimits()
        self._access, self._origins = access or Everybody(), origins or Origins([urlsplit(own).hostname or ""])
        services = client.services
        self._refusals = Refusals(services.store, own, services.runtime.clock)
        self.service = Service(
            Databases(client, names, namespaces, announce=own, limits=database_limits, idle_s=idle_s),
            access=self._access,
            origins=self._origins,
            ca=ca or (tls.ca if tls is not None else ""),
            limits=limits,
            http_limits=http_limits,
            refused=self._refusals.count,
        )
        app = application(
            [
                Route("/health", self._health, methods=["GET"]),
                Route("/{path:path}", self._post, methods=["POST"]),
                Route("/{path:path}", self._put, methods=["PUT"]),
                Route("/{path:path}", self._get, methods=["GET"]),
                WebSocketRoute("/{path:path}", self.service.sockets.serve),
            ]
        )
        app.state.refusals = self._refusals
        self._http = HttpServer(app, listening, http_limits, files, message_bytes=limits.frame_bytes)

    async def start(self) -> None:
        """Open the databases and serve."""
        await self.service.start()
        await self._http.start()
        self._refusals.start()

    async def close(self) -> None:
        """Close idle streams, finish requests in progress, then close the databases. Idempotent."""
        await self.service.end_waiting()
        await self._http.close()
        await self.service.close()
        await self._refusals.close()

    @property
    def databases(self) -> Databases:
        """Those that are served."""
        return self.service.databases

    async def __aenter__(self) -> DatabaseServer:
        try:
            await self.start()
        except BaseException:
            await self.service.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def report(self, sees: Sees = lambda name: True) -> dict[str, Any]:
        """Return what is served and may be seen: open databases with role and offset, and namespaces."""
        opened = {name: one for name, one in self.databases.opened().items() if sees(name)}
        rows = {name: {"role": one.role, "offset": one.applied} for name, one in opened.items()}
        return {"databases": rows, "namespaces": list(filter(sees, self.databases.namespaces))}

    # -- requests -----------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        return json_answer(request, {"status": "ok"})

    async def _get(self, request: Request) -> Response:
        """Answer a GET: v2 and v3 succeed and v3-protobuf does not, by which clients choose a version; a backup; /
        reports what is served.
        """
        *before, last = request.url.path.rstrip("/").split("/")
        if last in ("v1", "v2", "v3"):
            return json_answer(request, {"version": last})
        if last == BACKUP:
            reading, principal, _ = await self._asked(request, "/".join(before).strip("/"))
            over = watch(self._access, request, principal, "read", reading.database)
            return await self.service.backup(reading, principal, over)
        if before or last:
            raise HttpProblem(
                404, "NOT_FOUND", f"{request.url.path}: GET is served for /, /health, /DATABASE/v3 and /DATABASE/backup"
            )
        self._origins.check(request)
        allowed = self._access.allowed(await self._access.authenticate(request))
        return json_answer(request, self.report(lambda name: bool(allowed(name))))

    async def _put(self, request: Request) -> Response:
        """A file that is loaded into an empty database."""
        *before, last = request.url.path.rstrip("/").split("/")
        if last != LOAD:
            raise HttpProblem(404, "NOT_FOUND", f"PUT {request.url.path}: served is /DATABASE/load")
        reading, principal, may_write = await self._asked(request, "/".join(before).strip("/"))
        if not may_write:
            raise lacks_permission(principal, sorted(NEEDS[Effect.WRITE]), reading.database)

        def pieces(most: int) -> AsyncIterator[bytes]:
            do = f"load it with `buckram db restore` ({option_of('load_bytes')})"
            return limited_pieces(request, self._http_limits, most, do=do)

        over = watch(self._access, request, principal, "append", reading.database)
        return await self.service.load(request, reading, principal, pieces, over)

    async def _asked(self, request: Request, wanted: str) -> tuple[Reading, Principal, bool]:
        """Return the database that is meant, the sender, and whether it may write. Raises HttpProblem."""
        self._origins.check(request)
        principal = await self._access.authenticate(request)
        known_as(request, principal)
        reading = parse_reading(wanted or request.headers.get("buckram-database", ""))
        allowed, host = self._access.allowed(principal), request.headers.get("host", "")
        name = self.databases.find(reading.database, host, lambda name: bool(allowed(name)))
        may_write = rights_left(may_change(self._access, principal, name), request.headers)
        return reading._replace(database=name), principal, may_write

    async def _post(self, request: Request) -> Response:
        target = await self._target(request)
        body = await read_body(request, self._http_limits)
        return await self.service.post(request, target, body)

    async def _target(self, request: Request) -> Target:
        found = _PATH.fullmatch(_SLASHES.sub("/", request.scope["path"]))
        if found is None or found["operation"] not in _OPERATIONS[found["version"]]:
            raise HttpProblem(
                404,
                "NOT_FOUND",
                f"POST {request.url.path}: served are /DATABASE/v3/pipeline, v3/cursor, v2/pipeline, v1/execute and "
                "v1/batch",
            )
        reading, principal, may_write = await self._asked(request, found["database"] or "")
        path = f"{found['version']}/{found['operation']}"
        target = Target.of(reading, principal, may_write, path, request.headers)
        if found["operation"] != "cursor":
            return target
        return target._replace(over=watch(self._access, request, principal, "read", reading.database))


__all__ = ["HTTP_LIMITS", "DatabaseServer"]
