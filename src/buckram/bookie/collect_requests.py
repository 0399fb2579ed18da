"""Collects garbage when an operator asks for it, and writes into the metadata store what that came to.

Not here: how the request arrives (`bookie/operator_requests.py`); the collection (`bookie/garbage/collector.py`); the
command's side (`healing/operations/collecting.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from buckram.bookie.garbage.collector import Collector
from buckram.bookie.storage.errors import StoreError
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.healing.operator_requests import BEGUN, DONE, FAILED
from buckram.errors import KeyExists, MetadataError, NoSuchKey, VersionConflict
from buckram.metadata.records.operator_requests import answer_key
from buckram.seams import MetadataStore
from buckram.types import BookieId

log = logging.getLogger("buckram.bookie")


class CollectRequests:
    """Answers one request after the other. Of those that arrive during a collection only the newest counts."""

    def __init__(self, metadata: MetadataStore, bookie_id: BookieId, collector: Collector) -> None:
        self._metadata, self._collector = metadata, collector
        self._key = answer_key(metadata, bookie_id)
        self._word = ""
        self._asked = asyncio.Event()

    def ask(self, word: str) -> None:
        """Collect soon, and answer under this word."""
        self._word = word
        self._asked.set()

    async def run(self) -> None:
        """Handle requests until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            word = self._word
            log.info("an operator asks for a collection")
            await self._answer(word, {"state": BEGUN})
            try:
                found = await self._collector.collect(whole=True)
                answer = {"state": DONE} | found.as_json()
            except (MetadataError, StoreError, OSError) as error:
                log.warning("the collection that was asked for did not end: %s", error)
                answer = {"state": FAILED, "why": str(error)}
            await self._answer(word, answer)

    async def _answer(self, word: str, answer: dict[str, Any]) -> None:
        """Write the answer, and try again while the store is away, unless something newer is asked for."""
        value = json.dumps({"word": word} | answer).encode()
        delays = Delays(STORE_WATCH)
        while word == self._word:
            try:
                await self._put(value)
                break
            except MetadataError as error:
                log.info("what a collection came to cannot be written now: %s", error)
            await asyncio.sleep(delays.take())

    async def _put(self, value: bytes) -> None:
        """Write the reply as a session key, so that it lives as long as the session; a reply of an earlier session is
        replaced."""
        keys = self._metadata.keys
        try:
            found = await keys.get(self._key)
            if found.owned:
                await keys.set(self._key, value, found.version)
                return
            await keys.delete(self._key, found.version)
        except (NoSuchKey, VersionConflict):
            pass
        try:
            await keys.create(self._key, value, ephemeral=True)
        except KeyExists:
            await self._put(value)
