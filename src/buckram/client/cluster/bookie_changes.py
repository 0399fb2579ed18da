"""Changes from one list of bookies to the next, for subscribers and for the client's log of its cluster.

The log is `logging.getLogger("buckram.client")`. It has changes of state only, nothing for each entry. WARNING: a
bookie is lost, a ledger gets fewer copies than it should. INFO: a bookie came, a bookie failed a ledger's writer, an
ensemble changed, a ledger has all its copies again.

Not here: reading the lists and comparing them (`client/cluster/bookies.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from buckram.types import BookieId, BookieSet

log = logging.getLogger("buckram.client")


@dataclass(frozen=True, slots=True)
class BookieChange:
    """The changes of a new bookie list. An id in `reborn` came back with another incarnation: its old data is gone. An
    id in `convicted` is known as a liar from now on. `relocated`: known bookies have other places or labels."""

    appeared: tuple[BookieId, ...] = ()
    gone: tuple[BookieId, ...] = ()
    moved: tuple[BookieId, ...] = ()
    reborn: tuple[BookieId, ...] = ()
    convicted: tuple[BookieId, ...] = ()
    relocated: bool = False

    def __bool__(self) -> bool:
        return bool(self.appeared or self.gone or self.moved or self.reborn or self.convicted or self.relocated)


OnChange = Callable[[BookieChange], None]
"""Called on the loop after each change of the list; must not block or raise."""

Unsubscribe = Callable[[], None]
"""Ends a subscription; calling it again has no effect."""


def log_change(change: BookieChange, now: BookieSet) -> None:
    """Log which bookies appeared, are gone, lost their data or are convicted; `now` is the new list."""
    for bookie_id in change.gone:
        if bookie_id in now.readonly:
            log.info("bookie %s is read-only: it takes no new entries", bookie_id)
        else:
            log.warning("bookie %s is lost: it is not registered any more", bookie_id)
    for bookie_id in change.appeared:
        log.info("bookie %s has appeared", bookie_id)
    for bookie_id in change.reborn:
        log.warning("bookie %s came back without the data that it had", bookie_id)
    for bookie_id in change.convicted:
        log.warning("bookie %s is convicted of lying: see `buckram cluster check`", bookie_id)
