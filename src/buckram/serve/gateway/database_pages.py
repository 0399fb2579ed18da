"""SQL databases of namespaces: their leaders and followers, databases as files of SQLite's, and statements.

Statements come by libSQL's protocol, Hrana: a client's URL is SQL/NAMESPACE/DATABASE, at any gateway. The gateway
executes them where it leads the database, and forwards them to the leader otherwise. Not here: what `serve/hrana` does
for `buckram db serve` as well, which is everything but paths and descriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, WebSocketRoute

from buckram.cluster import Client
from buckram.core.security.required_permissions import Effect, lacking
from buckram.core.streams.names import stream_name
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.shared.memory_budget import MemoryBudget, PageAnswer
from buckram.serve.gateway.shared.operations import AFTER, LIMIT, SQL, Ask, Operation, Parameter, granted_name
from buckram.serve.gateway.streams.stream_pages import streams_seen
from buckram.serve.hrana.database_files import BACKUP, LOAD
from buckram.serve.hrana.execution import OF_STATE
from buckram.serve.hrana.forwarding import rights_left
from buckram.serve.hrana.service import Service
from buckram.serve.hrana.targets import Reading, Target, parse_reading
from buckram.serve.http.problems import HttpProblem
from buckram.serve.http.spooled_files import NOT_LOADED, SQLITE, Folder, Transfers, file_answer, kept
from buckram.serve.http.streamed_answers import PiecesAnswer, while_allowed
from buckram.serve.json_views.databases import database_json, database_shown
from buckram.state.db.commits.database_log import is_database

_DATABASE = SQL + "/{namespace}/{database}"
_HEADERS = {
    "Buckram-Token": "The same token again: what the request changes is done once.",
    "Buckram-After": "A read of a replica (`@stale`) sees everything below this offset of the log.",
}
_JSON = {"application/json": "a request of Hrana"}
_RESULTS = schema.record(
    baton=schema.or_null(schema.TEXT),
    base_url=schema.or_null(schema.TEXT),
    results=schema.array(schema.record(more=True)),
)
_RESULT = schema.record(result=schema.record(more=True))
_LINES = {"application/json": "a JSON object a line: the baton, then the entries"}
_POSTS: Sequence[tuple[str, str, str, schema.Schema, Mapping[str, str]]] = (
    ("runPipeline", "v3/pipeline", "Execute statements on a stream, by Hrana 3 in JSON", _RESULTS, {}),
    ("openCursor", "v3/cursor", "Execute a batch, whose rows come as they are read, by Hrana 3", {}, _LINES),
    ("runPipelineV2", "v2/pipeline", "Execute statements on a stream, by Hrana 2", _RESULTS, {}),
    ("executeStatement", "v1/execute", "Execute one statement, by Hrana 1", _RESULT, {}),
    ("executeBatch", "v1/batch", "Execute one batch, by Hrana 1", _RESULT, {}),
)


class HranaPages:
    """Statements for all databases of the cluster. `append` on a database decides whether they may change it."""

    title = "Statements of SQL"

    def __init__(self, service: Service, room: MemoryBudget, limits: GatewayLimits) -> None:
        self._service, self._room, self._limits = service, room, limits

    def operations(self) -> Sequence[Operation]:
        posts = (
            Operation(
                name,
                "POST",
                f"{_DATABASE}/{path}",
                f"{what}; to change something also takes `append`.",
                "read",
                self._post,
                answer,
                takes=_JSON,
                gives=gives,
                headers=_HEADERS,
                statements=True,
            )
            for name, path, what, answer, gives in _POSTS
        )
        return (
            *posts,
            Operation(
                "backupReplica",
                "GET",
                f"{_DATABASE}/{BACKUP}",
                "Get the state of this gateway's replica of a database, with all commits, as a file of SQLite's.",
                "read",
                self._backup,
                {},
                gives={SQLITE: "the file; the header Buckram-Offset says below which offset everything is in it"},
                statements=True,
            ),
            Operation(
                "fillDatabase",
                "PUT",
                f"{_DATABASE}/{LOAD}",
                "Fill a database that has nothing in it with a file of SQLite's.",
                "append",
                self._load,
                schema.record(database=schema.TEXT, bytes=schema.COUNT, offset=schema.COUNT),
                201,
                takes={SQLITE: "the file; any other media type is accepted, too"},
                streamed=True,
                statements=True,
            ),
            Operation(
                "showHranaVersion",
                "GET",
                f"{_DATABASE}/{{version}}",
                "Tell whether a version of Hrana is served: v1, v2 and v3 are, in JSON.",
                "nothing",
                self._version,
                schema.record(version=schema.one_of("v1", "v2", "v3")),
                statements=True,
            ),
        )

    def sockets(self) -> Sequence[BaseRoute]:
        """Routes of WebSockets."""
        return (WebSocketRoute(f"{SQL}/{{path:path}}", self._service.sockets.serve),)

    async def _post(self, ask: Ask) -> Response:
        path = "/".join(ask.request.scope["path"].split("/")[-2:])
        target = Target.of(self._reading(ask), ask.principal, self._may_change(ask), path, ask.request.headers)
        if path.endswith("/cursor"):
            target = target._replace(over=ask.watch("read", target.reading.database))
        answer = await self._service.post(ask.request, target, ask.raw)
        if isinstance(answer, StreamingResponse):
            return answer
        # What was executed is answered, also where no room is left; whoever comes next waits until it is taken.
        held = self._room.held(ask.holder)
        held.count(len(answer.body))
        more = {name: answer.headers[name] for name in OF_STATE if name in answer.headers}
        stuck_s, status = self._limits.stuck_s, answer.status_code
        return PageAnswer(bytes(answer.body), more, answer.media_type, held, stuck_s, status=status)

    async def _backup(self, ask: Ask) -> Response:
        reading = self._reading(ask)
        return await self._service.backup(reading, ask.principal, ask.watch("read", reading.database))

    async def _load(self, ask: Ask) -> Response:
        reading = self._reading(ask)
        over = ask.watch("append", reading.database)
        return await self._service.load(ask.request, reading, ask.principal, ask.pieces, over)

    async def _version(self, ask: Ask) -> dict[str, Any]:
        version = ask.path["version"]
        if version not in ("v1", "v2", "v3"):
            raise HttpProblem(404, "NOT_FOUND", f"{version[:60]!r} is not served: v1, v2 and v3 of Hrana are, in JSON")
        return {"version": version}

    def _reading(self, ask: Ask) -> Reading:
        reading = parse_reading(f"{ask.path['namespace']}/{ask.path['database']}")
        return reading._replace(database=self._service.databases.find(reading.database, ""))

    def _may_change(self, ask: Ask) -> bool:
        lacks = lacking(Effect.WRITE, ask.allowed(granted_name(ask.path, statements=True)))
        return rights_left(not lacks, ask.request.headers)


DATABASES = "/v2/namespaces/{namespace}/databases"
_BACKUP = DATABASES + "/{database}/backup"
_AT = (
    Parameter("offset", "The state below this offset of its log.", schema.COUNT),
    Parameter("time", "The state of what was committed before this moment, in microseconds UTC.", schema.WHOLE),
)
_ROW = schema.record(
    database=schema.TEXT,
    leader=schema.or_null(schema.TEXT),
    offset=schema.COUNT,
    earliest=schema.COUNT,
    created=schema.WHOLE,
    cdc=schema.YES_OR_NO,
)
_FOLLOWER = schema.record(id=schema.TEXT, offset=schema.COUNT)
_SNAPSHOT = schema.record(offset=schema.COUNT, bytes=schema.COUNT, time=schema.WHOLE)
_MADE = schema.record(
    uid=schema.TEXT,
    place=schema.TEXT,
    file=schema.TEXT,
    offset=schema.COUNT,
    bytes=schema.COUNT,
    sha256=schema.TEXT,
    time=schema.WHOLE,
)
_MORE = schema.record(
    followers=schema.array(_FOLLOWER),
    snapshots=schema.array(_SNAPSHOT),
    backup=schema.or_null(_MADE),
    backup_trouble=schema.TEXT,
)


class DatabasePages:
    """The databases of the cluster."""

    title = "Databases"

    def __init__(self, client: Client, limits: GatewayLimits) -> None:
        self._client, self._limits = client, limits
        self._transfers = Transfers(
            "backups and loads of databases",
            limits.database_files,
            option="database_files",
            do="try later, or at another gateway",
        )

    def operations(self) -> Sequence[Operation]:
        rows = schema.record(databases=schema.array(_ROW), next=schema.or_null(schema.TEXT))
        one = schema.joined(_ROW, _MORE)
        return (
            Operation(
                "listDatabases",
                "GET",
                DATABASES,
                "List the databases among the next `limit` streams of a namespace.",
                "read",
                self._list,
                rows,
                parameters=(AFTER, LIMIT),
            ),
            Operation(
                "showDatabase",
                "GET",
                DATABASES + "/{database}",
                "Show who leads a database, who follows, and which earlier states there are.",
                "read",
                self._show,
                one,
            ),
            Operation(
                "backupDatabase",
                "GET",
                _BACKUP,
                "Get the newest state of a database, or an earlier one, as a file of SQLite's.",
                "read",
                self._backup,
                schema.TEXT,
                parameters=_AT,
                gives={SQLITE: "the file; the header Buckram-Offset says below which offset everything is in it"},
            ),
            Operation(
                "loadDatabase",
                "PUT",
                _BACKUP,
                "Make a database of a file of SQLite's; 409 if there is one of this name.",
                "create",
                self._load,
                schema.record(database=schema.TEXT, bytes=schema.COUNT),
                201,
                takes={SQLITE: "the file; any other media type is accepted, too"},
                streamed=True,
                makes=True,
            ),
        )

    async def _list(self, ask: Ask) -> dict[str, Any]:
        ns = self._client.namespace(ask.path["namespace"])
        names, following = await streams_seen(ask, ns)
        infos = [await ns.info(name) for name in names]
        return {"databases": [database_json(info) for info in infos if is_database(info)], "next": following}

    async def _show(self, ask: Ask) -> dict[str, Any]:
        return await database_shown(self._client.namespace(ask.path["namespace"]), ask.path["database"])

    # -- as files -----------------------------------------------------------------------------------------

    async def _backup(self, ask: Ask) -> PiecesAnswer:
        namespace, name = ask.path["namespace"], ask.path["database"]
        offset, time = ask.query["offset"], ask.query["time"]
        if offset is not None and time is not None:
            raise bad_request("offset and time exclude each other: give one of them")
        leave = self._transfers.enter(ask.holder)
        folder = await asyncio.get_running_loop().run_in_executor(None, Folder)
        try:
            ns = self._client.namespace(namespace)
            at, _ = await ns.backup_database(name, str(folder.file), offset=offset, time=time)
            said = {"Buckram-Offset": str(at), "Content-Disposition": f'attachment; filename="{namespace}-{name}.db"'}
            over = ask.watch("read", f"{namespace}/{name}")
            return file_answer(folder, media=SQLITE, stuck_s=self._limits.stuck_s, headers=said, over=over, ended=leave)
        except BaseException:
            folder.remove()
            leave()
            raise

    async def _load(self, ask: Ask) -> dict[str, Any]:
        full = stream_name(ask.path["database"], ask.path["namespace"])
        with self._transfers.room(ask.holder):
            given = ask.pieces(self._limits.database_bytes)
            async with kept(while_allowed(given, ask.watch("create", str(full)), NOT_LOADED)) as file:
                await self._client.namespace(full.namespace).restore_database(str(file), full.stream)
                return {"database": str(full), "bytes": file.stat().st_size}
