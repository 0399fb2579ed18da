"""Findings of `buckram doctor` beyond a look at the cluster's health, and the fixes that lose nothing.

They are orphans (ledgers and streams that nothing uses), keys that crashes and removals leave in the metadata store and
that nothing reads any more, and, on a long look only, keys and ledgers that are no longer needed, with what removes
them. Each leftover is judged anew right before it is removed, and removed only in the version that was judged.

Not here: the look (`health/gathering.py`), reading all records and what is wrong with a single one
(`metadata/maintain/checkup.py`), ledgers that no stream lists (`streams/maintain/orphans.py`), what is printed
(`cli/cluster/doctor.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from buckram.client.ledger_client import LedgerClient
from buckram.core.healing.operator_requests import NOTHING
from buckram.core.health.cluster_states import named
from buckram.core.health.facts import Noted
from buckram.errors import BuckramError, NoSuchKey
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.operator_requests import change_wish, read_wishes
from buckram.metadata.records.underreplication import Underreplication
from buckram.metadata.tree.removals import is_gone
from buckram.seams import MetadataStore
from buckram.streams.maintain.orphans import Orphan, delete_orphan, find_orphans
from buckram.streams.shared.metadata import StreamStore
from buckram.types import BookieId, LedgerId

Fix = Callable[[], Awaitable[str]]
"""A coroutine that mends something and returns what it did. Raises BuckramError."""


@dataclass(frozen=True, slots=True)
class Fixable:
    """A finding with a fix that loses nothing."""

    noted: Noted
    fix: Fix


async def orphans(client: LedgerClient) -> list[Fixable]:
    """Return the ledgers that were made for a stream, have no place in it, and never will."""
    found = [one for one in await find_orphans(client, StreamStore(client.services.store)) if one.safe]
    if not found:
        return []
    where = f"ledgers {named([str(one.ledger) for one in found])}"
    why = f"{len(found)} ledgers were made for streams, but no stream lists them or ever will"
    return [Fixable(Noted("orphans", where, why), lambda: _delete(client, found))]


async def _delete(client: LedgerClient, orphans: list[Orphan]) -> str:
    for one in orphans:
        await delete_orphan(client, one)
    return f"deleted {len(orphans)} orphans"


async def mend(fixable: Iterable[Fixable]) -> tuple[list[tuple[Noted, str]], dict[str, str]]:
    """Carry out every fix. Return the findings, each with what was done about it; and the errors of fixes that failed,
    by the place (`where`) of their finding.
    """
    done, failed = list[tuple[Noted, str]](), dict[str, str]()
    for one in fixable:
        try:
            done.append((one.noted, await one.fix()))
        except BuckramError as error:
            failed[one.noted.where] = str(error)
    return done, failed


# -- leftovers ------------------------------------------------------------------------------------------------


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
        why = "reasons are kept for which they waited, and they do not wait any more"
        noted = Noted("leftovers", f"reasons of ledgers {named([str(one) for one in reasons])}", why)
        found.append(Fixable(noted, lambda: _forget_reasons(store, reasons)))
    unknown = await _wishes_of_nobody(store)
    if unknown:
        why = "requests are kept to bookies that the cluster does not know"
        noted = Noted("leftovers", f"requests to bookies {named(unknown)}", why)
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
    return f"removed the requests to {named(unknown)}"


# -- findings of a long look ----------------------------------------------------------------------------------


async def fixable_of(client: LedgerClient) -> list[Fixable]:
    """Return the keys and ledgers that are no longer needed. The client has to be open for the fixes.

    Raises BuckramError.
    """
    return [*await leftovers(client.services.store), *await orphans(client)]
