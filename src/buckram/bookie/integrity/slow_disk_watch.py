"""Watches how long syncs of this bookie's disk take, and says so when the disk has become slow.

It says so in a key that clients watch, so that new ensembles leave the bookie out where there is a choice.
Not here: what makes a disk slow (`core/healing/slow_disk.py`); the keys (`metadata/records/bookie_health.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math

from buckram.bookie.storage.store import Store
from buckram.bookie.trust.metadata_note import Note
from buckram.core.healing.slow_disk import SlowDisk
from buckram.core.wire.messages import Trouble
from buckram.errors import MetadataError
from buckram.metadata.records.bookie_health import slow_key, speed_key, sync_speeds
from buckram.runtime.disk.io_errors import passing
from buckram.seams import Disk, MetadataStore, Stats, Write
from buckram.types import BookieId

log = logging.getLogger("buckram.bookie")
WINDOW_S = 10.0
"""Length of one window, seconds; windows without a sync are not judged."""
FILE = "probe"
"""File that is written now and then while the disk is slow and there are no other writes, to notice when it is well
again."""
_PROBE = bytes(4096)
_STEP = 1.5
"""Base of the published sync time, which is rounded up to a power of this so that it rarely changes."""


class DiskWatch:
    """The watch over one bookie's disk. `run` never ends by itself; cancel it."""

    def __init__(
        self,
        store: Store,
        disk: Disk,
        metadata: MetadataStore,
        bookie_id: BookieId,
        slow_sync_ms: float,
        stats: Stats,
    ) -> None:
        self._store, self._disk, self._metadata, self._bookie_id = store, disk, metadata, bookie_id
        self._floor_s = slow_sync_ms / 1000
        self.state = SlowDisk(self._floor_s)
        self.mean_s = 0.0
        """Mean time of a sync in the last window that had any, seconds."""
        self._slow_note = Note(metadata, slow_key(metadata, bookie_id))
        self._speed_note = Note(metadata, speed_key(metadata, bookie_id))
        self._seen = store.syncs
        self._told_us = 0
        self._lost = 0
        """Number of sessions lost so far: a key that was written in one of them is gone."""
        self._slow_told = False
        metadata.on_session_lost(self._session_lost)
        self._mean_gauge = stats.gauge("buckram_disk_sync_seconds", "mean of a sync, with its write, lately")
        self._past_gauge = stats.gauge("buckram_disk_sync_past_seconds", "the same over about the last hour")
        self._slow_gauge = stats.gauge("buckram_disk_slow", "1 while the disk is slow, and new ensembles avoid it")

    def figures(self) -> dict[str, int]:
        """Return the mean times of a sync, by name."""
        return {"sync_us": round(self.mean_s * 1e6), "sync_past_us": round(self.state.past_s * 1e6)}

    def troubles(self) -> list[Trouble]:
        """Return that the disk is slow, if it is."""
        if not self.state.slow:
            return []
        action = "check the device; new ledgers avoid this bookie in the meantime where there are others"
        return [Trouble("slow disk", self.state.why, action)]

    async def run(self) -> None:
        """Look at one window after the other."""
        while self._floor_s:
            await asyncio.sleep(WINDOW_S)
            await self.look()

    async def look(self) -> None:
        """Judge the syncs since the last look."""
        mean_s = self._window()
        if mean_s is None and self.state.slow:
            mean_s = await self._probe()
        try:
            if mean_s is not None:
                self.mean_s = mean_s
                self._mean_gauge.set(mean_s)
                others = await sync_speeds(self._metadata, self._bookie_id) if self._matters(mean_s) else {}
                if self.state.window(mean_s, list(others.values())):
                    self._changed()
                self._past_gauge.set(self.state.past_s)
                await self._tell_speed(mean_s)
            await self._tell_slow()
        except MetadataError as error:
            log.info("bookie %s: the speed of its disk cannot be published now: %s", self._bookie_id, error)

    def _window(self) -> float | None:
        """Return the mean of the syncs since the last look, one that does not end included; None: there were none."""
        before, self._seen = self._seen, self._store.syncs
        count, seconds = self._seen.number - before.number, self._seen.seconds - before.seconds
        hanging_s = self._store.sync_under_way_s
        if hanging_s > self._floor_s:
            count, seconds = count + 1, seconds + hanging_s
        return seconds / count if count else None

    def _matters(self, mean_s: float) -> bool:
        """Return whether to compare with other bookies: only if this disk is taken for slow, or its mean reaches the
        floor."""
        return self.state.slow or mean_s >= self._floor_s

    async def _probe(self) -> float | None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._disk.offload(self._write_probe)
        except OSError as error:
            if not passing(error):
                raise  # a disk that fails a write ends its bookie, whatever file it was
            log.info("bookie %s: its disk is not probed: %s", self._bookie_id, error)
            return None
        return loop.time() - began

    def _write_probe(self) -> None:
        file = self._disk.open(FILE, create=FILE not in self._disk.names())
        try:
            self._disk.write_now([Write(file, 0, [_PROBE])])
        finally:
            file.close()

    def _changed(self) -> None:
        self._slow_gauge.set(self.state.slow)
        if self.state.slow:
            log.warning("bookie %s: the disk is slow: %s", self._bookie_id, self.state.why)
        else:
            log.warning("bookie %s: the disk is no longer slow", self._bookie_id)

    async def _tell_speed(self, mean_s: float) -> None:
        """Publish the mean time of a sync, rounded so that it does not change while nothing of note happens."""
        least_us = self._floor_s * 1e6 / 4
        steps = max(0, math.ceil(math.log(max(mean_s * 1e6, least_us) / least_us, _STEP)))
        told_us = round(least_us * _STEP**steps)
        if told_us != self._told_us:
            self._told_us, lost = 0, self._lost
            if await self._speed_note.write(str(told_us).encode()) and lost == self._lost:
                self._told_us = told_us

    async def _tell_slow(self) -> None:
        if self.state.slow and not self._slow_told:
            lost = self._lost
            self._slow_told = await self._slow_note.write(self.state.why.encode()) and lost == self._lost
        elif self._slow_told and not self.state.slow:
            await self._slow_note.remove()
            self._slow_told = False

    def _session_lost(self) -> None:
        """Have the next look write the keys again: they are gone with the session."""
        self._told_us, self._slow_told = 0, False
        self._lost += 1
