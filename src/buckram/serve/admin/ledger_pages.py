"""/api/v1/ledger/...: list, metadata, read and delete, as Apache's bookies answer."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from buckram.client.ledger_client import LedgerClient
from buckram.core.ledgers.metadata_codec import serialise
from buckram.errors import LedgerError, NoSuchEntry, NoSuchLedger
from buckram.runtime.net.http_server import JSON, Answer, Request, json_answer
from buckram.serve.admin.cluster_link import ClusterLink
from buckram.serve.admin.routing import BookieOperation, RequestError, asked, needed_ledger, whole_number
from buckram.types import DigestType, EntryId, LedgerId, LedgerMetadata

PATH = "/api/v1/ledger"
LEDGERS_PER_PAGE, ENTRIES_PER_PAGE = 100, 1000
MOST_BYTES = 16 << 20
"""Maximum bytes of the entries in one answer, before they are encoded."""


def metadata_json(ledger: LedgerId, metadata: LedgerMetadata) -> dict[str, Any]:
    """The record as Apache's JSON shows it. The password is left empty."""
    digest = metadata.digest_type or DigestType.CRC32C
    last = metadata.last_entry if metadata.last_entry is not None else -1
    return {
        "ledgerId": ledger,
        "metadataFormatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length if metadata.length is not None else 0,
        "lastEntryId": last,
        "ctime": metadata.creation_time_ms if metadata.creation_time_ms is not None else -1,
        "digestType": digest.name,
        "password": "",
        "customMetadata": {key: base64.b64encode(value).decode() for key, value in metadata.custom_metadata.items()},
        "ctoken": metadata.creator_token,
        "allEnsembles": {
            str(one.first_entry): [{"id": bookie} for bookie in one.ensemble] for one in metadata.fragments
        },
        "closed": metadata.closed,
    }


class AdminLedgerPages:
    """Ledgers of the whole cluster, through a client."""

    def __init__(self, link: ClusterLink) -> None:
        self._link = link

    def operations(self) -> Sequence[BookieOperation]:
        return (
            BookieOperation(
                "GET",
                f"{PATH}/list",
                "ids; `print_metadata=true` with records, in pages of 100 with `page`; `decode_meta=true` as JSON",
                self._list,
            ),
            BookieOperation("GET", f"{PATH}/metadata", "`ledger_id`; the password is left empty", self._metadata),
            BookieOperation(
                "GET",
                f"{PATH}/read",
                "`ledger_id`, `start_entry_id`, `end_entry_id`, `page` of 1,000; bytes that are not "
                "ASCII are shown as U+FFFD; at most 16 MiB",
                self._read,
            ),
            BookieOperation(
                "DELETE",
                f"{PATH}/delete",
                "`ledger_id`; one that is not there counts as deleted; one of a stream is refused "
                "(409), and so is an open one whose bookies are gone, unless `force=true`",
                self._delete,
            ),
        )

    async def _list(self, request: Request) -> Answer:
        """Without `print_metadata` the ids alone; the answer is sent as it is read, however many ledgers there are."""
        client = await self._link.client()
        shown = request.query.get("print_metadata") == "true"
        decoded = request.query.get("decode_meta") == "true"
        page = whole_number(request, "page", 0, least=-(2**31), most=2**31) if shown else 0
        first = (page - 1) * LEDGERS_PER_PAGE if page > 0 else 0
        last = first + LEDGERS_PER_PAGE - 1 if page > 0 else None
        return Answer(b"", content_type=JSON, pieces=_listing(client, shown, decoded, first, last))

    async def _metadata(self, request: Request) -> Answer:
        ledger = needed_ledger(request, "Not found method. Should be GET method, with ledger_id provided")
        client = await self._link.client()
        try:
            return json_answer({str(ledger): metadata_json(ledger, await client.metadata(ledger))})
        except NoSuchLedger as error:
            raise RequestError(404, str(error)) from None

    async def _read(self, request: Request) -> Answer:
        """Bytes that are not ASCII become U+FFFD, as in Java."""
        ledger = needed_ledger(request, "Not found method. Should be GET method, with ledger_id provided")
        first = whole_number(request, "start_entry_id", 0)
        last = whole_number(request, "end_entry_id", -1, least=-1)
        page = whole_number(request, "page", -1, least=-(2**31), most=2**31)
        found: dict[str, str] = {}
        if page > 0:
            begin = (page - 1) * ENTRIES_PER_PAGE
            first = max(first, begin)
            last = begin + ENTRIES_PER_PAGE - 1 if last == -1 else min(last, begin + ENTRIES_PER_PAGE - 1)
            found["Entries for page: "] = str(page)
        if last != -1 and first > last:
            raise RequestError(
                500, f"parameter for start_entry_id: {first} and end_entry_id: {last} conflict with page={page}"
            )
        client = await self._link.client()
        try:
            found |= await _entries(client, ledger, first, last)
        except (NoSuchLedger, NoSuchEntry) as error:
            raise RequestError(404, str(error)) from None
        except LedgerError as error:
            raise RequestError(500, str(error)) from None
        return json_answer(found)

    async def _delete(self, request: Request) -> Answer:
        """A ledger that is not there counts as deleted. With `force` its bookies may be gone."""
        ledger = needed_ledger(request, "Not ledger found. Should provide ledger_id=<id>")
        force = asked(request, "force")
        client = await self._link.client()
        try:
            password = (await client.metadata(ledger)).password or b""
            await client.delete(ledger, password=password, force=force)
        except NoSuchLedger:
            pass
        except LedgerError as error:
            raise RequestError(409, str(error)) from None
        return json_answer(f"Deleted ledger: {ledger}")


async def _entries(client: LedgerClient, ledger: LedgerId, first: EntryId, last: EntryId) -> dict[str, str]:
    found: dict[str, str] = {}
    size = 0
    # An operator reads with the password of the record, as Apache's bookies do.
    password = (await client.metadata(ledger)).password or b""
    async with client.open(ledger, password=password) as reader:
        end = min(last, reader.last_confirmed) if last >= 0 else reader.last_confirmed
        if first > end:
            return found
        async for chunk in reader.chunks(first, end):
            for entry in chunk:
                size += len(entry.payload)
                found[str(entry.entry_id)] = bytes(entry.payload).decode("ascii", "replace")
            if size > MOST_BYTES:
                raise RequestError(
                    413,
                    f"the entries from {first} on are more than {MOST_BYTES} bytes: read fewer at a time, with "
                    "start_entry_id and end_entry_id, or page",
                )
    return found


async def _listing(
    client: LedgerClient, shown: bool, decoded: bool, first: int, last: int | None
) -> AsyncIterator[bytes]:
    """A JSON object by ledger, in pieces. Pages count from 1 as Apache's do, whose first one has 99 ledgers."""
    opening, number = b"{", 0
    async for ledger in client.list():
        number += 1
        if last is not None and number > last:
            break
        if number < first:
            continue
        value: Any = None
        if shown:
            try:
                metadata = await client.metadata(ledger)
            except NoSuchLedger:  # deleted meanwhile
                continue
            value = metadata_json(ledger, metadata) if decoded else serialise(metadata).decode("utf-8", "replace")
        yield opening + f"\n  {json.dumps(str(ledger))} : {json.dumps(value)}".encode()
        opening = b","
    yield (opening if number == 0 or opening == b"{" else b"") + b"\n}"
