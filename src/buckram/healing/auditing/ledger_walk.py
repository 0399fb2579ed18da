"""A check that looks at every ledger, one after the other: one that cannot be read is counted and does not stop the
check.

Not here: what is looked at and when (`healing/auditing/periodic_checks.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from buckram.client.ledger_client import LedgerClient
from buckram.core.healing.needs import members_of
from buckram.errors import (
    AccessRefused,
    BuckramError,
    InvariantViolation,
    MalformedRecord,
    MetadataError,
    NoSuchLedger,
)
from buckram.metadata.records.underreplication import Underreplication
from buckram.types import BookieId, LedgerId, LedgerMetadata

log = logging.getLogger("buckram.healing")
_PAGE = 1000
_TRIES = 3
_SILENT_S = 60.0


@dataclass(slots=True)
class Checked:
    """Counts of one run of a check."""

    ledgers: int = 0
    """Ledgers that were looked at."""
    marked: int = 0
    """Ledgers with a bookie that does not hold all its entries as it should."""
    unknown: int = 0
    """Ledgers with a bookie that could not be asked, or whose record changed all the time."""
    unreadable: int = 0
    """Ledgers whose record or mark cannot be read."""
    skipped: int = 0
    """Ledgers that the check cannot judge."""
    misplaced: int = 0
    """Ledgers whose members break their placement."""
    complete: bool = False
    """True if every ledger was looked at; False for a run that was stopped."""


class LedgerWalk:
    """One run over all ledgers. Subclasses define what is looked at."""

    title = "check"

    def __init__(self, client: LedgerClient) -> None:
        self._client, self._services = client, client.services

    async def run(self, go_on: Callable[[], bool]) -> Checked:
        """Look at every ledger while `go_on` returns True.

        Raises MetadataError if ledgers cannot be listed or marked.
        """
        found, after, store = Checked(), -1, self._services.store
        while page := await store.list_ledgers(after=after, limit=_PAGE):
            for ledger in page:
                if not go_on():
                    return found
                found.ledgers += 1
                await self._ledger(ledger, found)
            after = page[-1]
        found.complete = True
        return found

    async def _ledger(self, ledger: LedgerId, found: Checked) -> None:
        """Look at one ledger; one that cannot be read is counted, and never stops the others."""
        try:
            await self.look(ledger, found)
        except NoSuchLedger:
            return
        except (MalformedRecord, AccessRefused) as error:
            found.unreadable += 1
            log.warning("%s: %s", self.title, error)
        except (MetadataError, InvariantViolation):
            raise
        except BuckramError as error:
            found.unknown += 1
            log.warning("%s: ledger %d: %s", self.title, ledger, error)

    async def look(self, ledger: LedgerId, found: Checked) -> None:
        """Look at one ledger and count what is found. Raises the errors of reading it."""
        raise NotImplementedError


class MemberCheck(LedgerWalk):
    """Looks at the bookies that each ledger names, and marks the ledger for those that do not hold what they should.

    Bookies that are away are left to the audit of bookies.
    """

    def __init__(self, client: LedgerClient, tree: Underreplication) -> None:
        super().__init__(client)
        self._tree = tree
        self._only: BookieId | None = None
        """The one member that is looked at; None for all members."""
        self._silent_until: dict[BookieId, float] = {}
        """Bookies that could not be read a moment ago, until when they are skipped: one wait for each ledger would be
        too long.
        """

    async def holds(self, ledger: LedgerId, metadata: LedgerMetadata, bookie: BookieId) -> bool | None:
        """Return whether the bookie holds its part as it should; None if it cannot be told."""
        raise NotImplementedError

    def skips(self, metadata: LedgerMetadata) -> bool:
        """Return whether the check cannot judge a ledger with such metadata."""
        return False

    async def look_at(self, ledger: LedgerId, bookie: BookieId, found: Checked) -> bool:
        """Look at the copies of one member only, and mark what lacks.

        Return whether the state of its copies is known.
        """
        unknown = found.unknown + found.unreadable
        self._only = bookie
        try:
            await self._ledger(ledger, found)
        finally:
            self._only = None
        return found.unknown + found.unreadable == unknown

    async def look(self, ledger: LedgerId, found: Checked) -> None:
        lacking = await self._lacking(ledger, found)
        if lacking is None:
            found.unknown += 1
        elif lacking:
            await self._tree.mark(ledger, lacking, self._services.runtime.clock.wall_us() // 1000)
            found.marked += 1
            log.warning("%s: ledger %d is marked: %s lack good copies", self.title, ledger, ", ".join(lacking))

    def is_silent(self, bookie: BookieId) -> bool:
        return self._silent_until.get(bookie, 0.0) > asyncio.get_running_loop().time()

    def was_silent(self, bookie: BookieId) -> None:
        self._silent_until[bookie] = asyncio.get_running_loop().time() + _SILENT_S

    async def _lacking(self, ledger: LedgerId, found: Checked) -> list[BookieId] | None:
        """Return the bookies that do not hold what the record places on them; None if one of them could not be asked.

        What lacks counts only while the record stays the same: a bookie gives up what another one took over.
        """
        store = self._services.store
        before = await store.read_ledger(ledger)
        if self.skips(before.metadata):
            found.skipped += 1
            return []
        for _ in range(_TRIES):
            lacking: list[BookieId] = []
            unknown = False
            for bookie in members_of(before.metadata):
                if self._only not in (None, bookie):
                    continue
                if self._services.bookies.info(bookie) is None:
                    unknown |= self._only is not None
                    continue
                holds = None if self.is_silent(bookie) else await self.holds(ledger, before.metadata, bookie)
                unknown |= holds is None
                if holds is False:
                    lacking.append(bookie)
            if not lacking:
                return None if unknown else []
            again = await store.read_ledger(ledger)
            if again.version == before.version:
                return lacking
            before = again
        return None
