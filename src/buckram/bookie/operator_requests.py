"""Follows what operators ask of this bookie: to be read-only, to rest for a while, to collect garbage now.

A request is a key of the metadata store, so it needs no port of the bookie, and a request that was made while the
bookie was down is followed from its start on. The result of a collection is written back into the store.

Not here: the records (`core/healing/operator_requests`), the copying of what a bookie gives away (`healing/`), the
collection itself (`bookie/garbage/collector.py`), the command's side (`healing/operations/operator_calls.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from buckram.bookie.garbage.collector import Collector
from buckram.bookie.storage.read_results import StoreError
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.healing.operator_requests import BEGUN, DONE, FAILED, NOTHING, Countdown
from buckram.errors import KeyExists, MalformedRecord, MetadataError, NoSuchKey, VersionConflict
from buckram.metadata.records.operator_requests import answer_key, change_wish, read_wish
from buckram.seams import MetadataStore
from buckram.types import BookieId

log = logging.getLogger("buckram.bookie")

LOOK_S = 60.0
"""Interval at which the key is read whether or not a watch fires, seconds."""


class OperatorRequests:
    """`prepare` before the bookie registers, then `run`. `on_change` is called when what is asked for changed,
    `on_collect` with the word of each request to collect."""

    def __init__(
        self, metadata: MetadataStore, bookie_id: BookieId, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._metadata, self._bookie_id, self._on_change = metadata, bookie_id, on_change
        self.on_collect: Callable[[str], None] | None = None
        self._wish = NOTHING
        self._passed_on = ""
        self._countdown = Countdown()
        self._changed = asyncio.Event()
        self._shown = (False, False, False)
        self.out = False
        """True once an operator took the bookie out of the cluster; it stays true until the process ends, also if the
        key goes."""

    @property
    def readonly(self) -> bool:
        """Return whether the bookie shall take no new entries: an operator asked for that, or has it leave, or took it
        out."""
        return self._wish.readonly or self._wish.leave or self.out

    @property
    def resting(self) -> bool:
        """Return whether the bookie rests: no new ensemble shall get it, but those that have it go on."""
        return bool(self._countdown.resting(asyncio.get_running_loop().time()))

    async def prepare(self) -> None:
        """Look for the first time. MetadataUnavailable."""
        await self._look()

    async def run(self) -> None:
        """Follow the key until cancelled. What was read last stays in force while the store is away."""
        delays = Delays(STORE_WATCH)
        while True:
            self._changed.clear()
            loop = asyncio.get_running_loop()
            try:
                await self._look()
                await self._count()
                self._collect()
                delays.reset()
                next_at = self._countdown.next_at({self._bookie_id: self._wish}, loop.time())
                wait_s = LOOK_S if next_at is None else min(LOOK_S, next_at - loop.time())
            except MetadataError as error:
                log.info("bookie %s: the requests of operators cannot be read now: %s", self._bookie_id, error)
                wait_s = delays.take()
            self._publish()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def _look(self) -> None:
        try:
            self._wish = await read_wish(self._metadata, self._bookie_id, self._changed.set)
        except MalformedRecord as error:
            log.warning("bookie %s: the requests of operators stay as they were: %s", self._bookie_id, error)
        self._countdown.seen({self._bookie_id: self._wish}, asyncio.get_running_loop().time())
        self._publish()

    async def _count(self) -> None:
        """Write down what is left of a maintenance, and end it."""
        now = asyncio.get_running_loop().time()
        if self._countdown.changed(self._bookie_id, self._wish, now) is not None:
            self._wish = await change_wish(
                self._metadata, self._bookie_id, lambda wish: self._countdown.changed(self._bookie_id, wish, now)
            )
            self._countdown.seen({self._bookie_id: self._wish}, now)

    def _collect(self) -> None:
        word = self._wish.collect
        if word and word != self._passed_on and self.on_collect is not None:
            self._passed_on = word
            self.on_collect(word)

    def _publish(self) -> None:
        if self._wish.out and not self.out:
            self.out = True
            log.warning("bookie %s was taken out of the cluster: nothing needs it, stop it", self._bookie_id)
        shown = self.readonly, self.resting, self.out
        if shown != self._shown:
            self._shown = shown
            log.info("bookie %s: asked to be read-only: %s, to rest: %s, to be out: %s", self._bookie_id, *shown)
            self._on_change()


# -- collections on request -----------------------------------------------------------------------------------


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
                log.warning("the collection that an operator asked for did not complete: %s", error)
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
                log.info("the result of a collection cannot be recorded now: %s", error)
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
