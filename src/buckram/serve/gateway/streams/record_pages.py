"""Records of streams: append, read, one record, and tails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from buckram.cluster import Client
from buckram.core.streams.names import StreamName
from buckram.core.streams.records.batch import Batch
from buckram.errors import NoSuchStream, OffsetOutOfRange, StreamExists
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.shared.memory_budget import MemoryBudget, PageAnswer
from buckram.serve.gateway.shared.operations import Ask, Operation, Parameter
from buckram.serve.gateway.streams.event_stream import MEDIA, EventStream
from buckram.serve.gateway.streams.record_bodies import BYTES, GIVEN, TAKEN, chosen_form, rendered, rows_of
from buckram.serve.gateway.streams.tails import Tails, start_after
from buckram.serve.gateway.streams.writers import Writers
from buckram.serve.http.body import while_connected
from buckram.serve.json_views.records import record_json
from buckram.streams.read.locate import readable_end
from buckram.streams.read.reader import StreamReader
from buckram.streams.write.writer import StreamWriter

PATH = "/v2/namespaces/{namespace}/streams/{stream}/records"
TAIL = "/v2/namespaces/{namespace}/streams/{stream}/tail"
NEXT = "Buckram-Next-Offset"
_OFFSET = {**schema.COUNT, "maximum": 2**63 - 1}
_MOMENT = {**schema.WHOLE, "minimum": 0, "maximum": 2**62}

_APPEND = (
    Parameter("expect_offset", "Append only if this is the next offset; 409 otherwise.", _OFFSET),
    Parameter("producer", "The id of an idempotent producer; `sequence` goes with it."),
    Parameter("sequence", "The producer's number of the first record; what is stored already is left out.", _OFFSET),
    Parameter("producer_start", "The first sequence of a producer that the stream has never seen.", _OFFSET),
    Parameter("atomic", "After any crash the stream has all records or none.", schema.YES_OR_NO, False),
    Parameter("create", "Create the stream if it does not exist.", schema.YES_OR_NO, False),
    Parameter("key", "The key of the record, where the body is one value."),
)
_READ = (
    Parameter("start", "The first offset, `earliest` or `latest`; default earliest, or `since`."),
    Parameter("stop", "The offset to end before; default what is readable now.", _OFFSET),
    Parameter("since", "From the first record appended then or later, in microseconds since 1970 (UTC).", _MOMENT),
    Parameter("until", "Records appended before, in microseconds since 1970 (UTC).", _MOMENT),
    Parameter(
        "limit",
        "Maximum number of records; the answer ends earlier if it has many bytes.",
        {**schema.WHOLE, "minimum": 1, "maximum": 10_000},
        1000,
    ),
)
_TAIL = (Parameter("start", "The first offset, `earliest` or `latest`; the header Last-Event-ID goes before it."),)
APPENDED = schema.record(
    stream=schema.TEXT,
    records=schema.COUNT,
    first_offset=schema.or_null(schema.WHOLE),
    last_offset=schema.or_null(schema.WHOLE),
)
RECORD = schema.record(
    "headers",
    "headers_base64",
    "txid",
    "producer",
    "sequence",
    offset=schema.COUNT,
    timestamp_us=schema.WHOLE,
    append_time_us=schema.WHOLE,
    key_base64=schema.or_null(schema.TEXT),
    value_base64=schema.or_null(schema.TEXT),
    headers=schema.TEXTS,
    headers_base64=schema.TEXTS,
    txid=schema.COUNT,
    producer=schema.TEXT,
    sequence=schema.COUNT,
)


class RecordPages:
    """The records of streams, through the gateway's writers and tails."""

    title = "Records"

    def __init__(
        self, client: Client, writers: Writers, tails: Tails, room: MemoryBudget, limits: GatewayLimits
    ) -> None:
        self._client, self._writers, self._tails, self._room, self._limits = client, writers, tails, room, limits

    def operations(self) -> Sequence[Operation]:
        return (
            Operation(
                "appendRecords",
                "POST",
                PATH,
                "Append records to a stream, and answer when they are acknowledged.",
                "append",
                self._append,
                APPENDED,
                parameters=_APPEND,
                takes=TAKEN,
            ),
            Operation(
                "readRecords",
                "GET",
                PATH,
                f"Read records; the header {NEXT} says where the next page begins.",
                "read",
                self._read,
                RECORD,
                parameters=_READ,
                gives=GIVEN,
            ),
            Operation(
                "getRecord",
                "GET",
                PATH + "/{offset}",
                "Read one record; its value alone where application/octet-stream is accepted.",
                "read",
                self._get,
                RECORD,
                gives={BYTES: "the value"},
            ),
            Operation(
                "tailRecords",
                "GET",
                TAIL,
                "Follow a stream by server-sent events: an event's id begins with the offset, its data are the record.",
                "read",
                self._tail,
                RECORD,
                parameters=_TAIL,
                gives={MEDIA: "an event for each record; events `end` and `error` are the last ones"},
            ),
        )

    # -- appending ----------------------------------------------------------------------------------------

    async def _append(self, ask: Ask) -> dict[str, Any]:
        name, query = ask.stream, ask.query
        if (query["producer"] is None) is not (query["sequence"] is None):
            raise bad_request("producer and sequence go together: give both, or none")
        if query["key"] is not None and ask.media != BYTES:
            raise bad_request(f"key is for a body of one value ({BYTES}): other bodies have their own keys")

        async def act(writer: StreamWriter) -> range:
            rows = rows_of(ask.media, ask.raw, writer.max_record_bytes)
            arguments = rows.arguments()
            if query["key"] is not None:
                arguments["keys"] = [query["key"].encode()]
            return await writer.append_many(
                **arguments,
                producer=query["producer"],
                sequence=query["sequence"],
                start=query["producer_start"],
                atomic=query["atomic"],
                expect_offset=query["expect_offset"],
            )

        try:
            offsets = await self._writers.append(name, act)
        except NoSuchStream:
            if not query["create"]:
                raise
            ask.require("create", str(name))
            await self._create(name)
            offsets = await self._writers.append(name, act)
        some = len(offsets) > 0
        return {
            "stream": str(name),
            "records": len(offsets),
            "first_offset": offsets[0] if some else None,
            "last_offset": offsets[-1] if some else None,
        }

    async def _create(self, name: StreamName) -> None:
        with suppress(StreamExists):
            await self._client.namespace(name.namespace).create(name.stream)

    # -- reading ------------------------------------------------------------------------------------------

    async def _read(self, ask: Ask) -> Response:
        query = ask.query
        begin = _start(query["start"])
        if begin is not None and query["since"] is not None:
            raise bad_request("start and since exclude each other: give one of them")
        name = ask.stream
        reader = self._client.namespace(name.namespace).read(
            name.stream,
            start="earliest" if begin is None else begin,
            stop=query["stop"],
            start_time=query["since"],
            stop_time=query["until"],
        )
        return await while_connected(ask.request, self._page(ask, reader))

    async def _page(self, ask: Ask, reader: StreamReader) -> Response:
        limit, found, size = min(ask.query["limit"], self._limits.records_per_page), list[Batch](), 0
        held = self._room.held(ask.holder)
        try:
            async with reader:
                position = await reader.open()
                while limit > 0 and size < self._limits.page_bytes and (batch := await reader.next_batch()) is not None:
                    held.add(batch.payload_bytes)
                    kept = batch.between(batch.first_offset, batch.first_offset + limit)
                    found.append(kept)
                    limit -= len(kept)
                    size += kept.payload_bytes
                    position = kept.next_offset
            media = chosen_form(ask.request.headers.get("accept", ""))
            content = rendered(media, found)
            held.add(len(content))
        except BaseException:
            held.release()
            raise
        return PageAnswer(content, {NEXT: str(position)}, media, held, self._limits.stuck_s)

    async def _get(self, ask: Ask) -> Response | dict[str, Any]:
        name = ask.stream
        record = await self._client.namespace(name.namespace).get(name.stream, ask.number("offset"))
        if BYTES in ask.request.headers.get("accept", ""):
            return Response(record.value or b"", 200, media_type=BYTES)
        return record_json(record)

    # -- following ----------------------------------------------------------------------------------------

    async def _tail(self, ask: Ask) -> Response:
        name, last = ask.stream, ask.request.headers.get("last-event-id")
        begin = _start(ask.query["start"])
        if last:
            begin = await start_after(self._client, name, last)
        start = None if begin in (None, "latest") else 0 if begin == "earliest" else int(begin or 0)
        tail = await self._tails.opened(name, start, ask.holder)
        try:
            if start is not None and start > tail.known_end:
                streams = self._client.namespace(name.namespace).store
                head, end = await readable_end(self._client, streams, name, start)
                if start > end:
                    raise OffsetOutOfRange(str(name), start, head.earliest, end)
        except BaseException:
            tail.close()
            raise
        return EventStream(tail, self._limits, ask.watch("read", str(name)))


def _start(text: str | None) -> int | str | None:
    if text is None or text in ("earliest", "latest"):
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise bad_request(f"start = {text[:60]!r}: needs an offset, `earliest` or `latest`")
    return int(text)
