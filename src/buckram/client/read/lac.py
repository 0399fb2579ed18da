"""The last confirmed entry of a ledger, by a quorum read without side effects (F16: nothing is fenced or written).

Only LACs from verified bytes count: a sealed explicit LAC or the header of a stored entry. The number that a
bookie puts beside them is not covered by a digest and never trusted (with MAC a reader takes no LAC that the
writer did not send).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from buckram.client.read.replicas import ask, check_running, reply_is, report
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.answers import Answer, CoverageTally, Positive, Unknown, classify, lasting
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.wire.messages import LAST_ENTRY, Read, ReadLac, ReadLacReply, ReadReply
from buckram.errors import (
    BookieError,
    Code,
    DigestMismatch,
    HandleClosed,
    LoginRequired,
    ProtocolError,
    ReadFailed,
)
from buckram.runtime.process.tasks import TaskScope
from buckram.types import NO_ENTRY, BookieId, Entry, EntryId, LedgerId, LedgerMetadata

T = TypeVar("T")


async def bookie_lac(services: Services, bookie: BookieId, ledger_id: LedgerId, digest: Digest) -> Answer[EntryId]:
    """Return the largest LAC that one bookie can prove; -1 if it answered and proves none."""
    reply = await ask(services.pool, bookie, ReadLac(ledger_id, digest.birth))
    if isinstance(reply, ProtocolError) or reply_is(reply, Code.BAD_REQUEST, Code.BAD_VERSION):
        # A peer without READ_LAC: the header of its last entry is the next best.
        return await _last_entry_lac(services, bookie, ledger_id, digest)

    def verify() -> EntryId:
        if not isinstance(reply, ReadLacReply):
            raise ProtocolError(bookie, "answered a read of the LAC with something else")
        return _proven(ledger_id, digest, reply.lac_body, reply.last_entry_body)

    return classify(bookie, reply, verify)


async def bookie_last_stored(
    services: Services, bookie: BookieId, ledger_id: LedgerId, digest: Digest
) -> Answer[Entry | None]:
    """Return the last entry that one bookie has of a ledger, acknowledged or not; None if it has none."""
    reply = await ask(services.pool, bookie, ReadLac(ledger_id, digest.birth))
    if isinstance(reply, ProtocolError) or reply_is(reply, Code.BAD_REQUEST, Code.BAD_VERSION):
        reply = await ask(services.pool, bookie, Read(ledger_id, LAST_ENTRY, birth=digest.birth), protocol=2)

    def verify() -> Entry | None:
        if isinstance(reply, ReadLacReply):
            body = reply.last_entry_body
        elif isinstance(reply, ReadReply):
            body = reply.body
        else:
            raise ProtocolError(bookie, "answered a read of the last entry with something else")
        return digest.open(ledger_id, None, body) if body else None

    return classify(bookie, reply, verify)


async def _last_entry_lac(services: Services, bookie: BookieId, ledger_id: LedgerId, digest: Digest) -> Answer[EntryId]:
    reply = await ask(services.pool, bookie, Read(ledger_id, LAST_ENTRY, birth=digest.birth), protocol=2)

    def verify() -> EntryId:
        if not isinstance(reply, ReadReply) or reply.body is None:
            raise ProtocolError(bookie, "answered a read without an entry")
        return _proven(ledger_id, digest, None, reply.body)

    return classify(bookie, reply, verify)


def _proven(ledger_id: LedgerId, digest: Digest, packet: bytes | None, stored: bytes | None) -> EntryId:
    """Return the larger LAC of those that verify. Raises DigestMismatch if there is one and none verifies."""
    found: list[EntryId] = []
    mismatch: DigestMismatch | None = None
    if packet:
        try:
            found.append(digest.open_lac(ledger_id, packet))
        except DigestMismatch as error:
            mismatch = error
    if stored:
        try:
            found.append(digest.open(ledger_id, None, stored).last_add_confirmed)
        except DigestMismatch as error:
            mismatch = error
    if mismatch is not None and not found:
        raise mismatch
    return max(found, default=NO_ENTRY)


async def read_last_confirmed(
    services: Services, ledger_id: LedgerId, metadata: LedgerMetadata, digest: Digest, scope: TaskScope
) -> EntryId:
    """Return the last entry confirmed by a covering set of the last ensemble, never below F - 1 (8.2 row 18). A closed
    ledger needs no bookie. Raises ReadFailed if too few bookies answer."""
    if metadata.closed:
        assert metadata.last_entry is not None
        return metadata.last_entry
    found = await _ask_covering(
        services, ledger_id, metadata, lambda bookie: bookie_lac(services, bookie, ledger_id, digest), scope
    )
    return max([metadata.last_fragment.first_entry - 1, *found])


async def read_last_stored(
    services: Services, ledger_id: LedgerId, metadata: LedgerMetadata, digest: Digest, scope: TaskScope
) -> Entry | None:
    """Return the last entry that a covering set of the last ensemble has, acknowledged or not; None if it has none.

    Every entry that was acknowledged before this was asked, and is in the last fragment, has at most its id: the
    covering set meets every quorum that acknowledged one. ReadFailed when the answers cover too little.
    """
    found = await _ask_covering(
        services, ledger_id, metadata, lambda bookie: bookie_last_stored(services, bookie, ledger_id, digest), scope
    )
    return max((entry for entry in found if entry is not None), key=lambda entry: entry.entry_id, default=None)


async def _ask_covering(
    services: Services,
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    ask_one: Callable[[BookieId], Awaitable[Answer[T]]],
    scope: TaskScope,
) -> list[T]:
    """Ask the last ensemble until the answers cover every quorum, and return what was answered."""
    fragment = metadata.last_fragment
    tally = CoverageTally(quorum_of(metadata))
    found: list[T] = []
    error: BookieError | DigestMismatch | None = None

    async def question(bookie: BookieId) -> Answer[T]:
        try:
            return await ask_one(bookie)
        except HandleClosed as closed:
            return Unknown(closed)

    check_running(scope)
    asked = {
        scope.spawn(question(bookie), f"LAC of {bookie}"): (position, bookie)
        for position, bookie in enumerate(fragment.ensemble)
    }
    try:
        while not tally.covered and asked:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in asked if task.done()]:
                position, bookie = asked.pop(task)
                check_running(scope)
                answer = task.result()
                report(services, bookie, answer)
                tally.add(position, answer)
                if isinstance(answer, Positive):
                    found.append(answer.value)
                elif isinstance(answer, Unknown):
                    if isinstance(answer.error, HandleClosed):
                        raise answer.error
                    if isinstance(answer.error, BookieError | DigestMismatch):
                        error = lasting(error, answer.error)
    finally:
        for task in asked:
            task.cancel()
    if not tally.covered:
        if isinstance(error, LoginRequired):
            raise error
        raise ReadFailed(ledger_id, _too_few(fragment.ensemble, error)) from error
    return found


def _too_few(ensemble: Sequence[BookieId], error: BookieError | DigestMismatch | None) -> str:
    names = ", ".join(ensemble)
    return f"too few of the bookies {names} tell how far it is confirmed ({error}); try again when they are back"
