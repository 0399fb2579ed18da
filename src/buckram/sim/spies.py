"""Watching the bookies' stores without changing them: during a life two methods of Store also tell the judge.

Planted bugs (mutants/) are applied before, so the judge sees what they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from buckram.bookie.store import Store
from buckram.sim.world import World
from buckram.types import Buffer, EntryId, LedgerId


@contextmanager
def watch_stores(world: World) -> Iterator[None]:
    """Report inserts and burials of every bookie of this world to its judge."""
    add_run, bury = Store.add_run, Store.bury

    def watched_add_run(
        self: Store, ledger_id: LedgerId, first: EntryId, count: int, lac: EntryId, chunk: Buffer, start: int, end: int,
        *, even: bool = False,
    ) -> None:  # fmt: skip
        bookie = world.watched_bookie(self)
        if bookie is not None:
            record = self.ledger(ledger_id)
            fenced = record is not None and (record.fenced or record.tombstone)
            key = None if record is None else bytes(record.master_key)
            world.judge.inserted(bookie, ledger_id, chunk, start, end, fenced, key)
        add_run(self, ledger_id, first, count, lac, chunk, start, end, even=even)

    def watched_bury(self: Store, ledger_id: LedgerId) -> None:
        bookie = world.watched_bookie(self)
        if bookie is not None:
            world.judge.buried(bookie, ledger_id)
        bury(self, ledger_id)

    Store.add_run = watched_add_run  # type: ignore[method-assign]  # that is the purpose
    Store.bury = watched_bury  # type: ignore[method-assign,assignment]  # as above
    try:
        yield
    finally:
        Store.add_run = add_run  # type: ignore[method-assign]  # as above
        Store.bury = bury  # type: ignore[method-assign]  # as above
