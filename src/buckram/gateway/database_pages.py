"""SQL databases of namespaces: who leads each, and who follows. Not here: statements, which `hrana` serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buckram.client.client import Client
from buckram.db.logs import is_database
from buckram.gateway import schema
from buckram.gateway.operations import AFTER, LIMIT, Ask, Operation
from buckram.views.databases import database_json, database_shown

DATABASES = "/v2/namespaces/{namespace}/databases"
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


class DatabasePages:
    """The databases of the cluster."""

    title = "Databases"

    def __init__(self, client: Client) -> None:
        self._client = client

    def operations(self) -> Sequence[Operation]:
        rows = schema.record(databases=schema.array(_ROW), next=schema.or_null(schema.TEXT))
        one = schema.joined(_ROW, schema.record(followers=schema.array(_FOLLOWER), snapshots=schema.array(_SNAPSHOT)))
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
                "Who leads a database, who follows, and which earlier states there are.",
                "read",
                self._show,
                one,
            ),
        )

    async def _list(self, ask: Ask) -> dict[str, Any]:
        ns, limit = self._client.namespace(ask.path["namespace"]), ask.query["limit"]
        names = await ns.list(after=ask.query["after"] or "", limit=limit)
        infos = [await ns.info(name) for name in names]
        return {
            "databases": [database_json(info) for info in infos if is_database(info)],
            "next": names[-1] if len(names) == limit else None,
        }

    async def _show(self, ask: Ask) -> dict[str, Any]:
        return await database_shown(self._client.namespace(ask.path["namespace"]), ask.path["database"])


__all__ = ["DATABASES", "DatabasePages"]
