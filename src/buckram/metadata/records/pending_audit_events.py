"""Audit events of processes that open the metadata store themselves: they leave a note, and a bookie writes it down.

Below `own`/audit: `on`, while some bookie writes the trail, and `notes/TIME-ID`.
"""

from __future__ import annotations

import getpass
import secrets
import socket
import time
from contextlib import suppress

from buckram.core.tenants.audit_trail import DONE, AuditEvent
from buckram.errors import InvalidArgument, KeyExists, MetadataError, NoSuchKey
from buckram.metadata.tree.key_operations import remove
from buckram.seams import MetadataStore, Notify

FOLDER = "audit"
_MOST_NOTES = 1000


async def turn_on(store: MetadataStore) -> None:
    """Mark that some bookie writes notes down from now on."""
    with suppress(KeyExists):
        await store.keys.create(f"{store.own}/{FOLDER}/on", b"{}")


async def leave_note(
    store: MetadataStore,
    action: str,
    what: str,
    namespace: str = "",
    detail: str = "",
    *,
    principal: str = "",
    result: str = DONE,
    peer: str = "",
) -> None:
    """Leave a note of what this process did, or what it refused a principal; does nothing if no trail is written.

    Raises MetadataError.
    """
    try:
        await store.keys.get(f"{store.own}/{FOLDER}/on")
    except NoSuchKey:
        return
    who, where = principal or _me(), peer or socket.gethostname()
    event = AuditEvent(int(time.time() * 1e6), who, action, what, namespace, result, where, detail=detail)
    name = f"{event.time_us:020d}-{secrets.token_hex(4)}"
    await store.keys.create(f"{store.own}/{FOLDER}/notes/{name}", event.encode())


def _me() -> str:
    try:
        return f"unix:{getpass.getuser()}"
    except (KeyError, OSError):
        return "unix:?"


async def notes(store: MetadataStore, watch: Notify | None = None) -> dict[str, AuditEvent | None]:
    """Return the notes that wait, by key; None for one that does not parse. Raises MetadataError."""
    folder = f"{store.own}/{FOLDER}/notes"
    found: dict[str, AuditEvent | None] = {}
    if watch is not None:
        await store.keys.children(folder, watch=watch)
    for name, value in await store.keys.children_with_values(folder, after="", limit=_MOST_NOTES):
        event: AuditEvent | None = None
        with suppress(InvalidArgument):
            event = AuditEvent.parse(value.value)
        found[f"{folder}/{name}"] = event
    return found


async def drop_note(store: MetadataStore, key: str) -> None:
    """Remove a note that is written down."""
    await remove(store.keys, key)


__all__ = ["MetadataError", "drop_note", "leave_note", "notes", "turn_on"]
