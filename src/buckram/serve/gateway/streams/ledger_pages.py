"""Ledgers: list, create, append, read, close, recover, delete.

A ledger belongs to a namespace, which is chosen when it is created and decides who may use it; the password of a
ledger comes in the header Buckram-Password.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.responses import Response

from buckram.client.read.reader import Reader
from buckram.cluster import Client
from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.metadata_codec import parse, serialise
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE, granted_name_of_ledger
from buckram.core.streams.names import check_name, owner_of
from buckram.errors import InvalidArgument, MalformedRecord, MetadataError, NoSuchLedger
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.error_answers import bad_request, problem_of
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.gateway.shared.memory_budget import MemoryBudget, PageAnswer
from buckram.serve.gateway.shared.operations import FORCE, LIMIT, Ask, Operation, Parameter
from buckram.serve.gateway.streams.record_bodies import BYTES, LINES, NDJSON, VALUES, framed, values_of
from buckram.serve.gateway.streams.writers import Writers
from buckram.serve.http.body import while_connected
from buckram.serve.http.problems import refusing
from buckram.serve.json_views.ledgers import away, ledger_json, listed_json
from buckram.types import Entry, LedgerId, LedgerMetadata

LEDGERS = "/v2/ledgers"
LEDGER = LEDGERS + "/{ledger}"
NEXT = "Buckram-Next-Entry"
_NOBODYS = serialise(created(1, 1, 1, ("-",), custom_metadata={LEDGER_NAMESPACE: b"-"}))
"""A record of no ledger."""
_PAGE, _LOOKED_AT, _ROUND = 250, 4000, 1000
"""Paging of a list for a client that may not see all ledgers: ledgers read together, maximum ledgers examined for one
page, and the multiple at which the next page goes on.
"""
_ID = {**schema.COUNT, "maximum": 2**63 - 1}
_FRAGMENT = schema.record(first_entry=schema.COUNT, ensemble=schema.array(schema.TEXT))
SHOWN = schema.record(
    "away",
    ledger=schema.COUNT,
    state=schema.one_of("open", "in_recovery", "closed"),
    last_entry=schema.or_null(schema.WHOLE),
    length=schema.or_null(schema.WHOLE),
    ensemble_size=schema.COUNT,
    write_quorum=schema.COUNT,
    ack_quorum=schema.COUNT,
    fragments=schema.array(_FRAGMENT),
    custom_metadata=schema.TEXTS,
    birth=schema.or_null(schema.TEXT),
    digest=schema.or_null(schema.TEXT),
    creation_time_ms=schema.or_null(schema.WHOLE),
    away=schema.array(schema.TEXT),
)
_MADE = schema.record(
    "namespace",
    "ensemble",
    "digest",
    "custom_metadata",
    namespace=schema.TEXT,
    ensemble=schema.TEXT,
    digest=schema.one_of("crc32c", "crc32", "mac", "dummy"),
    custom_metadata=schema.TEXTS,
)
_TAKEN = {
    BYTES: "one entry: the body is its payload",
    VALUES: "entries: before each payload its length in four bytes, the highest first",
    LINES: "an entry a line",
}
_GIVEN = {
    NDJSON: "a JSON object a line: entry, payload_base64",
    VALUES: "payloads: before each its length in four bytes, the highest first",
}
_READ = (
    Parameter("first", "The first entry.", _ID, 0),
    Parameter("last", "The last entry, inclusive; default the last readable one.", _ID),
    Parameter("limit", "Maximum number.", {**schema.WHOLE, "minimum": 1, "maximum": 10_000}, 1000),
)


class LedgerPages:
    """The ledgers of the cluster."""

    title = "Ledgers"

    def __init__(self, client: Client, writers: Writers, room: MemoryBudget, limits: GatewayLimits) -> None:
        self._client, self._writers, self._room, self._limits = client, writers, room, limits

    def operations(self) -> Sequence[Operation]:
        return (*self._of_ledgers(), *self._of_entries(), *self._endings())

    def _of_ledgers(self) -> Sequence[Operation]:
        rows = schema.record(ledgers=schema.array(schema.ANY_OBJECT), next=schema.or_null(schema.WHOLE))
        after = Parameter("after", "Only ledgers with higher ids: `next` of the page before.", _ID)
        made = schema.record(ledger=schema.COUNT)
        return (
            Operation(
                "listLedgers",
                "GET",
                LEDGERS,
                "List ledgers by their ids.",
                "login",
                self._list,
                rows,
                parameters=(after, LIMIT),
            ),
            Operation(
                "createLedger",
                "POST",
                LEDGERS,
                "Create a ledger, whose writer is this gateway until it is closed or idle.",
                "login",
                self._create,
                made,
                201,
                body=_MADE,
            ),
            Operation(
                "showLedger",
                "GET",
                LEDGER,
                "Show state, quorums and fragments of a ledger.",
                "login",
                self._show,
                SHOWN,
            ),
        )

    def _of_entries(self) -> Sequence[Operation]:
        entries, entry = LEDGER + "/entries", schema.record(entry=schema.COUNT, payload_base64=schema.TEXT)
        appended = schema.record(
            ledger=schema.COUNT, entries=schema.COUNT, first_entry=schema.WHOLE, last_entry=schema.WHOLE
        )
        return (
            Operation(
                "appendEntries",
                "POST",
                entries,
                "Append entries to a ledger that this gateway created, and answer when they are acknowledged.",
                "login",
                self._append,
                appended,
                takes=_TAKEN,
            ),
            Operation(
                "readEntries",
                "GET",
                entries,
                f"Read entries; the header {NEXT} says where the next page begins.",
                "login",
                self._read,
                entry,
                parameters=_READ,
                gives=_GIVEN,
            ),
        )

    def _endings(self) -> Sequence[Operation]:
        deleted = schema.record(ledger=schema.COUNT, deleted=schema.YES_OR_NO, fenced=schema.YES_OR_NO)
        return (
            Operation(
                "closeLedger",
                "POST",
                LEDGER + "/close",
                "Close a ledger: its writer does so if it is a gateway, else it is recovered.",
                "login",
                self._close,
                SHOWN,
            ),
            Operation(
                "recoverLedger",
                "POST",
                LEDGER + "/recover",
                "Fence the writer of a ledger, find its last entry, close it.",
                "login",
                self._recover,
                SHOWN,
            ),
            Operation(
                "deleteLedger",
                "DELETE",
                LEDGER,
                "Delete a ledger and its entries; one that is open is recovered first.",
                "login",
                self._delete,
                deleted,
                parameters=(FORCE,),
            ),
        )

    # -- handlers -----------------------------------------------------------------------------------------

    async def _list(self, ask: Ask) -> dict[str, Any]:
        after, limit, looked_at = ask.query["after"], ask.query["limit"], 0
        at, rows = -1 if after is None else int(after), list[dict[str, Any]]()
        while looked_at < _LOOKED_AT:
            size = limit if ask.allowed.everything else _PAGE
            page = await self._client.services.store.read_ledgers(after=at, limit=size)
            if not page:
                return {"ledgers": rows, "next": None}
            looked_at += len(page)
            for at, found in page:
                answer = found if isinstance(found, MetadataError) else found.metadata
                if _is_seen(ask, answer):
                    rows.append(listed_json(self._client, at, answer))
                if len(rows) == limit:
                    return {"ledgers": rows, "next": at}
        # It goes on at a round number, which says nothing of the ledger that was looked at last.
        at = at // _ROUND * _ROUND - 1
        return {"ledgers": [row for row in rows if row["ledger"] <= at], "next": at}

    async def _create(self, ask: Ask) -> dict[str, Any]:
        body = ask.body
        namespace = check_name("namespace", body.get("namespace", "default"))
        ask.require("append", namespace, making=True)
        words: dict[str, bytes | str] = {LEDGER_NAMESPACE: namespace, **self._writers.mark}
        for name, value in body.get("custom_metadata", {}).items():
            if name.startswith("buckram."):
                raise bad_request(f"custom_metadata {name[:60]!r}: names that begin with `buckram.` are taken")
            words[name] = value
        writer = await self._client.create(
            ensemble=body.get("ensemble", "3/3/2"),
            digest=body.get("digest", "crc32c"),
            password=_password(ask),
            custom_metadata=words,
        )
        await self._writers.keep(writer, ask.principal.name)
        return {"ledger": writer.ledger_id}

    async def _show(self, ask: Ask) -> dict[str, Any]:
        ledger, metadata = await self._known(ask, "read")
        return {**ledger_json(ledger, metadata), "away": away(self._client, metadata)}

    async def _append(self, ask: Ask) -> dict[str, Any]:
        ledger, _ = await self._known(ask, "append")
        payloads: list[bytes] = [ask.raw] if ask.media == BYTES else []
        if ask.media == VALUES:
            found = values_of(ask.raw)
            payloads = [one for one in found if one is not None]
            if len(payloads) < len(found):
                raise bad_request("an entry has no null payload: send an empty one")
        elif ask.media == LINES:
            payloads = ask.raw.removesuffix(b"\n").split(b"\n") if ask.raw else []
        if not payloads:
            raise bad_request("the body has no entry: send one at least")
        ids = await self._writers.append_entries(ledger, lambda writer: writer.append_many(payloads))
        return {"ledger": ledger, "entries": len(ids), "first_entry": ids[0], "last_entry": ids[-1]}

    async def _read(self, ask: Ask) -> Response:
        ledger, _ = await self._known(ask, "read")
        reader = await self._client.open(ledger, password=_password(ask))
        return await while_connected(ask.request, self._page(ask, reader))

    async def _page(self, ask: Ask, reader: Reader) -> Response:
        first, found, size = ask.query["first"], list[tuple[int, bytes]](), 0
        held = self._room.held(ask.holder)
        try:
            async with reader:
                end = await reader.read_last_confirmed() if ask.query["last"] is None else ask.query["last"]
                stop = min(end, first + ask.query["limit"] - 1)
                async for chunk in reader.chunks(first, stop) if first <= stop else _no_chunks():
                    found += [(one.entry_id, one.payload) for one in chunk]
                    more = sum(len(one.payload) for one in chunk)
                    held.add(more)
                    size += more
                    if size >= self._limits.page_bytes:
                        break
            following = found[-1][0] + 1 if found else first
            media = VALUES if VALUES in ask.request.headers.get("accept", "") else NDJSON
            form = framed if media == VALUES else None
            content = b"".join(form(payload) if form else _json_line(number, payload) for number, payload in found)
            held.add(len(content))
        except BaseException:
            held.release()
            raise
        return PageAnswer(content, {NEXT: str(following)}, media, held, self._limits.stuck_s)

    async def _close(self, ask: Ask) -> dict[str, Any]:
        ledger, metadata = await self._known(ask, "append")
        self._check_free(ledger, metadata)
        if not metadata.closed and not await self._writers.close_ledger(ledger):
            await (await self._client.recover(ledger, password=_password(ask))).close()
        return ledger_json(ledger, await self._client.metadata(ledger))

    async def _recover(self, ask: Ask) -> dict[str, Any]:
        ledger, metadata = await self._known(ask, "append")
        self._check_free(ledger, metadata)
        await (await self._client.recover(ledger, password=_password(ask))).close()
        return ledger_json(ledger, await self._client.metadata(ledger))

    async def _delete(self, ask: Ask) -> dict[str, Any]:
        ledger, _ = await self._known(ask, "delete")
        fenced = await self._client.delete(ledger, password=_password(ask), force=ask.query["force"])
        return {"ledger": ledger, "deleted": True, "fenced": fenced}

    # -- inside -------------------------------------------------------------------------------------------

    async def _known(self, ask: Ask, permission: str) -> tuple[LedgerId, LedgerMetadata]:
        """The ledger of the path. Raises NoSuchLedger, also for one that may not be seen, and HttpProblem 403 without
        the permission."""
        ledger = ask.number("ledger")
        try:
            metadata = await self._client.metadata(ledger)
        except NoSuchLedger:
            # So that it takes as long as for one that may not be seen, whose record says whose it is.
            if ask.allowed(granted_name_of_ledger(parse(_NOBODYS).custom_metadata)):
                raise
            raise refusing(problem_of(NoSuchLedger(ledger))) from None
        except MalformedRecord:  # so nobody knows whose it is
            if ask.allowed.everything:
                raise
            raise NoSuchLedger(ledger) from None
        name = granted_name_of_ledger(metadata.custom_metadata)
        if not ask.allowed(name):
            raise refusing(problem_of(NoSuchLedger(ledger)))
        ask.require(permission, name)
        return ledger, metadata

    def _check_free(self, ledger: LedgerId, metadata: LedgerMetadata) -> None:
        """The writer of a stream ends the ledgers of its segments."""
        if owner_of(metadata.custom_metadata) is not None:
            raise InvalidArgument(f"ledger {ledger} belongs to a stream: seal the stream instead")


def _is_seen(ask: Ask, found: LedgerMetadata | MetadataError) -> bool:
    """Return whether a client may see a ledger; one whose record cannot be read, so that its namespace is unknown, is
    visible only to those who may see the whole cluster.
    """
    if isinstance(found, MetadataError):
        return ask.allowed.everything
    return "read" in ask.allowed(granted_name_of_ledger(found.custom_metadata))


async def _no_chunks() -> AsyncIterator[list[Entry]]:
    for chunk in list[list[Entry]]():
        yield chunk


def _password(ask: Ask) -> bytes:
    return ask.request.headers.get("buckram-password", "").encode("latin-1")


def _json_line(entry: int, payload: bytes) -> bytes:
    return json.dumps({"entry": entry, "payload_base64": base64.b64encode(payload).decode()}).encode() + b"\n"
