"""Streams, their segments and cursors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from buckram.core.streams.metadata.purposes import refusals
from buckram.errors import BuckramError

if TYPE_CHECKING:
    from buckram.core.streams.metadata.head import Segment
    from buckram.streams.info import StreamInfo
    from buckram.streams.namespace import StreamNamespace
    from buckram.streams.read.cursors import CursorInfo


def info_json(info: StreamInfo) -> dict[str, Any]:
    """Return the JSON of a stream; times are microseconds UTC."""
    writer = info.writer
    return {
        "stream": info.name,
        "uid": info.uid,
        "purpose": info.purpose.value,
        "refused": refusals(info.name, info.purpose),
        "earliest": info.earliest,
        "end": info.end,
        "records": info.end - info.earliest,
        "ended": info.ended,
        "segments": info.segments,
        "writer": None
        if writer is None
        else {
            "name": writer.name,
            "since_us": writer.since,
            "gone": info.writer_gone,
        },
        "created_us": info.created,
        "last_append_time_us": info.last_append or None,
        "policy": dataclasses.asdict(info.policy),
        "overrides": dict(info.overrides),
        "properties": dict(info.properties),
        "fork": None if info.fork is None else {"source": info.fork.source, "offset": info.fork.at},
        "transactions": {
            app: {"version": done.version, "first_offset": done.first_offset, "next_offset": done.next_offset}
            for app, done in info.transactions.items()
        },
    }


def tier(row: Segment) -> str:
    """Return where a segment's records are: on the `bookies`, or in `history`."""
    return "bookies" if row.offloaded is None else "history"


def tiers_json(rows: list[Segment]) -> dict[str, dict[str, int]]:
    """Return the segments, records and payload bytes of each tier; the open segment counts as a segment only."""
    found = {name: {"segments": 0, "records": 0, "bytes": 0} for name in ("bookies", "history")}
    for row in rows:
        part = found[tier(row)]
        part["segments"] += 1
        if row.summary is not None:
            part["records"] += row.summary.records
            part["bytes"] += row.summary.bytes
    return found


def segment_json(row: Segment) -> dict[str, Any]:
    """Return the JSON of a segment; of a sealed one also its summary."""
    shown: dict[str, Any] = {
        "number": row.number,
        "ledger": row.ledger,
        "first_offset": row.base,
        "created_us": row.created,
        "state": "sealed" if row.sealed else "open",
        "tier": tier(row),
    }
    if row.offloaded is not None:
        shown |= {"location": row.offloaded.location, "digest": row.offloaded.digest}
    return shown | (row.summary._asdict() if row.summary is not None else {})


def cursor_json(one: CursorInfo) -> dict[str, Any]:
    """Return the JSON of a cursor; `changed_us` is in microseconds UTC."""
    return {"cursor": one.name, "offset": one.offset, "lag": one.lag, "changed_us": one.changed}


async def with_last_append(ns: StreamNamespace, info: StreamInfo) -> StreamInfo:
    """Return the same with the newest append: the head knows that of sealed segments only, so the end is read."""
    if info.writer is None or info.end <= info.earliest:
        return info
    try:
        async with ns.read(info.name, start=info.end - 1, stop=info.end) as reader:
            batch = await reader.next_batch()
    except BuckramError:
        return info  # truncated meanwhile, or bookies are away: what the head says is still true
    if batch is None:
        return info
    return dataclasses.replace(info, last_append=max(info.last_append, batch.append_time))
