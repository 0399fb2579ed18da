"""Members that are slow for long: told in the log, a metric and metadata, and replaced where that is wanted.

Not here: when one is slow (`core/placement/latency.py`); how writers let it go (`client/write/ensemble_change.py`).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from buckram.client.cluster.bookie_changes import log
from buckram.client.cluster.bookies import BookieWatcher
from buckram.config import ClientConfig
from buckram.core.placement.latency import Slowness
from buckram.errors import MetadataError
from buckram.metadata.records.bookie_health import say_degraded
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore, Runtime
from buckram.types import BookieId

LOOK_S = 1.0


class SlowWriter(Protocol):
    """A writer that may have slow members."""

    def slow_members(self, slow: dict[BookieId, str]) -> None:
        """Take note of members that have been slow for long: they are to be replaced if other bookies are there."""
        ...


class SlowMembers:
    """The watch for slow members of one client. It looks only while there are writers."""

    def __init__(self, runtime: Runtime, store: MetadataStore, bookies: BookieWatcher, config: ClientConfig) -> None:
        self._store, self._bookies, self._config = store, bookies, config
        self._rng, self._name = runtime.rng, ""
        self._slowness = Slowness()
        self._writers: dict[int, SlowWriter] = {}
        self._told: dict[BookieId, None] = {}
        self._scope = TaskScope("slow members")
        self._looking = False
        self._gauge = runtime.stats.gauge(
            "buckram_client_degraded_bookies", "bookies that have taken far longer than the others for long"
        )
        store.on_session_lost(self._told.clear)

    def add(self, writer: SlowWriter) -> None:
        self._writers[id(writer)] = writer
        if not self._looking and not self._scope.closed:
            self._looking = True
            self._scope.spawn(self._watch(), "look")

    def remove(self, writer: SlowWriter) -> None:
        self._writers.pop(id(writer), None)

    async def close(self) -> None:
        self._writers.clear()
        await self._scope.close()

    async def _watch(self) -> None:
        try:
            while self._writers:
                await asyncio.sleep(LOOK_S)
                await self.look()
        finally:
            self._looking = False

    async def look(self) -> None:
        """Judge what adds took lately, report slow members, and let go of those that have been slow for too long."""
        now, adds, config = asyncio.get_running_loop().time(), self._bookies.recent.adds, self._config
        took = {bookie: adds.recent_s(bookie, now) for bookie in self._bookies.bookies.writable}
        self._slowness.look({bookie: seconds for bookie, seconds in took.items() if seconds is not None}, now)
        slow = self._slowness.longer_than(config.degraded_after_s, now) if config.degraded_after_s else []
        self._gauge.set(len(slow))
        try:
            await self._tell(slow)
        except MetadataError as error:
            log.info("slow bookies cannot be reported now: %s", error)
        if config.replace_slow_s:
            late = self._slowness.longer_than(config.replace_slow_s, now)
            for writer in list(self._writers.values()) if late else ():
                writer.slow_members({bookie: self._slowness.why[bookie] for bookie in late})

    async def _tell(self, slow: list[BookieId]) -> None:
        for bookie in slow:
            if bookie not in self._told:
                self._name = self._name or f"{self._rng.getrandbits(64):016x}"
                log.warning("bookie %s is degraded: %s", bookie, self._slowness.why[bookie])
                self._told[bookie] = None
                await say_degraded(self._store, bookie, self._name, self._slowness.why[bookie])
        for bookie in [bookie for bookie in self._told if bookie not in slow]:
            log.warning("bookie %s is no longer degraded", bookie)
            del self._told[bookie]
            await say_degraded(self._store, bookie, self._name, "")
