"""Gateway: one process at one port: streams, ledgers, objects, databases, the cluster's administration, the console.

This module assembles its parts; docs/explanation/gateway.md says how they work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from buckram.cluster import Client
from buckram.config import TlsConfig
from buckram.core.streams.external.history import OffloadPlaces
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.serve.gateway.administration.cluster_pages import ClusterPages, History
from buckram.serve.gateway.administration.maintenance_pages import MaintenancePages
from buckram.serve.gateway.administration.namespace_pages import NamespacePages
from buckram.serve.gateway.administration.security_pages import SecurityPages, SessionPages
from buckram.serve.gateway.console_pages import ConsolePages
from buckram.serve.gateway.database_pages import DatabasePages, HranaPages
from buckram.serve.gateway.dispatch import Dispatcher
from buckram.serve.gateway.objects.object_calls import ObjectCalls, OpenObjects
from buckram.serve.gateway.objects.object_pages import ObjectPages
from buckram.serve.gateway.objects.removal_pages import RemovalPages
from buckram.serve.gateway.objects.upload_pages import UploadPages
from buckram.serve.gateway.openapi import PATH, document
from buckram.serve.gateway.shared.authentication import Access, Sessions, is_local
from buckram.serve.gateway.shared.gateway_registry import Peers
from buckram.serve.gateway.shared.idempotency import Repeats
from buckram.serve.gateway.shared.job_pages import JOBS, JobPages
from buckram.serve.gateway.shared.limits import HTTP_LIMITS, GatewayLimits
from buckram.serve.gateway.shared.memory_budget import MemoryBudget
from buckram.serve.gateway.shared.operations import SQL, OperationGroup
from buckram.serve.gateway.streams.ledger_pages import LedgerPages
from buckram.serve.gateway.streams.record_pages import RecordPages
from buckram.serve.gateway.streams.stream_pages import StreamPages
from buckram.serve.gateway.streams.tails import Tails
from buckram.serve.gateway.streams.writers import Writers
from buckram.serve.hrana.databases import Databases
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.service import Service
from buckram.serve.http.application import application
from buckram.serve.http.limits import HttpLimits
from buckram.serve.http.origins import Origins
from buckram.serve.http.refusal_audit import Refusals
from buckram.serve.http.server import HttpServer, Listening, url_of
from buckram.serve.http.tokens import ClusterTokens
from buckram.serve.operations.jobs import Jobs
from buckram.serve.operations.registry import Registry
from buckram.serve.webhdfs.access import RequestAuthenticator
from buckram.serve.webhdfs.server import WebHdfs
from buckram.state.db.settings import DatabaseLimits
from buckram.streams.shared.locations import confined


class Gateway:
    """Serves a cluster on listening sockets, which it takes over. `async with` or start() and close()."""

    def __init__(
        self,
        client: Client,
        listening: Listening,
        *,
        advertise: str | None = None,
        tokens: ClusterTokens | None = None,
        open_to_all: bool = False,
        hosts: Sequence[str] = (),
        pages: Sequence[str] = (),
        tls: TlsConfig | None = None,
        ca: str = "",
        history: OffloadPlaces | None = None,
        limits: GatewayLimits | None = None,
        http_limits: HttpLimits = HTTP_LIMITS,
        hrana_limits: HranaLimits | None = None,
        database_limits: DatabaseLimits | None = None,
    ) -> None:
        """Serve `client`'s cluster. `advertise`: address by which clients and other gateways reach this one; default
        its own. `tokens`: authentication; None: whoever is on this machine may do everything, others may read, or do
        everything as well (`open_to_all`). `hosts`, `pages`: names of this gateway, and origins of pages that may use
        it. `tls`: its certificate and key; None: no TLS. `ca`: file of the authorities for certificates of other
        leaders of databases; default that of `tls`. `history`: places to which policies of tenants may have offloaded
        streams; None: anywhere without `tokens`, nowhere with them.
        """
        files = None if tls is None else TlsFiles(tls, server_side=True)
        if history is None and tokens is not None:
            history = OffloadPlaces({})
        self._away = None if history is None else history.why_not_read
        self.url = url_of(listening, "http" if files is None else "https")
        own = (advertise or self.url).rstrip("/")
        limits, hrana_limits = limits or GatewayLimits(), hrana_limits or HranaLimits()
        origins = Origins([*hosts, urlsplit(own).hostname or ""], pages)
        sessions = Sessions(limits, client.services.runtime.clock)
        self.room = room = MemoryBudget(limits.buffered_bytes)
        access = Access(tokens, sessions, origins, open_to_all=open_to_all)
        self.peers = Peers(client.services.store, own)
        self.writers = Writers(client, self.peers, limits)
        self.tails = Tails(client, limits)
        self.objects = OpenObjects(client, limits, self.peers.sign)
        calls = ObjectCalls(self.objects, limits)
        self._refusals = Refusals(client.services.store, own, client.services.runtime.clock)
        most = limits.databases
        self.sql = Service(
            Databases(client, (), (), announce=own + SQL, limits=database_limits, most_open=most, everything=True),
            access=access,
            origins=origins,
            ca=ca or (tls.ca if tls is not None else ""),
            limits=hrana_limits,
            http_limits=http_limits,
            refused=self._refusals.count,
        )
        self._jobs, self._repeats, self._history = Jobs(JOBS), Repeats(limits), History(client)
        self._cluster = ClusterPages(client, self.peers, self._history)
        self.parts: Sequence[OperationGroup] = (
            RecordPages(client, self.writers, self.tails, room, limits),
            StreamPages(client, self.writers),
            DatabasePages(client, limits),
            statements := HranaPages(self.sql, room, limits),
            ObjectPages(calls, room, limits),
            UploadPages(calls),
            RemovalPages(calls, self._jobs),
            LedgerPages(client, self.writers, room, limits),
            NamespacePages(client),
            self._cluster,
            MaintenancePages(client, self._jobs),
            JobPages(self._jobs),
            SecurityPages(client, enabled=tokens is not None),
            SessionPages(access, sessions, secure=files is not None or urlsplit(own).scheme == "https"),
        )
        traces = client.services.runtime.traces
        dispatcher = Dispatcher(access, self._repeats, room, http_limits, self.peers.me.id, traces)
        routes = [
            Route(path, dispatcher.endpoint(one), methods=[one.method])
            for one in Registry(self.parts)
            for path in one.routes
        ]
        self._document = json.dumps(document(self.parts)).encode()
        door = RequestAuthenticator(tokens, origins, is_local=is_local, open_to_all=open_to_all)
        self.files = WebHdfs(client, door, self.objects.shelf, scheme=urlsplit(own).scheme)
        more = [*statements.sockets(), *self.files.routes(), *ConsolePages(origins).routes()]
        app = application([*routes, Route(PATH, self._openapi, methods=["GET"]), *more])
        app.state.refusals = self._refusals
        self._http = HttpServer(app, listening, http_limits, files, message_bytes=hrana_limits.frame_bytes)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._http.connections

    async def start(self) -> None:
        """Serve, and be known to the other gateways of the cluster."""
        with confined(self._away):
            await self._http.start()
        await self.sql.start()
        await self.peers.start()
        self._history.start()
        self._refusals.start()

    async def close(self) -> None:
        """End the tails, answer requests in progress, then seal what was written. Idempotent.

        Clients of tails resume with Last-Event-ID, here or at another gateway.
        """
        await self._history.close()
        await self.tails.close()
        await self.sql.end_waiting()
        await self._http.close()
        await self._repeats.close()
        await self._jobs.close()
        await self._cluster.close()
        await self.writers.close()
        await self.sql.close()
        await self.objects.close()
        await self._refusals.close()
        await self.peers.close()

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _openapi(self, request: Request) -> Response:
        return Response(self._document, 200, {"Cache-Control": "no-cache"}, "application/json")
