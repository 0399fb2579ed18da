"""The notes of one client that members of a ledger may lack entries, which it takes back once it has copied them.

Not here: the keys (`metadata/records/incomplete_copies.py`), copying (`client/maintain/fill.py`), who else looks at the
notes (`healing/auditing/absence_checks.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from buckram.client.cluster.log import log
from buckram.errors import MetadataError
from buckram.metadata.records.incomplete_copies import WITHIN_S, IncompleteCopy, forget_behind, note_behind
from buckram.seams import MetadataStore, Stats
from buckram.types import BookieId, LedgerId


class BehindNotes:
    """The notes about one ledger."""

    def __init__(self, store: MetadataStore, ledger_id: LedgerId, stats: Stats) -> None:
        self._store, self._ledger_id, self._stats = store, ledger_id, stats
        self._noted: dict[BookieId, IncompleteCopy] = {}

    def noted(self, bookies: Collection[BookieId]) -> dict[BookieId, IncompleteCopy]:
        """Return the present notes about these bookies."""
        return {bookie: self._noted[bookie] for bookie in bookies if bookie in self._noted}

    async def note(self, bookies: Collection[BookieId], within_s: float = WITHIN_S) -> bool:
        """Note that these members may lack entries, and warn. Return whether the notes are known to be written within
        `within_s`."""
        names = ", ".join(bookies)
        try:
            for one in await note_behind(self._store, self._ledger_id, bookies, within_s):
                self._noted[one.bookie] = one
        except MetadataError as error:
            text = (
                "ledger %d: %s may lack entries, and that cannot be noted, so check it with `buckram ledger check`: %s"
            )
            log.warning(text, self._ledger_id, names, error)
            return False
        count = self._stats.counter(
            "buckram_client_ledgers_behind_total", "notes that members of a ledger may lack entries of it"
        )
        count.inc(len(bookies))
        log.warning("ledger %d is noted as lacking copies: %s did not confirm all entries", self._ledger_id, names)
        return True

    async def clear(self, noted: Mapping[BookieId, IncompleteCopy]) -> None:
        """Take back notes, because everything was copied since; later notes stay. If only administrators may remove
        them from the store, autorecovery does so after a look."""
        for bookie, one in noted.items():
            if self._noted.get(bookie) == one:
                del self._noted[bookie]
            with suppress(MetadataError):
                await forget_behind(self._store, one)


__all__ = ["BehindNotes"]
