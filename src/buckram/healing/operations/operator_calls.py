"""Operators' requests to a bookie: be read-only or writable, rest, collect garbage; and an id's empty new directory.

A request is kept in the metadata store as a wish: a bookie that is down follows it from its next start on. Only a
running bookie can be asked to collect garbage now; the call waits for the result.

Not here: what the bookie does about a request (`bookie/operator_requests.py`), the collection
(`bookie/garbage/collector.py`), giving everything away (`healing/operations/decommission`).
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace

from buckram.client.ledger_client import LedgerClient
from buckram.core.cluster.bookie_report import Collected, parse_collected
from buckram.core.healing.operator_requests import BEGUN, DONE, FAILED, NOTHING, OperatorRequest
from buckram.errors import InvalidArgument, MalformedRecord, NoSuchBookie, NoSuchKey
from buckram.healing.operations.dependency_check import OperationRefused, below_ack_quorum, ledgers_naming, shown
from buckram.metadata.records.bookie_health import ACCUSED, CONVICTED, pardon
from buckram.metadata.records.operator_requests import answer_key, change_wish, read_wishes
from buckram.metadata.tree.layout import TIMES, WISHES, WITNESSES
from buckram.seams import MetadataStore
from buckram.types import BookieId, BookieInfo

_POLL_S = 0.1

FOLLOW_S = 20.0

HANGS = "it hangs, or is of a release that does not follow requests"

LONGEST_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Asked:
    """Result of a request.

    `state`: "readonly" or "writable", or "down" if the wish holds from the bookie's next start on.
    """

    bookie: BookieId
    state: str


async def ask_readonly(client: LedgerClient, bookie: BookieId, wanted: bool, *, within_s: float = FOLLOW_S) -> Asked:
    """Have a bookie take no new entries until that is taken back, or take it back, a drain included.

    Raises NoSuchBookie; Refused for Apache's bookies, and for one that does not follow in time, with the reason.
    """
    store = client.services.store
    info = await _known(store, bookie)
    if wanted:
        await change_wish(store, bookie, lambda wish: replace(wish, readonly=True))
    else:
        await change_wish(store, bookie, lambda wish: replace(NOTHING, collect=wish.collect))
    if info is None:
        return Asked(bookie, "down")
    state = "readonly" if wanted else "writable"
    if await follows(store, bookie, (state,), within_s=within_s):
        return Asked(bookie, state)
    if wanted:
        raise OperationRefused(
            f"bookie {bookie} did not become read-only within {within_s:g} s; the request is kept: {HANGS}"
        )
    raise OperationRefused(
        f"bookie {bookie} is still read-only after {within_s:g} s, although no request for that is left: its "
        "disk is full, "
        f"which its log says, or {HANGS}"
    )


async def _known(store: MetadataStore, bookie: BookieId) -> BookieInfo | None:
    """Return the bookie's registration; None for one that is down."""
    await store.sync()
    info = (await store.bookies()).find(bookie)
    if info is None and bookie not in await store.known_bookies():
        raise NoSuchBookie(bookie)
    if info is not None and info.incarnation is None:
        raise OperationRefused(
            f"bookie {bookie} is Apache's and cannot be asked: use its own HTTP port, PUT /api/v1/bookie/state/readonly"
        )
    return info


async def follows(store: MetadataStore, bookie: BookieId, states: Collection[str], *, within_s: float) -> bool:
    """Return whether the bookie is registered in all of `states` ("readonly", "writable") within `within_s` seconds.

    Empty `states` wait until it is registered in neither.
    """
    changed = asyncio.Event()
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                changed.clear()
                found = await store.bookies(changed.set)
                shown = [name for name in ("readonly", "writable") if bookie in getattr(found, name)]
                if all(state in shown for state in states) and (states or not shown):
                    return True
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S * 10):
                        await changed.wait()
    return False


# -- maintenance ----------------------------------------------------------------------------------------------------


