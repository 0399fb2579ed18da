"""Taking a bookie out that is stopped: its ledgers are copied at once, and at the end nothing depends on it.

Not here: the copying, which is autorecovery's (`healing/auditor`, `healing/replicator`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from buckram.client.client import Client
from buckram.core.healing.needs import entries_held, members_of
from buckram.errors import InvalidArgument, NoSuchBookie, NoSuchKey, NoSuchLedger
from buckram.healing.board import Board
from buckram.metadata.accused import pardon
from buckram.metadata.election import Election
from buckram.metadata.underreplication import Underreplication
from buckram.seams import MetadataStore
from buckram.types import BookieId, LedgerId

_PAGE = 1000
_AT_ONCE = 64
_POLL_S = 0.5
_STUCK_S = 20.0
"""When no ledger became free for so long and each has a reason, it is told instead of waiting for ever."""

OnProgress = Callable[[int, int], None]
"""(ledgers that no longer depend on the bookie, all that did)"""


@dataclass(frozen=True, slots=True)
class Decommissioned:
    """How far it came. `remaining`: ledgers that still name the bookie, `reasons` why, by ledger."""

    bookie: BookieId
    ledgers: int
    entries: int
    """Of the bookie's ledgers that are copied now, as their records placed them."""
    remaining: tuple[LedgerId, ...]
    reasons: dict[LedgerId, str]

    @property
    def done(self) -> bool:
        return not self.remaining


async def ledgers_naming(store: MetadataStore, bookie: BookieId) -> dict[LedgerId, int]:
    """Every ledger that names the bookie, with the entries that it places there.

    MalformedRecord ends it: nobody knows whom such a record names.
    """
    found: dict[LedgerId, int] = {}
    after = -1
    while page := await store.list_ledgers(after=after, limit=_PAGE):
        found |= await still_naming(store, bookie, page)
        after = page[-1]
    return found


async def still_naming(store: MetadataStore, bookie: BookieId, ledgers: Collection[LedgerId]) -> dict[LedgerId, int]:
    """Those of `ledgers` that name the bookie now."""
    asked, found = list(ledgers), dict[LedgerId, int]()
    for start in range(0, len(asked), _AT_ONCE):
        part = asked[start : start + _AT_ONCE]
        answers = await asyncio.gather(*(_entries(store, one, bookie) for one in part))
        found |= {ledger: entries for ledger, entries in zip(part, answers, strict=True) if entries is not None}
    return found


async def _entries(store: MetadataStore, ledger: LedgerId, bookie: BookieId) -> int | None:
    try:
        metadata = (await store.read_ledger(ledger)).metadata
    except NoSuchLedger:
        return None
    return entries_held(metadata, bookie) if bookie in members_of(metadata) else None


async def decommission(client: Client, bookie: BookieId, on_progress: OnProgress) -> Decommissioned:
    """Have everything copied that the bookie held, then remove its cookie.

    Errors: NoSuchBookie; InvalidArgument for a bookie that is registered, while autorecovery is disabled or nobody
    runs it, or when no other bookie is there. What waits with a reason for long is in the result.
    """
    store = client.services.store
    await store.sync()
    if (await store.bookies()).find(bookie) is not None:
        raise InvalidArgument(f"bookie {bookie} is registered: stop it first, then decommission it")
    depending = await ledgers_naming(store, bookie)
    try:
        await store.read_cookie(bookie)
    except NoSuchKey:
        if not depending:
            raise NoSuchBookie(bookie) from None
    board = Board(store)
    if depending:
        await _check_runs(store)
        await board.set_leaving([*await board.leaving(), bookie])
    try:
        left, reasons = await _wait(store, board, bookie, depending, on_progress)
    finally:
        await board.set_leaving([one for one in await board.leaving() if one != bookie])
    if not left:
        await _forget(store, bookie)
    entries = sum(count for ledger, count in depending.items() if ledger not in left)
    return Decommissioned(bookie, len(depending), entries, tuple(left), reasons)


async def _check_runs(store: MetadataStore) -> None:
    tree = Underreplication(store.keys, store.root, "")
    if not await tree.enabled():
        raise InvalidArgument("autorecovery is disabled, so nothing would be copied: `buckram autorecovery enable`")
    if not await Election(store.keys, store.root, "").votes():
        raise InvalidArgument("nobody runs autorecovery, so nothing would be copied: `buckram autorecovery run`")
    if not (await store.bookies()).writable:
        raise InvalidArgument("no bookie is writable, so nothing can be copied: start one")


async def _wait(
    store: MetadataStore, board: Board, bookie: BookieId, depending: Collection[LedgerId], on_progress: OnProgress
) -> tuple[list[LedgerId], dict[LedgerId, str]]:
    loop = asyncio.get_running_loop()
    left, moved_at = list(depending), loop.time()
    reasons: dict[LedgerId, str] = {}
    while left:
        now = list(await still_naming(store, bookie, left))
        if len(now) < len(left):
            moved_at = loop.time()
        left = now
        on_progress(len(depending) - len(left), len(depending))
        if not left:
            # A ledger may have been made, or copied to this bookie, while the others were waited for.
            left = list(await ledgers_naming(store, bookie))
            continue
        said = {waiting.ledger: waiting async for waiting in board.waiting()}
        reasons = {one: "; ".join(reason.text for reason in said[one].reasons) for one in left if one in said}
        if len(reasons) == len(left) and loop.time() - moved_at >= _STUCK_S:
            return left, reasons
        await asyncio.sleep(_POLL_S)
    return [], {}


async def _forget(store: MetadataStore, bookie: BookieId) -> None:
    if (await store.bookies()).find(bookie) is not None:
        raise InvalidArgument(f"bookie {bookie} came back: its cookie stays; stop it and decommission it again")
    with suppress(NoSuchKey):
        await store.delete_cookie(bookie, (await store.read_cookie(bookie)).version)
    await pardon(store, bookie)
