"""The log of a database: a machine's log whose properties say what it is.

Not here: replicas (`state/db/opening.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from buckram.core.streams.metadata.purposes import DATABASE_PROPERTIES, Purpose
from buckram.errors import DatabaseExists, NotDatabase, StreamExists

if TYPE_CHECKING:
    from buckram.core.streams.metadata.head import Head
    from buckram.core.streams.names import StreamName
    from buckram.streams.info import StreamInfo
    from buckram.streams.namespace import StreamNamespace

PROPERTIES = DATABASE_PROPERTIES
"""Stream properties that mark a log as a database's."""
CDC = {"cdc": "on"}
"""Additional properties of the log of a database with change data capture."""


async def create_log(ns: StreamNamespace, name: StreamName, policy: Mapping[str, Any], *, cdc: bool = False) -> None:
    """Create the log of a database; `cdc`: it keeps what is done to rows, too. Raises DatabaseExists."""
    try:
        await ns.create_machine_log(name.stream, {**PROPERTIES, **(CDC if cdc else {})}, **policy)
    except StreamExists:
        raise DatabaseExists(str(name)) from None


async def check_database(ns: StreamNamespace, name: StreamName) -> Head:
    """Return the head of a database's log. Raises NoSuchStream, and NotDatabase for any other stream."""
    head = (await ns.store.read(name)).head
    if head.snapshots is None or any(head.properties.get(key) != value for key, value in PROPERTIES.items()):
        raise NotDatabase(str(name))
    return head


def is_database(info: StreamInfo) -> bool:
    """Return whether a stream is the log of a database."""
    return info.purpose is Purpose.DATABASE


def has_changes(head: Head) -> bool:
    """Return whether a database keeps row changes (change data capture)."""
    return all(head.properties.get(key) == value for key, value in CDC.items())
