"""SQL databases of namespaces: their leaders and followers, and databases as files of SQLite's.

Not here: statements (`hrana_pages.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from buckram.cluster import Client
from buckram.core.streams.names import stream_name
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.shared.operations import AFTER, LIMIT, Ask, Operation, Parameter
from buckram.serve.gateway.streams.stream_lists import streams_seen
from buckram.serve.http.spooled_files import NOT_LOADED, SQLITE, Folder, Transfers, file_answer, kept
from buckram.serve.http.streamed_answers import PiecesAnswer, while_allowed
from buckram.serve.json_views.databases import database_json, database_shown
from buckram.state.db.commits.database_log import is_database

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
