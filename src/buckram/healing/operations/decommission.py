"""Take a bookie out: its entries are copied to others, and at the end it is proven that no ledger depends on it.

One that lives is drained: it becomes read-only and serves reads until it can be stopped. One that is stopped is
decommissioned: its cookie is removed at the end. In both cases a wish tells the auditor and the replicators, which do
the copying (`healing/auditing/auditor`, `healing/repair/replicator`); a drain therefore goes on when its caller has
gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace

from buckram.client.ledger_client import LedgerClient
from buckram.core.healing.operator_requests import NOTHING, OperatorRequest
from buckram.errors import InvalidArgument, NoSuchBookie, NoSuchKey
from buckram.healing.operations.dependency_check import OperationRefused, check_room, ledgers_naming
from buckram.healing.operations.operator_calls import FOLLOW_S, HANGS, follows, is_half_forgotten
from buckram.healing.overview import eta_s
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.auditor_election import Election
from buckram.metadata.records.bookie_health import pardon
from buckram.metadata.records.operator_requests import change_wish
from buckram.metadata.records.recorded_time import remove_time
from buckram.metadata.records.underreplication import Underreplication
from buckram.seams import MetadataStore
from buckram.types import BookieId, LedgerId

_POLL_S = 0.5
_STUCK_S = 20.0
"""Seconds without a ledger becoming free after which a departure ends, if each that is left has a reason: the reasons
are returned instead of waiting for ever.
"""
_ASK_S = 10.0
"""Seconds after which ledgers that are neither marked nor free are marked anew by an audit: one of Apache's
replicators, which knows nothing of wishes, looked at them.
"""


@dataclass(frozen=True, slots=True)
class DecommissionProgress:
    """Progress of a departure. `eta_s`: estimate of the seconds left, None if no replicator reports its rate."""

    done: int
    total: int
    bytes_per_s: float
    eta_s: float | None


OnProgress = Callable[[DecommissionProgress], None]


@dataclass(frozen=True, slots=True)
class Departure:
    """Result of a departure. `remaining`: ledgers that still name the bookie; `reasons`: why, by ledger."""

    bookie: BookieId
    ledgers: int
    entries: int
    """Entries that the records of the ledgers copied by now placed on the bookie."""
    remaining: tuple[LedgerId, ...]
    reasons: dict[LedgerId, str]

    @property
    def done(self) -> bool:
        return not self.remaining


async def decommission(
    client: LedgerClient,
    bookie: BookieId,
    on_progress: OnProgress,
    target: BookieId = "",
    *,
    rate: int = 0,
    stuck_s: float = _STUCK_S,
) -> Departure:
    """Have everything copied that a stopped bookie held, then remove its cookie.

    `target` gets the copies where the placement is no worse for it; each replicator copies at most `rate` bytes in a
    second, and 0 is its own limit.

    Raises NoSuchBookie; InvalidArgument for a bookie that is registered; Refused while nothing would be copied. Ledgers
    that wait for long with a reason are in the result; the bookie's cookie stays then.
    """
    store = client.services.store
    await store.sync()
    if (await store.bookies()).find(bookie) is not None:
        raise InvalidArgument(
            f"bookie {bookie} is registered: stop it first, then decommission it; or have it emptied while it serves "
            "reads: `buckram bookie drain`"
        )
    depending = await ledgers_naming(store, bookie)
    try:
        await store.read_cookie(bookie)
    except NoSuchKey:
        if not depending and not await is_half_forgotten(store, bookie):
            raise NoSuchBookie(bookie) from None
    if depending:
        await _check_runs(store)
        await _check_target(client, bookie, target)
        await change_wish(store, bookie, lambda wish: replace(wish, leave=True, target=target, rate=rate))
    try:
        departure = await _wait(client, bookie, depending, on_progress, stuck_s)
    finally:
        await change_wish(store, bookie, _without_leaving)
    if departure.done:
        await forget(store, bookie)
    return departure


async def drain(
    client: LedgerClient,
    bookie: BookieId,
    on_progress: OnProgress,
    target: BookieId = "",
    *,
    rate: int = 0,
    stuck_s: float = _STUCK_S,
) -> Departure:
    """Have everything copied that a living bookie holds, while it serves reads. It is read-only from now on.

    Raises NoSuchBookie; Refused, with nothing changed, for a bookie that is down or does not follow, while nothing
    would be copied, and where the others have no room. A drain that was begun stays requested until `writable` takes it
    back.
    """
    store = client.services.store
    await store.sync()
    await client.services.bookies.refresh()
    info = (await store.bookies()).find(bookie)
    if info is None:
        if bookie not in await store.known_bookies():
            raise NoSuchBookie(bookie)
        raise OperationRefused(
            f"bookie {bookie} is not registered: start it, see its log if it runs; only if it is gone for good, "
            "`buckram bookie decommission` takes it out"
        )
    if info.incarnation is None:
        raise OperationRefused(
            f"bookie {bookie} is Apache's and does not follow: stop it and `buckram bookie decommission` it"
        )
    depending = await ledgers_naming(store, bookie)
    await _check_runs(store)
    await _check_target(client, bookie, target)
    await check_room(client, bookie, depending)

    def leaving(wish: OperatorRequest) -> OperatorRequest:
        return replace(wish, leave=True, target=target, rate=rate, rest="", rest_s=0.0)

    await change_wish(store, bookie, leaving)
    await _until_readonly(store, bookie)
    # The total includes ledgers made until it became read-only, and those that are copied already.
    return await _wait(client, bookie, depending | await ledgers_naming(store, bookie), on_progress, stuck_s)


async def replace_bookie(
    client: LedgerClient,
    old: BookieId,
    new: BookieId,
    on_progress: OnProgress,
    *,
    rate: int = 0,
    stuck_s: float = _STUCK_S,
) -> Departure:
    """Take `old` out, dead or alive, with `new` in its places as far as the placement allows it; then forget it.

    One that lives takes its registration back before its cookie is removed: its process can be stopped at any time
    then, and it does not come back. Raises the errors of `drain` and `decommission`.
    """
    store = client.services.store
    await store.sync()
    if (await store.bookies()).find(old) is None:
        return await decommission(client, old, on_progress, new, rate=rate, stuck_s=stuck_s)
    drained = await drain(client, old, on_progress, new, rate=rate, stuck_s=stuck_s)
    if not drained.done:
        return drained
    await change_wish(store, old, lambda wish: replace(wish, out=True))
    if not await follows(store, old, (), within_s=FOLLOW_S):
        raise OperationRefused(
            f"no ledger names bookie {old} any more, and it is still registered after {FOLLOW_S:g} s: {HANGS}; stop it "
            f"and `buckram bookie forget {old}`"
        )
    await store.sync()
    left = await _wait(client, old, await ledgers_naming(store, old), on_progress, stuck_s)
    if left.done:
        await forget(store, old)
    return replace(left, ledgers=drained.ledgers + left.ledgers, entries=drained.entries + left.entries)


async def forget(store: MetadataStore, bookie: BookieId) -> None:
    """Remove the cookie of a bookie that nothing depends on, and its accusations, requests and recorded time.

    The cookie goes first, because one that is asked to go out must not come back. Whoever is stopped in between leaves
    a bookie that is half forgotten, which the next call completes. Raises InvalidArgument if it is registered again.
    """
    if (await store.bookies()).find(bookie) is not None:
        raise InvalidArgument(f"bookie {bookie} came back: its cookie stays; stop it and decommission it again")
    with suppress(NoSuchKey):
        await store.delete_cookie(bookie, (await store.read_cookie(bookie)).version)
    await pardon(store, bookie)
    await change_wish(store, bookie, lambda wish: NOTHING)
    await remove_time(store, bookie)


# -- before it begins -----------------------------------------------------------------------------------------------


async def _check_runs(store: MetadataStore) -> None:
    why = await _held_up(store)
    if why:
        raise OperationRefused(f"no ledger would be copied: {why}")


async def _held_up(store: MetadataStore) -> str:
    """Return why nothing is copied in the whole cluster; empty if copying goes on."""
    tree = Underreplication(store.keys, store.root, "")
    if not await tree.enabled():
        return "autorecovery is disabled: enable it with `buckram autorecovery enable`"
    if not await Election(store.keys, store.root, "").votes():
        return "no process runs autorecovery: start `buckram autorecovery run`"
    brake = await HealingStatusStore(store).brake()
    if brake is not None:
        return f"{brake.why} ({', '.join(brake.bookies)}): start them, or `buckram autorecovery proceed`"
    if not (await store.bookies()).writable:
        return "no bookie is writable: start one"
    return ""


async def _check_target(client: LedgerClient, old: BookieId, target: BookieId) -> None:
    if not target:
        return
    if target == old:
        raise InvalidArgument(f"bookie {old} cannot take its own place: name another one")
    await client.services.bookies.refresh()
    if target not in [one.bookie_id for one in client.services.bookies.candidates()]:
        raise OperationRefused(
            f"bookie {target} takes no new entries: start it, or make it writable, or name another one"
        )


async def _until_readonly(store: MetadataStore, bookie: BookieId) -> None:
    if not await follows(store, bookie, ("readonly",), within_s=FOLLOW_S):
        await change_wish(store, bookie, _without_leaving)
        raise OperationRefused(
            f"bookie {bookie} did not become read-only within {FOLLOW_S:g} s: {HANGS}; stop it and `buckram bookie "
            "decommission` it"
        )


def _without_leaving(wish: OperatorRequest) -> OperatorRequest:
    return replace(wish, leave=False, target="", rate=0)


# -- until nothing depends on it ------------------------------------------------------------------------------------


async def _wait(
    client: LedgerClient, bookie: BookieId, depending: dict[LedgerId, int], on_progress: OnProgress, stuck_s: float
) -> Departure:
    store, loop = client.services.store, asyncio.get_running_loop()
    board = HealingStatusStore(store)
    total = dict(depending)
    left = list(depending)
    moved_at = asked_at = loop.time()
    reasons: dict[LedgerId, str] = {}
    while left:
        now = list(await ledgers_naming(store, bookie, left))
        if len(now) < len(left):
            moved_at = asked_at = loop.time()
        left = now
        workers = await board.progress()
        rate = sum(worker.bytes_per_s for worker in workers)
        on_progress(DecommissionProgress(len(total) - len(left), len(total), rate, eta_s(workers)))
        if not left:
            # The proof: every record, read after a sync of the store. A ledger may have been made, or
            # copied to this bookie, while this waited for the others.
            await store.sync()
            found = await ledgers_naming(store, bookie)
            total |= found
            left = list(found)
            continue
        reasons = await _reasons(store, board, left)
        if len(reasons) == len(left) and loop.time() - moved_at >= stuck_s:
            break
        if loop.time() - asked_at >= _ASK_S:
            await _ask_anew(store, left)
            asked_at = loop.time()
        await asyncio.sleep(_POLL_S)
    entries = sum(count for ledger, count in total.items() if ledger not in left)
    return Departure(bookie, len(total), entries, tuple(left), reasons if left else {})


async def _reasons(store: MetadataStore, board: HealingStatusStore, left: Collection[LedgerId]) -> dict[LedgerId, str]:
    """Return the reasons of those ledgers of `left` that wait, by ledger."""
    why = await _held_up(store)
    if why:
        return dict.fromkeys(left, f"no ledger is copied: {why}")
    said = {waiting.ledger: waiting async for waiting in board.waiting()}
    return {one: "; ".join(reason.text for reason in said[one].reasons) for one in left if one in said}


async def _ask_anew(store: MetadataStore, left: Collection[LedgerId]) -> None:
    tree = Underreplication(store.keys, store.root, "")
    for ledger in left:
        if await tree.read_mark(ledger) is None:
            delay = await tree.read_delay(0.0)
            if delay.version >= 0:
                await tree.set_delay(round(delay.seconds))
            return
