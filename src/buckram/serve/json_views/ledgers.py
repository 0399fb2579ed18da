"""Ledgers: their records, and which of their bookies are away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from buckram.core.ledgers.metadata import BIRTH
from buckram.errors import AccessRefused, MalformedRecord, MetadataError, NoSuchLedger
from buckram.types import BookieId, LedgerId, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient

STATES = {LedgerState.OPEN: "open", LedgerState.IN_RECOVERY: "in_recovery", LedgerState.CLOSED: "closed"}
_READ_AT_ONCE = 64


def ledger_json(ledger_id: LedgerId, metadata: LedgerMetadata) -> dict[str, Any]:
    """Return the JSON of a ledger."""
    return {
        "ledger": ledger_id,
        "state": STATES[metadata.state],
        "last_entry": metadata.last_entry,
        "length": metadata.length,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "fragments": [{"first_entry": f.first_entry, "ensemble": list(f.ensemble)} for f in metadata.fragments],
        "custom_metadata": {
            key: value.decode("utf-8", "backslashreplace")
            for key, value in metadata.custom_metadata.items()
            if key != BIRTH
        },
        "birth": metadata.custom_metadata[BIRTH].hex() if BIRTH in metadata.custom_metadata else None,
        "digest": metadata.digest_type.name.lower() if metadata.digest_type is not None else None,
        "creation_time_ms": metadata.creation_time_ms,
    }


def away(client: LedgerClient, metadata: LedgerMetadata) -> list[BookieId]:
    """Return which members of a ledger are not registered now."""
    members = dict.fromkeys(bookie for fragment in metadata.fragments for bookie in fragment.ensemble)
    return [bookie for bookie in members if client.services.bookies.info(bookie) is None]


async def records_of(
    client: LedgerClient, ledgers: Sequence[LedgerId]
) -> list[tuple[LedgerId, LedgerMetadata | MetadataError]]:
    """Return the records of these ledgers, without those that are gone; an error in the place of one that is bad."""
    found: list[tuple[LedgerId, LedgerMetadata | MetadataError]] = []
    for start in range(0, len(ledgers), _READ_AT_ONCE):
        asked = ledgers[start : start + _READ_AT_ONCE]
        answers = await asyncio.gather(*(_record_of(client, ledger_id) for ledger_id in asked))
        found += [(known, answer) for known, answer in zip(asked, answers, strict=True) if answer is not None]
    return found


async def _record_of(client: LedgerClient, ledger_id: LedgerId) -> LedgerMetadata | MetadataError | None:
    """Return the metadata of a ledger: None if it was deleted meanwhile, the error if its record cannot be read, so
    that the other ledgers can be listed all the same.
    """
    try:
        return await client.metadata(ledger_id)
    except NoSuchLedger:
        return None
    except (MalformedRecord, AccessRefused) as error:
        return error


def listed_json(client: LedgerClient, ledger_id: LedgerId, answer: LedgerMetadata | MetadataError) -> dict[str, Any]:
    """Return the JSON of a ledger in a list, or of one whose record cannot be read."""
    if isinstance(answer, MetadataError):
        return {"ledger": ledger_id, "state": "unreadable", "last_entry": None, "error": str(answer)}
    return {**ledger_json(ledger_id, answer), "away": away(client, answer)}
