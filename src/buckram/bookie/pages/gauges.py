"""Gauges of a bookie that are computed only when the metrics are read."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from buckram.bookie.garbage.collector import Collector
from buckram.bookie.service.server import BookieServer
from buckram.bookie.storage.store import Store
from buckram.seams import Stats
from buckram.types import BookieId, BookieInfo

STATES = ("starting", "writable", "readonly", "unregistered", "failed")


class Measured(Protocol):
    """The parts of a bookie that are looked at (`bookie/process.py:Bookie`)."""

    store: Store | None
    collector: Collector | None
    info: BookieInfo | None

    @property
    def server(self) -> BookieServer: ...
    @property
    def state(self) -> str: ...


class Figures(NamedTuple):
    """Figures of a bookie at one moment that are not in its counters."""

    state: str
    bookie_id: BookieId
    log_files: int = 0
    log_bytes: int = 0
    dead_bytes: int = 0
    pending_bytes: int = 0
    """Bytes of adds that are not yet durable."""
    free_bytes: int = 0
    ledgers: int = 0
    deleted_ledgers: int = 0
    compactions: int = 0
    queued_reads: int = 0
    memory: tuple[tuple[str, int, int], ...] = ()
    """Parts of the memory, with the bytes in use and the most that they take; 0: without a limit."""


def figures_of(bookie: Measured) -> Figures:
    """Look at the bookie now; on its loop."""
    bookie_id = "" if bookie.info is None else bookie.info.bookie_id
    queued = sum(len(session.jobs) for session in bookie.server.sessions)
    store, collector = bookie.store, bookie.collector
    if store is None:
        return Figures(bookie.state, bookie_id)
    counts = store.stats()
    return Figures(
        bookie.state,
        bookie_id,
        counts["segments"],
        counts["data_bytes"],
        counts["dead_bytes"],
        counts["pending_bytes"],
        counts["free_bytes"],
        collector.ledgers if collector is not None else 0,
        collector.collected if collector is not None else 0,
        collector.compactions if collector is not None else 0,
        queued,
        tuple((one.name, one.bytes, one.limit or 0) for one in store.memory()),
    )


class Gauges:
    """Gauges of a bookie under Buckram's own names."""

    def __init__(self, stats: Stats) -> None:
        self._states = {
            state: stats.gauge("buckram_bookie_state", "1 for the state that the bookie is in.", state=state)
            for state in STATES
        }
        self._files = stats.gauge("buckram_store_log_files", "log files with data")
        self._dead = stats.gauge("buckram_store_dead_bytes", "bytes in log files that no ledger needs, about")
        self._pending = stats.gauge("buckram_store_pending_bytes", "bytes of adds that are not yet durable")
        self._ledgers = stats.gauge(
            "buckram_bookie_ledgers", "ledgers with data here, as the newest collection found them"
        )
        self._compactions = stats.gauge("buckram_bookie_compactions", "compactions that ended since the start")
        self._queued = stats.gauge("buckram_bookie_queued_reads", "reads that wait for their turn")

    def show(self, now: Figures) -> None:
        """Set all gauges; callable in any thread."""
        for state, gauge in self._states.items():
            gauge.set(state == now.state)
        self._files.set(now.log_files)
        self._dead.set(now.dead_bytes)
        self._pending.set(now.pending_bytes)
        self._ledgers.set(now.ledgers)
        self._compactions.set(now.compactions)
        self._queued.set(now.queued_reads)
