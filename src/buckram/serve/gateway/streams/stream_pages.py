"""Streams and their cursors: list, create, show, set, truncate, end, seal, delete.

A list contains only what the client may see, and does not reveal the others by name or by position. Not here: records
(`serve/gateway/streams/record_pages.py`), lists of objects (`serve/gateway/objects/object_pages.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buckram.cluster import Client
from buckram.core.streams.external.history import stream_of_directory
from buckram.core.streams.metadata.head import Segment
from buckram.namespace import Namespace
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.operations import AFTER, FORCE, LIMIT, PREFIX, Ask, Operation, Parameter
from buckram.serve.gateway.streams.writers import Writers
from buckram.serve.json_views.streams import cursor_json, info_json, segment_json, with_last_append
from buckram.streams.info import StreamInfo

_PAGE = 1000
"""Names of streams read at a time for a client that may not see all."""


async def streams_seen(ask: Ask, namespace: Namespace, prefix: str = "") -> tuple[list[str], str | None]:
    """A page of the streams that may be read, and the name behind which it goes on: one of them, whatever else there
    is; None for the last page."""
    limit, after, found = ask.query["limit"], ask.query["after"] or "", list[str]()
    size = limit if ask.allowed.everything else _PAGE
    while len(found) < limit:
        names = await namespace.list(prefix=prefix, after=after, limit=size)
        found += [name for name in names if "read" in ask.allowed(f"{ask.path['namespace']}/{name}")]
        if len(names) < size and len(found) <= limit:
            return found, None
        after = names[-1] if names else after
    return found[:limit], found[limit - 1]


def stream_seen(ask: Ask, info: StreamInfo) -> dict[str, Any]:
    """Return the JSON of a stream for a client; the source of a fork is null unless the client may see it."""
    shown = info_json(info)
    if info.fork is not None and not ask.sees(info.fork.source):
        shown["fork"] = {**shown["fork"], "source": None}
    return shown


def segment_seen(ask: Ask, row: Segment) -> dict[str, Any]:
    """Return the JSON of a segment for a client. A fork's segment lacks its location and digest unless the client may
    see the source, whose name they contain.
    """
    shown = segment_json(row)
    of = stream_of_directory(shown.get("location", ""))
    if of and not ask.sees(of):
        del shown["location"], shown["digest"]
    return shown


STREAMS = "/v2/namespaces/{namespace}/streams"
STREAM = STREAMS + "/{stream}"
CURSOR = STREAM + "/cursors/{cursor}"
_LONG = Parameter("long", "Whole descriptions instead of names.", schema.YES_OR_NO, False)
_PURPOSE = Parameter(
    "purpose", "Purpose of a stream that is not for records: machine, database, objects or audit.", schema.TEXT
)
INFO = schema.record(
    "cursors",
    stream=schema.TEXT,
    uid=schema.TEXT,
    purpose=schema.TEXT,
    refused=schema.TEXTS,
    earliest=schema.COUNT,
    end=schema.COUNT,
    records=schema.COUNT,
    ended=schema.YES_OR_NO,
    segments=schema.COUNT,
    writer=schema.or_null(schema.record(name=schema.TEXT, since_us=schema.WHOLE, gone=schema.YES_OR_NO)),
    created_us=schema.WHOLE,
    last_append_time_us=schema.or_null(schema.WHOLE),
    policy=schema.ANY_OBJECT,
    overrides=schema.ANY_OBJECT,
    properties=schema.TEXTS,
    transactions=schema.ANY_OBJECT,
    fork=schema.or_null(schema.record(source=schema.or_null(schema.TEXT), offset=schema.COUNT)),
    cursors=schema.array(schema.ANY_OBJECT),
)
CURSOR_ROW = schema.record(cursor=schema.TEXT, offset=schema.COUNT, lag=schema.COUNT, changed_us=schema.WHOLE)
_NEXT = schema.or_null(schema.TEXT)
_MADE = schema.record("policy", "properties", stream=schema.TEXT, policy=schema.SETTINGS, properties=schema.TEXTS)
_SET = schema.record(
    "policy", "properties", policy=schema.SETTINGS, properties=schema.mapping(schema.or_null(schema.TEXT))
)
_TRUNCATE = schema.record(
    "before",
    "before_time_us",
    "keep_bytes",
    "before_cursors",
    before=schema.COUNT,
    before_time_us=schema.COUNT,
    keep_bytes=schema.COUNT,
    before_cursors=schema.YES_OR_NO,
)


class StreamPages:
    """The streams of namespaces."""

    title = "Streams"

    def __init__(self, client: Client, writers: Writers) -> None:
        self._client, self._writers = client, writers

    def operations(self) -> Sequence[Operation]:
        return (*self._of_streams(), *self._of_one(), *self._endings(), *self._of_cursors())

    def _of_streams(self) -> Sequence[Operation]:
        listed = schema.record(streams=schema.array({}), next=_NEXT)
        return (
            Operation(
                "listStreams",
                "GET",
                STREAMS,
                "List the streams of a namespace by their names.",
                "read",
                self._list,
                listed,
                parameters=(PREFIX, AFTER, LIMIT, _LONG),
            ),
            Operation(
                "createStream",
                "POST",
                STREAMS,
                "Create an empty stream.",
                "create",
                self._create,
                INFO,
                201,
                body=_MADE,
                makes=True,
            ),
        )

    def _of_one(self) -> Sequence[Operation]:
        rows = schema.record(segments=schema.array(schema.ANY_OBJECT), next=schema.or_null(schema.WHOLE))
        earliest = schema.record(stream=schema.TEXT, earliest=schema.COUNT)
        number = Parameter("after", "Only segments with higher numbers.", schema.WHOLE)
        return (
            Operation(
                "showStream",
                "GET",
                STREAM,
                "Show offsets, writer, policy and cursors of a stream.",
                "read",
                self._show,
                INFO,
            ),
            Operation(
                "listSegments",
                "GET",
                STREAM + "/segments",
                "List the segments of a stream, the oldest first.",
                "read",
                self._segments,
                rows,
                parameters=(number, LIMIT),
            ),
            Operation(
                "setStream",
                "PATCH",
                STREAM,
                "Change policy and properties; null takes one back.",
                "append",
                self._set,
                INFO,
                body=_SET,
            ),
            Operation(
                "truncateStream",
                "POST",
                STREAM + "/truncate",
                "Drop the oldest records: below an offset or time, all but so many bytes, or what cursors passed.",
                "append",
                self._truncate,
                earliest,
                body=_TRUNCATE,
            ),
        )

    def _endings(self) -> Sequence[Operation]:
        ended = schema.record(stream=schema.TEXT, end=schema.COUNT, ended=schema.YES_OR_NO)
        deleted = schema.record(stream=schema.TEXT, deleted=schema.YES_OR_NO)
        return (
            Operation(
                "endStream",
                "POST",
                STREAM + "/end",
                "Mark the end of a stream: it takes no more records, ever.",
                "append",
                self._end,
                ended,
            ),
            Operation(
                "sealStream",
                "POST",
                STREAM + "/seal",
                "Seal the segment that is open, as the end of its writer does.",
                "append",
                self._seal,
                ended,
            ),
            Operation(
                "deleteStream",
                "DELETE",
                STREAM,
                "Delete a stream with its records and cursors; of another purpose than records only with `purpose`.",
                "delete",
                self._delete,
                deleted,
                parameters=(FORCE, _PURPOSE),
            ),
        )

    def _of_cursors(self) -> Sequence[Operation]:
        placed = schema.record(stream=schema.TEXT, cursor=schema.TEXT, offset=schema.COUNT)
        deleted = schema.record(stream=schema.TEXT, cursor=schema.TEXT, deleted=schema.YES_OR_NO)
        listed = schema.record(stream=schema.TEXT, cursors=schema.array(CURSOR_ROW), next=_NEXT)
        return (
            Operation(
                "listCursors",
                "GET",
                STREAM + "/cursors",
                "List the cursors of a stream, each with its lag in records.",
                "read",
                self._cursors,
                listed,
                parameters=(AFTER, LIMIT),
            ),
            Operation(
                "moveCursor",
                "PUT",
                CURSOR,
                "Create a cursor, or move it up.",
                "read",
                self._move,
                placed,
                body=schema.record(offset=schema.COUNT),
            ),
            Operation("deleteCursor", "DELETE", CURSOR, "Delete a cursor.", "read", self._forget, deleted),
        )

    # -- streams ------------------------------------------------------------------------------------------

    async def _list(self, ask: Ask) -> dict[str, Any]:
        ns = self._namespace(ask)
        names, following = await streams_seen(ask, ns, ask.query["prefix"])
        rows: list[Any] = [stream_seen(ask, await ns.info(name)) for name in names] if ask.query["long"] else [*names]
        return {"streams": rows, "next": following}

    async def _create(self, ask: Ask) -> dict[str, Any]:
        body = ask.body
        made = await self._namespace(ask).create(
            body["stream"], properties=body.get("properties"), **body.get("policy", {})
        )
        return stream_seen(ask, made)

    async def _show(self, ask: Ask) -> dict[str, Any]:
        ns, name = self._namespace(ask), ask.stream
        info = await with_last_append(ns, await ns.info(name.stream))
        cursors = await ns.cursors(name.stream, limit=100)
        return stream_seen(ask, info) | {"cursors": [cursor_json(one) for one in cursors]}

    async def _segments(self, ask: Ask) -> dict[str, Any]:
        after, limit = ask.query["after"], ask.query["limit"]
        rows: list[dict[str, Any]] = []
        async for segment in self._namespace(ask).segments(ask.stream.stream):
            if after is None or segment.number > after:
                rows.append(segment_seen(ask, segment))
            if len(rows) == limit:
                break
        return {"segments": rows, "next": rows[-1]["number"] if len(rows) == limit else None}

    async def _set(self, ask: Ask) -> dict[str, Any]:
        ns, name = self._namespace(ask), ask.stream
        if words := ask.body.get("properties"):
            await ns.set_properties(name.stream, words)
        return stream_seen(ask, await ns.set_policy(name.stream, **ask.body.get("policy", {})))

    async def _truncate(self, ask: Ask) -> dict[str, Any]:
        body, name = ask.body, ask.stream
        if sum(value is not None and value is not False for value in body.values()) != 1:
            raise bad_request("give one of before, before_time_us, keep_bytes and before_cursors")
        earliest = await self._namespace(ask).truncate(
            name.stream,
            before=body.get("before"),
            before_time=body.get("before_time_us"),
            keep_bytes=body.get("keep_bytes"),
            before_cursors=body.get("before_cursors", False),
        )
        return {"stream": str(name), "earliest": earliest}

    async def _end(self, ask: Ask) -> dict[str, Any]:
        name = ask.stream
        return {"stream": str(name), "end": await self._writers.end(name, seal_only=False), "ended": True}

    async def _seal(self, ask: Ask) -> dict[str, Any]:
        name = ask.stream
        return {"stream": str(name), "end": await self._writers.end(name, seal_only=True), "ended": False}

    async def _delete(self, ask: Ask) -> dict[str, Any]:
        name = ask.stream
        await self._namespace(ask).delete(
            name.stream, force=ask.query["force"], purpose=ask.query["purpose"] or "records"
        )
        return {"stream": str(name), "deleted": True}

    # -- cursors ------------------------------------------------------------------------------------------

    async def _cursors(self, ask: Ask) -> dict[str, Any]:
        name, limit = ask.stream, ask.query["limit"]
        found = await self._namespace(ask).cursors(name.stream, after=ask.query["after"] or "", limit=limit)
        return {
            "stream": str(name),
            "cursors": [cursor_json(one) for one in found],
            "next": found[-1].name if len(found) == limit else None,
        }

    async def _move(self, ask: Ask) -> dict[str, Any]:
        name, cursor, offset = ask.stream, ask.path["cursor"], ask.body["offset"]
        await self._namespace(ask).move_cursor(name.stream, cursor, offset)
        return {"stream": str(name), "cursor": cursor, "offset": offset}

    async def _forget(self, ask: Ask) -> dict[str, Any]:
        name, cursor = ask.stream, ask.path["cursor"]
        await self._namespace(ask).delete_cursor(name.stream, cursor)
        return {"stream": str(name), "cursor": cursor, "deleted": True}

    def _namespace(self, ask: Ask) -> Namespace:
        return self._client.namespace(ask.path["namespace"])
