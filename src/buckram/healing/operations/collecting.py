"""Ask a running bookie to collect garbage now, and wait for the result.

Not here: the collection (`bookie/garbage/collector.py`), and the bookie's side of the request
(`bookie/collect_requests.py`).
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from dataclasses import replace

from buckram.client.ledger_client import LedgerClient
from buckram.core.cluster.bookie_report import Collected, parse_collected
from buckram.core.healing.operator_requests import BEGUN, DONE, FAILED, OperatorRequest
from buckram.errors import MalformedRecord, NoSuchBookie, NoSuchKey
from buckram.healing.operations.dependency_check import OperationRefused
from buckram.healing.operations.operator_calls import FOLLOW_S, HANGS
from buckram.metadata.records.operator_requests import answer_key, change_wish
from buckram.seams import MetadataStore
from buckram.types import BookieId

_LOOK_S = 1.0
"""Interval between two looks for the answer, seconds, whatever watches say."""


async def collect_now(client: LedgerClient, bookie: BookieId, *, within_s: float = FOLLOW_S) -> Collected:
    """Have a bookie run one round of collection and a compaction, and wait until they have ended.

    `within_s`: seconds within which the bookie has to begin. Raises NoSuchBookie; Refused for a bookie that is down, is
    Apache's or does not follow, and with the bookie's reason if its collection failed.
    """
    store = client.services.store
    await _check(store, bookie)
    begun, _ = await _read(store, bookie)
    fresh = secrets.token_hex(8)

    def ask(wish: OperatorRequest) -> OperatorRequest | None:
        # All callers that wait for the same unanswered request share its answer.
        waits = wish.collect and begun.get("word") != wish.collect
        return None if waits else replace(wish, collect=fresh)

    word = (await change_wish(store, bookie, ask)).collect
    try:
        return await _answer(store, bookie, word, within_s)
    finally:
        await change_wish(store, bookie, lambda wish: replace(wish, collect="") if wish.collect == word else None)


async def _check(store: MetadataStore, bookie: BookieId) -> None:
    await store.sync()
    info = (await store.bookies()).find(bookie)
    if info is None:
        if bookie not in await store.known_bookies():
            raise NoSuchBookie(bookie)
        raise OperationRefused(f"bookie {bookie} is down: start it; it collects by itself then")
    if info.incarnation is None:
        raise OperationRefused(
            f"bookie {bookie} is Apache's and cannot be asked: use its own HTTP port, PUT /api/v1/bookie/gc"
        )


async def _answer(store: MetadataStore, bookie: BookieId, word: str, within_s: float) -> Collected:
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    deadline = loop.time() + within_s
    begun = False
    while True:
        changed.clear()
        record, key = await _read(store, bookie, changed)
        state = record.get("state") if record.get("word") == word else None
        if state == DONE:
            return parse_collected(key, record)
        if state == FAILED:
            raise OperationRefused(f"bookie {bookie} did not collect: {record.get('why')}; it tries again by itself")
        begun = begun or state == BEGUN
        if (await store.bookies()).find(bookie) is None:
            raise OperationRefused(
                f"bookie {bookie} is not registered any more; nothing is half done: start it and ask again"
            )
        if not begun and loop.time() >= deadline:
            raise OperationRefused(f"bookie {bookie} did not begin to collect within {within_s:g} s: {HANGS}")
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_LOOK_S, within_s)):
                await changed.wait()


async def _read(
    store: MetadataStore, bookie: BookieId, changed: asyncio.Event | None = None
) -> tuple[dict[str, object], str]:
    """Return the newest answer of the bookie, empty if there is none, and its key. Raises MalformedRecord."""
    key = answer_key(store, bookie)
    try:
        record = json.loads((await store.keys.get(key, changed.set if changed is not None else None)).value)
    except NoSuchKey:
        return {}, key
    except ValueError:
        raise MalformedRecord(f"{key}: not JSON; delete it") from None
    return (record if isinstance(record, dict) else {}), key
