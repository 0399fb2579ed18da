"""Keys that crashes and removals leave in the metadata store and that nothing reads any more; and their removal.

Each is judged anew right before it is removed, and removed only in the version that was judged. Not here: ledgers that
no stream lists (`streams/maintain/orphans.py`).
"""

from __future__ import annotations

from contextlib import suppress

from buckram.core.healing.operator_requests import NOTHING
from buckram.core.health.cluster_states import named
from buckram.core.health.facts import Noted
from buckram.errors import NoSuchKey
from buckram.healing.cleanup import Fixable
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.operator_requests import change_wish, read_wishes
from buckram.metadata.records.underreplication import Underreplication
from buckram.metadata.tree.removals import is_gone
from buckram.seams import MetadataStore
from buckram.types import BookieId, LedgerId


async def leftovers(store: MetadataStore) -> list[Fixable]:
    """Return the leftovers: marks of ledgers that are gone, reasons of ledgers that do not wait any more, wishes of
    unknown bookies.
    """
    found: list[Fixable] = []
    tree, board = Underreplication(store.keys, store.root, ""), HealingStatusStore(store)
    marked = [ledger async for ledger in tree.marked()]
    gone = [ledger for ledger in marked if await is_gone(store, ledger)]
    if gone:
        why = "they are marked as lacking copies, and do not exist any more"
        noted = Noted("leftovers", f"marks of ledgers {named([str(one) for one in gone])}", why)
        found.append(Fixable(noted, lambda: _unmark(store, gone)))
    reasons = [one.ledger async for one in board.waiting() if one.ledger not in frozenset(marked)]
    if reasons:
        why = "reasons are kept for which they wait, and they wait for nothing"
        noted = Noted("leftovers", f"reasons of ledgers {named([str(one) for one in reasons])}", why)
        found.append(Fixable(noted, lambda: _forget_reasons(store, reasons)))
    unknown = await _wishes_of_nobody(store)
    if unknown:
        why = "something is asked of bookies that the cluster does not know"
        noted = Noted("leftovers", f"wishes of bookies {named(unknown)}", why)
        found.append(Fixable(noted, lambda: _forget_wishes(store, unknown)))
    return found


async def _unmark(store: MetadataStore, ledgers: list[LedgerId]) -> str:
    tree, done = Underreplication(store.keys, store.root, ""), 0
    for ledger in ledgers:
        mark = await tree.read_mark(ledger)
        if mark is not None and await is_gone(store, ledger):
            done += await tree.unmark(mark)
    return f"removed {done} marks"


async def _forget_reasons(store: MetadataStore, ledgers: list[LedgerId]) -> str:
    tree = Underreplication(store.keys, store.root, "")
    done = [ledger for ledger in ledgers if await tree.read_mark(ledger) is None]
    await HealingStatusStore(store).clear_waiting(done)
    return f"removed the reasons of {len(done)} ledgers"


async def _wishes_of_nobody(store: MetadataStore) -> list[BookieId]:
    known = {*await store.known_bookies(), *(bookie for bookie, _ in (await store.bookies()).everybody())}
    return [bookie for bookie in await read_wishes(store) if bookie not in known]


async def _forget_wishes(store: MetadataStore, bookies: list[BookieId]) -> str:
    unknown = [bookie for bookie in await _wishes_of_nobody(store) if bookie in bookies]
    for bookie in unknown:
        with suppress(NoSuchKey):
            await change_wish(store, bookie, lambda _: NOTHING)
    return f"removed what was asked of {named(unknown)}"