async def begin_maintenance(
    client: LedgerClient, bookie: BookieId, for_s: float, *, within_s: float = FOLLOW_S
) -> None:
    """Begin maintenance: for the given time no new ensemble gets the bookie, and nothing is copied although it may be
    away.

    Raises NoSuchBookie; InvalidArgument for a time out of bounds; Refused where entries would have fewer than Qa copies
    on bookies that live and are not in maintenance.
    """
    if not 1.0 <= for_s <= LONGEST_S:
        raise InvalidArgument(f"a maintenance of {for_s:g} s: needs 1 s to {LONGEST_S:g} s")
    store = client.services.store
    info = await _known(store, bookie)
    wishes = await read_wishes(store)
    if bookie in wishes and wishes[bookie].leave:
        raise OperationRefused(
            f"bookie {bookie} gives everything away: `buckram bookie writable` takes that back first"
        )
    living = [one for one, _ in (await store.bookies()).everybody() if not (one in wishes and wishes[one].rest)]
    short = await below_ack_quorum(client, bookie, living)
    if short:
        ledger, left, needed = short[0]
        raise OperationRefused(
            f"without bookie {bookie} {len(short)} ledgers would have fewer copies than they acknowledge from "
            f"({shown([one for one, _, _ in short])}; ledger {ledger}: {left} of {needed}): start bookies that are "
            "down, end the maintenance of others, or `buckram bookie drain` it"
        )
    word = secrets.token_hex(8)
    await change_wish(store, bookie, lambda wish: replace(wish, rest=word, rest_s=for_s))
    if info is not None and not await follows(store, bookie, ("readonly",), within_s=within_s):
        raise OperationRefused(
            f"bookie {bookie} still takes new ledgers after {within_s:g} s, and its ledgers are not copied: {HANGS}"
        )


async def end_maintenance(client: LedgerClient, bookie: BookieId) -> bool:
    """End the maintenance of a bookie; return whether there was one."""
    ended = False

    def end(wish: OperatorRequest) -> OperatorRequest:
        nonlocal ended
        ended = bool(wish.rest)
        return replace(wish, rest="", rest_s=0.0)

    await change_wish(client.services.store, bookie, end)
    return ended


# -- the id comes back ----------------------------------------------------------------------------------------------


async def allow_rejoin(client: LedgerClient, bookie: BookieId) -> None:
    """Let an id come back with an empty directory, once it is proven that no ledger names it.

    What was promised under the id is then on others, and ledgers that are closed, fenced or deleted refuse late writers
    according to the metadata. Raises NoSuchBookie and Refused.
    """
    store = client.services.store
    await store.sync()
    await refuse_registered(store, bookie, "may not come back empty")
    await refuse_named(store, bookie, "may not come back empty")
    try:
        version = (await store.read_cookie(bookie)).version
    except NoSuchKey:
        version = None
        if not await _was_there(store, bookie) and not await is_half_forgotten(store, bookie):
            raise NoSuchBookie(bookie) from None
    await refuse_registered(store, bookie, "may not come back empty")
    if version is not None:
        await store.delete_cookie(bookie, version)
    await pardon(store, bookie)
    await change_wish(store, bookie, lambda wish: NOTHING)


async def _was_there(store: MetadataStore, bookie: BookieId) -> bool:
    try:
        await store.keys.get(f"{store.own}/{WITNESSES}/{bookie}")
    except NoSuchKey:
        return False
    return True


async def is_half_forgotten(store: MetadataStore, bookie: BookieId) -> bool:
    """Return whether there is something left of a bookie without a cookie, such as a request that would be made of the
    next bookie of its name."""
    for folder in (WISHES, TIMES, CONVICTED, ACCUSED):
        with suppress(NoSuchKey):
            await store.keys.get(f"{store.own}/{folder}/{bookie}")
            return True
    return False


