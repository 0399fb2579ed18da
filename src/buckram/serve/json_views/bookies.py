"""Bookies: their addresses, states, and the figures that they report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from buckram.core.cluster.bookie_report import FILE_SYSTEM_FIGURE, BookieReport, parse_report
from buckram.core.health.bookie_states import trouble_of
from buckram.core.health.facts import Facts
from buckram.core.health.findings import finding_of
from buckram.core.wire.messages import (
    DISK_STATE,
    FREE_DISK_SPACE,
    LOSS,
    MEMORY_USE,
    REPORT,
    TOTAL_DISK_CAPACITY,
    BookieInfoReply,
    GetBookieInfo,
    Trouble,
)
from buckram.errors import BookieUnavailable, Code, NoSuchBookie
from buckram.types import BookieId, BookieInfo

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient


async def bookie_rows(client: LedgerClient) -> list[dict[str, Any]]:
    """Return a row for every bookie that the cluster knows, by their ids."""
    from buckram.metadata.records.operator_requests import read_wishes  # not for commands that only name a bookie

    store = client.services.store
    current, known, wishes = await store.bookies(), await store.known_bookies(), await read_wishes(store)
    rows = []
    for bookie_id in sorted({*known, *current.writable, *current.readonly}):
        asked = wishes[bookie_id].asked if bookie_id in wishes else ""
        rows.append(_describe(bookie_id, current.find(bookie_id), current.state_of(bookie_id), asked))
    return rows


async def bookie_shown(client: LedgerClient, bookie_id: BookieId) -> dict[str, Any]:
    """Return the JSON of one bookie, with figures that it reports itself. Raises NoSuchBookie, and BookieError if it
    does not answer.
    """
    row = next((row for row in await bookie_rows(client) if row["id"] == bookie_id), None)
    if row is None:
        raise NoSuchBookie(bookie_id)
    space: BookieInfoReply | None = None
    if row["state"] != "down":
        everything = GetBookieInfo(TOTAL_DISK_CAPACITY | FREE_DISK_SPACE | MEMORY_USE | LOSS | DISK_STATE | REPORT)
        reply = await client.services.pool.call(bookie_id, everything)
        if isinstance(reply, BookieInfoReply) and reply.code is Code.OK:
            space = reply
    return {
        **row,
        "total_bytes": space.total_bytes if space is not None else None,
        "free_bytes": space.free_bytes if space is not None else None,
        "loss": space.loss if space is not None else None,
        **_reported(bookie_id, space.report if space is not None else None),
        "memory": {u.name: {"bytes": u.bytes, "limit_bytes": u.limit} for u in (space.memory if space else ())},
        "disk": {name: value for name, value in space.figures.items() if name != FILE_SYSTEM_FIGURE} if space else {},
        "troubles": [_trouble(bookie_id, one) for one in (space.troubles if space else ())],
    }


def _trouble(bookie_id: BookieId, trouble: Trouble) -> dict[str, str]:
    """Return the JSON of a trouble that a bookie reports, with its name and cure from the table of health."""
    return finding_of(Facts(), trouble_of(bookie_id, trouble.what, trouble.why)).as_json()


async def check_known(client: LedgerClient, bookie_id: BookieId) -> None:
    """Raise NoSuchBookie for a bookie that the cluster does not know, BookieUnavailable for one that is down."""
    current = await client.services.store.bookies()
    if current.find(bookie_id) is not None:
        return
    if bookie_id in await client.services.store.known_bookies():
        raise BookieUnavailable(bookie_id, "is down: it is not registered; start it again")
    raise NoSuchBookie(bookie_id)


def _describe(bookie_id: str, info: BookieInfo | None, state: str, asked: str) -> dict[str, Any]:
    address = info.address if info is not None else None
    return {
        "id": bookie_id,
        "host": address.host if address is not None else None,
        "port": address.port if address is not None else None,
        "state": state,
        "asked": asked,
        "incarnation": info.incarnation if info is not None else None,
    }


def _reported(bookie_id: str, said: bytes | None) -> dict[str, Any]:
    """Return the keys that come from the bookie's own report; values are None where it reported nothing."""
    report = BookieReport() if said is None else parse_report(bookie_id, said)
    newest = report.collection
    return {
        "version": report.version or None,
        "open_files": report.open_files or None,
        "most_files": report.most_files or None,
        "connections": report.connections if report.version else None,
        "most_connections": report.most_connections or None,
        "collections": report.collections if report.version else None,
        "bytes_reclaimed": report.collected_bytes if report.version else None,
        "bytes_reclaimable": None if newest is None else sum(one.bytes or 0 for one in newest.kept),
        "kept": [] if newest is None else newest.as_json()["kept"],
    }
