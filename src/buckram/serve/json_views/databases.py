"""SQL databases: who leads each, who follows, and which earlier states there are."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from buckram.errors import NotDatabase
from buckram.state.db.backups import read_kept
from buckram.state.db.commits.database_log import is_database

if TYPE_CHECKING:
    from buckram.namespace import Namespace
    from buckram.streams.info import StreamInfo


def leader_of(info: StreamInfo) -> str | None:
    """Return the process that leads a database, or None if nobody does."""
    return info.writer.name if info.writer is not None and not info.writer_gone else None


def database_json(info: StreamInfo) -> dict[str, Any]:
    """Return what a list shows of a database; `created` is in microseconds UTC."""
    return {
        "database": info.name,
        "leader": leader_of(info),
        "offset": info.end,
        "earliest": info.earliest,
        "created": info.created,
        "cdc": info.properties.get("cdc") == "on",
    }


def plain(value: Any) -> Any:
    """Return a value of a change of rows for JSON: blobs are {"base64": TEXT}."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


async def database_shown(ns: Namespace, database: str) -> dict[str, Any]:
    """Return the JSON of one database, with its followers, its snapshots and its newest backup by its policy.

    Raises NoSuchStream, NotDatabase.
    """
    from buckram.state.db.commits.replica_reports import shown_replicas

    info = await ns.info(database)
    if not is_database(info):
        raise NotDatabase(info.name)
    head = (await ns.store.read(ns.log_name(database))).head
    replicas, kept = await shown_replicas(ns.store, head.uid), await read_kept(ns.store, head.uid)
    return {
        **database_json(info),
        "followers": [{"id": one.id, "offset": one.offset} for one in replicas if one.id != leader_of(info)],
        "snapshots": [{"offset": row.offset, "bytes": row.bytes, "time": row.created} for row in head.snapshots or ()],
        "backup": None if kept.newest is None else kept.newest._asdict(),
        "backup_trouble": kept.trouble,
    }