async def refuse_registered(store: MetadataStore, bookie: BookieId, what: str) -> None:
    if (await store.bookies()).find(bookie) is not None:
        raise OperationRefused(f"bookie {bookie} {what}: it is registered; stop it first")


async def refuse_named(store: MetadataStore, bookie: BookieId, what: str) -> None:
    """Raise Refused if a ledger names the bookie."""
    naming: Collection[int] = await ledgers_naming(store, bookie)
    if naming:
        one = len(naming) == 1
        raise OperationRefused(
            f"bookie {bookie} {what}: {len(naming)} {'ledger still names' if one else 'ledgers still name'} it "
            f"({shown(naming)}); `buckram bookie decommission` has them copied first (or `buckram ledger repair` each; "
            "`buckram stream seal` for a stream of a dead writer)"
        )


# -- garbage collection now -----------------------------------------------------------------------------------

_LOOK_S = 1.0
"""Interval between two looks for the answer, seconds, whatever watches say."""


async def collect_now(client: LedgerClient, bookie: BookieId, *, within_s: float = FOLLOW_S) -> Collected:
    """Have a bookie run one round of collection and a compaction, and wait until they have ended.

    `within_s`: seconds within which the bookie has to begin. Raises NoSuchBookie; Refused for a bookie that is down, is
    Apache's or does not follow, and with the bookie's reason if its collection failed.
    """
    store = client.services.store
    await _check(store, bookie)
    begun, _ = await _read(store, bookie)
    fresh = secrets.token_hex(8)

    def ask(wish: OperatorRequest) -> OperatorRequest | None:
        # All callers that wait for the same unanswered request share its answer.
        waits = wish.collect and begun.get("word") != wish.collect
        return None if waits else replace(wish, collect=fresh)

    word = (await change_wish(store, bookie, ask)).collect
    try:
        return await _answer(store, bookie, word, within_s)
    finally:
        await change_wish(store, bookie, lambda wish: replace(wish, collect="") if wish.collect == word else None)


async def _check(store: MetadataStore, bookie: BookieId) -> None:
    await store.sync()
    info = (await store.bookies()).find(bookie)
    if info is None:
        if bookie not in await store.known_bookies():
            raise NoSuchBookie(bookie)
        raise OperationRefused(f"bookie {bookie} is down: start it; it collects by itself then")
    if info.incarnation is None:
        raise OperationRefused(
            f"bookie {bookie} is Apache's and cannot be asked: use its own HTTP port, PUT /api/v1/bookie/gc"
        )


async def _answer(store: MetadataStore, bookie: BookieId, word: str, within_s: float) -> Collected:
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    deadline = loop.time() + within_s
    begun = False
    while True:
        changed.clear()
        record, key = await _read(store, bookie, changed)
        state = record.get("state") if record.get("word") == word else None
        if state == DONE:
            return parse_collected(key, record)
        if state == FAILED:
            raise OperationRefused(f"bookie {bookie} did not collect: {record.get('why')}; it tries again by itself")
        begun = begun or state == BEGUN
        if (await store.bookies()).find(bookie) is None:
            raise OperationRefused(
                f"bookie {bookie} is not registered any more; nothing is half done: start it and ask again"
            )
        if not begun and loop.time() >= deadline:
            raise OperationRefused(f"bookie {bookie} did not begin to collect within {within_s:g} s: {HANGS}")
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_LOOK_S, within_s)):
                await changed.wait()


async def _read(
    store: MetadataStore, bookie: BookieId, changed: asyncio.Event | None = None
) -> tuple[dict[str, object], str]:
    """Return the newest answer of the bookie, empty if there is none, and its key. Raises MalformedRecord."""
    key = answer_key(store, bookie)
    try:
        record = json.loads((await store.keys.get(key, changed.set if changed is not None else None)).value)
    except NoSuchKey:
        return {}, key
    except ValueError:
        raise MalformedRecord(f"{key}: not JSON; delete it") from None
    return (record if isinstance(record, dict) else {}), key
