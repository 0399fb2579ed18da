"""Verdicts from all members of a ledger: whether the writer of an open one lives, and whether entries are lost.

An open ledger that names a lost bookie is judged from its members and leases: its writer has gone if the end that the
members report stands still for a grace period, and the lease of its stream is free as well. Entries that a check of
copies could not mend are lost, or only out of reach.

Not here: the recovery itself (`client/maintain/recover`), the check of copies (`client/maintain/repair`), what is
copied once the ledger is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.replicas import LedgerReads, ask
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.healing.status import Reason, Row, Why, add_to_rows, named_rows
from buckram.core.ledgers.answers import Negative, Unknown
from buckram.core.ledgers.metadata import birth_of, fragment_of
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.streams.names import owner_of
from buckram.core.wire.messages import ReadLac, ReadLacReply
from buckram.errors import Code, NoSuchKey
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.shared.metadata import StreamStore
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata


@dataclass(frozen=True, slots=True)
class _Seen:
    ends: dict[BookieId, bytes]
    since: float


class Stillness:
    """Ends of open ledgers, as their members reported them. They are compared as bytes and never decoded."""

    def __init__(self) -> None:
        self._seen: dict[tuple[LedgerId, bytes], _Seen] = {}

    def look(self, ledger: LedgerId, birth: bytes, ends: Mapping[BookieId, bytes], now: float) -> float:
        """Return for how many seconds none of the answering members has reported another end; 0.0 at the first look.

        `birth`: that of the ledger. `ends`: by member that answered, its LAC and last entry as it reported them. The
        time begins anew if a member answers for the first time, since it may know more, or if no member answers.
        """
        key = ledger, birth
        seen = self._seen.get(key)
        if not ends:
            self._seen.pop(key, None)
            return 0.0
        if seen is None or any(seen.ends.get(bookie) != end for bookie, end in ends.items()):
            self._seen[key] = _Seen({**(seen.ends if seen else {}), **ends}, now)
            return 0.0
        return now - seen.since

    def forget(self, ledger: LedgerId) -> None:
        """Drop a ledger that is closed, deleted or whole."""
        for key in [key for key in self._seen if key[0] == ledger]:
            del self._seen[key]


class OpenLedgers:
    """Judge of open ledgers, looking at them again and again.

    A writer that lives, degraded or idle, is never fenced by this.
    """

    def __init__(self, client: LedgerClient, grace_s: float) -> None:
        self._client, self._grace_s = client, grace_s
        self._streams = StreamStore(client.services.store)
        self._still = Stillness()

    async def why_not(self, ledger: LedgerId, metadata: LedgerMetadata) -> str:
        """Return why the ledger must not be recovered now; empty if its writer is taken for dead."""
        owner = owner_of(metadata.custom_metadata)
        if owner is not None and await self._leased(owner[1]):
            return f"stream {owner[0]} has a writer"
        birth = birth_of(metadata)
        ends = await self._ends(ledger, metadata, birth)
        if not ends:
            return "none of its bookies tells how far it is written"
        still_s = self._still.look(ledger, birth, ends, asyncio.get_running_loop().time())
        if still_s < self._grace_s:
            left = self._grace_s - still_s
            return f"it is open and may have a writer; it is recovered when nothing is written for another {left:.0f} s"
        return ""

    def forget(self, ledger: LedgerId) -> None:
        self._still.forget(ledger)

    async def _leased(self, uid: str) -> bool:
        try:
            await self._client.services.store.keys.get(self._streams.layout.lease(uid))
        except NoSuchKey:
            return False
        return True

    async def _ends(self, ledger: LedgerId, metadata: LedgerMetadata, birth: bytes) -> dict[BookieId, bytes]:
        services = self._client.services
        members = [b for b in metadata.last_fragment.ensemble if services.bookies.info(b) is not None]
        replies = await asyncio.gather(*(ask(services.pool, bookie, ReadLac(ledger, birth)) for bookie in members))
        found: dict[BookieId, bytes] = {}
        for bookie, reply in zip(members, replies, strict=True):
            if isinstance(reply, ReadLacReply):
                found[bookie] = b"%r %r" % (reply.lac_body, reply.last_entry_body)
            elif not isinstance(reply, Exception) and reply.code in (Code.NO_ENTRY, Code.NO_LEDGER):
                found[bookie] = b""
        return found


# -- lost entries ---------------------------------------------------------------------------------------------

_MOST = 10_000
"""Maximum number of entries that are looked at; the rest counts as out of reach until these are settled."""


async def reasons_for(
    services: Services, ledger: LedgerId, metadata: LedgerMetadata, digest: Digest, entries: Collection[EntryId]
) -> list[Reason]:
    """Return the reasons for these entries: lost if every member is registered, answers, and has no good copy; else out
    of reach.
    """
    lost, unread = list[Row](), list[Row]()
    async with TaskScope(f"lost entries {ledger}") as scope:
        reads = LedgerReads(services, ledger, digest, scope)
        for number, entry in enumerate(sorted(set(entries))):
            nowhere = number < _MOST and await _is_nowhere(services, reads, _members(metadata, entry), entry)
            add_to_rows(lost if nowhere else unread, entry)
    found: list[Reason] = []
    if lost:
        found.append(Reason(Why.NO_GOOD_COPY, f"entries {named_rows(lost)} have no good copy", tuple(lost)))
    if unread:
        text = f"no bookie that answers has a good copy of entries {named_rows(unread)}"
        found.append(Reason(Why.COPY_AWAY, text, tuple(unread)))
    return found


def _members(metadata: LedgerMetadata, entry: EntryId) -> list[BookieId]:
    ensemble = fragment_of(metadata, entry).ensemble
    return [ensemble[position] for position in quorum_of(metadata).write_set(entry)]


async def _is_nowhere(services: Services, reads: LedgerReads, members: list[BookieId], entry: EntryId) -> bool:
    for bookie in members:
        if services.bookies.info(bookie) is None:
            return False  # it may come back with its copy
        answer = await reads.stored(bookie, entry)
        denied = isinstance(answer, Negative)
        bad = isinstance(answer, Unknown) and answer.damaged  # an I/O error proves nothing
        if not denied and not bad:
            return False
    return True
