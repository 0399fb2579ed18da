"""The account of a collection: how many bytes a bookie could give back, how many it gave, and why it keeps the rest.

Not here: the collection itself (`bookie/garbage/collector.py`); the record that operators get
(`core/cluster/bookie_report.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from buckram.bookie.storage.store import Store
from buckram.config import BookieConfig
from buckram.core.cluster.bookie_report import Collected, Keeps, KeptGarbage
from buckram.core.health.state_table import TABLE
from buckram.runtime.process.stats import NullStats
from buckram.seams import Stats
from buckram.types import LedgerId


class UncollectedLedgers(NamedTuple):
    """Ledgers of a bookie that metadata does not place there, and that a collection left."""

    absent: frozenset[LedgerId]
    """Metadata lacks them."""
    moved: frozenset[LedgerId]
    """Closed ledgers that metadata places on other bookies only."""
    unknown: frozenset[LedgerId]
    """Ledgers of `absent` whose ids the store never gave."""
    held: frozenset[LedgerId]
    """Ledgers of `absent` that were absent long enough to be deleted, but that the brake keeps."""
    trusted: bool
    """False if the metadata store went back, so that its listing is not relied on."""
    recorded: frozenset[LedgerId] = frozenset()
    """Ledgers of `absent` whose deletion is recorded: the next look at the records deletes them."""


def sum_of(kept: Iterable[KeptGarbage]) -> int:
    """Return the bytes of all of them; what was not counted adds nothing."""
    return sum(one.bytes or 0 for one in kept)


class Account:
    """Counts what a store keeps, and shows it in metrics."""

    def __init__(self, store: Store, config: BookieConfig, stats: Stats | None = None) -> None:
        self._store, self._age_s = store, config.collection_age_s
        stats = stats or NullStats()
        self._reclaimable = stats.gauge(
            "buckram_bookie_collection_reclaimable_bytes", "bytes of garbage that are kept for now"
        )
        self._reclaimed = stats.counter(
            "buckram_bookie_collection_reclaimed_bytes_total", "bytes of log files that collections freed"
        )
        self._kept = {
            kind: stats.gauge(
                "buckram_bookie_collection_kept_bytes",
                "bytes of garbage, by the reason for which they are kept",
                why=kind,
            )
            for kind in Keeps
        }

    def note(self, found: Collected) -> Collected:
        """Show what a collection came to."""
        self._reclaimable.set(sum_of(found.kept))
        self._reclaimed.inc(found.bytes_reclaimed)
        for kind, gauge in self._kept.items():
            gauge.set(sum_of(one for one in found.kept if one.kind == kind))
        return found

    async def kept(self, waiting: UncollectedLedgers) -> tuple[KeptGarbage, ...]:
        """Return the kinds of dead data that are kept here, with the reasons, the largest first. Raises StoreError and
        OSError."""
        kinds = dict.fromkeys(waiting.moved, Keeps.MOVED)
        kinds |= dict.fromkeys(waiting.absent, Keeps.SECOND_LOOK)
        kinds |= dict.fromkeys(waiting.held, Keeps.BRAKE)
        kinds |= dict.fromkeys(waiting.unknown & waiting.absent, Keeps.UNKNOWN_IDS)
        kinds |= dict.fromkeys(waiting.recorded & waiting.absent, Keeps.RECORDED)
        sizes = await self._store.bytes_by(kinds)
        numbers = dict.fromkeys(Keeps, 0)
        for kind in kinds.values():
            numbers[kind] += 1
        files = await self._store.dead_bytes()
        by_files = {
            Keeps.MOSTLY_ALIVE: files.mostly_alive,
            Keeps.TO_BE_REWRITTEN: files.mostly_dead,
            Keeps.NOT_SEALED: files.not_sealed,
        }
        found = [KeptGarbage(kind, self._why(kind), size) for kind, size in by_files.items() if size]
        found += [
            KeptGarbage(kind, self._why(kind), sizes.get(kind, 0), number) for kind, number in numbers.items() if number
        ]
        if not waiting.trusted:
            found.append(KeptGarbage(Keeps.UNTRUSTED, self._why(Keeps.UNTRUSTED), None))
        return tuple(sorted(found, key=lambda one: -(one.bytes or 0)))

    def _why(self, kind: Keeps) -> str:
        state = TABLE["unknown-ledgers" if kind is Keeps.UNKNOWN_IDS else "collection-waits"]
        return _WHY[kind].format(age=f"{self._age_s:g} s", runbook=state.runbook)


_SECOND = "deleted when a second look finds the same, {age} after the first; no request shortens that"
_WORD = "{runbook} says how to decide"
_WHY = {
    Keeps.MOSTLY_ALIVE: "dead bytes, headers and padding in log files that are mostly alive: a file is rewritten when "
    "less of it is alive than [store] compaction_threshold",
    Keeps.TO_BE_REWRITTEN: "log files that are mostly dead and could not be rewritten in this round: another file lies "
    "between them, the disk is full, or a block of them is damaged (the bookie's log says which); the next round tries "
    "again",
    Keeps.NOT_SEALED: "dead bytes, headers and padding in the log file that is being written: it is rewritten after it "
    "is full and has its index",
    Keeps.SECOND_LOOK: f"ledgers that metadata does not list: {_SECOND}",
    Keeps.RECORDED: "ledgers whose deletion is recorded: the next look at the records, within seconds, lets them go",
    Keeps.MOVED: f"copies that metadata places on other bookies: {_SECOND}",
    Keeps.BRAKE: "more ledgers are absent from metadata than are deleted without an operator's consent, or it "
    f"was restored: {_WORD}",
    Keeps.UNKNOWN_IDS: f"ledgers with ids that the metadata store never gave: {_WORD}",
    Keeps.UNTRUSTED: "the metadata store went back to an earlier state, so no ledger is deleted: see `buckram cluster "
    "check`",
}
