"""Repair of one ledger: every replica is read directly, from files; what is missing or bad is copied from a good one.

Only fragments that can no longer grow are touched (8.1 row 14). A member that is not registered any more is replaced:
first all its entries are durable on another bookie, then the metadata changes, then the copy is looked at again (M7):
a bookie collects what metadata does not place there, so a repair that was paused for long may name one that has dropped
the copy meanwhile. From then on it does not, and what is missing is copied once more. Which bookies die and when to
repair is not decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from buckram.client.maintain.copy_reads import AT_ONCE, CopyReads
from buckram.client.maintain.entry_lists import lists_all
from buckram.client.maintain.evidence import Accuser
from buckram.client.maintain.repair_report import (
    NoFreeBookie,
    RepairProgress,
    RepairReport,
    Replacement,
    lost_entries_problem,
)
from buckram.client.read.open import check_ledger_id, check_password, digest_of
from buckram.client.read.replicas import ask, reply_is
from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.client.shared.services import Services
from buckram.core.cluster.conviction import Deed
from buckram.core.entries.entry import Digest, master_key
from buckram.core.ledgers.answers import Negative, Unknown, bookie_error
from buckram.core.ledgers.metadata import fragment_end, fragment_index, member_replaced, names_mac
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.ledgers.replica_audit import Row, without
from buckram.core.placement.policy import policy_of
from buckram.core.wire.availability import EntryList
from buckram.core.wire.messages import Add, Force, Read
from buckram.errors import (
    BookieError,
    BookieIOError,
    BuckramError,
    Code,
    MetadataError,
)
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.types import (
    BookieId,
    DigestType,
    Entry,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Position,
    Versioned,
)

_WINDOW = 256
_WITHIN_S = 10.0


async def repair_ledger(
    services: Services,
    ledger_id: LedgerId,
    *,
    password: bytes = b"",
    digest: DigestType | None = None,
    progress: RepairProgress | None = None,
    move: bool = False,
    pace: Pace | None = None,
) -> RepairReport:
    """Check and repair all replicas. What could not be repaired is in `problems`; run it again later.

    `move`: members that break the ledger's placement give way, too, where others can take their places. `pace` limits
    the bytes that are read to be checked, and those that are copied.

    Errors: NoSuchLedger, Unauthorized, MetadataUnavailable.
    """
    services.guard()
    versioned = await services.store.read_ledger(check_ledger_id(ledger_id))
    check_password(ledger_id, versioned.metadata, password)
    opened = digest_of(ledger_id, versioned.metadata, password, digest)
    await services.bookies.refresh()
    cell = MetadataCell(services.store, ledger_id, versioned)
    async with TaskScope(f"repair {ledger_id}") as scope:
        key = master_key(password)
        work = _Repair(services, ledger_id, cell, opened, key, scope, progress, move=move, pace=pace)
        try:
            return await work.run()
        finally:
            await work.accuser.accuse()


async def fill_in(
    services: Services,
    ledger_id: LedgerId,
    current: Versioned,
    digest: Digest,
    key: bytes,
    members: Collection[BookieId],
    *,
    confirmed: EntryId | None = None,
    listed: bool = False,
) -> bool:
    """Copy to these members what they lack, and return whether nothing is left; metadata stays as it is.

    Of the open last fragment only what is `confirmed`, which nothing can change any more; None: it is not looked at.
    `listed`: what a member lists is not read; else all is, and what is damaged is copied again, too.
    """
    async with TaskScope(f"fill in {ledger_id}") as scope:
        work = _Repair(services, ledger_id, MetadataCell(services.store, ledger_id, current), digest, key, scope, None)
        return await work.fill_in(members, confirmed, listed=listed)


class _Repair:
    def __init__(
        self,
        services: Services,
        ledger_id: LedgerId,
        cell: MetadataCell,
        digest: Digest,
        key: bytes,
        scope: TaskScope,
        progress: RepairProgress | None,
        *,
        move: bool = False,
        pace: Pace | None = None,
    ) -> None:
        self._move = move
        self._pace = pace or Pace(None)
        self._services, self._ledger_id, self._cell, self._digest, self._key = services, ledger_id, cell, digest, key
        self._scope, self._progress = scope, progress
        self.accuser = Accuser(services, ledger_id, digest, sealed=names_mac(cell.metadata))
        self._quorum = quorum_of(cell.metadata)
        self._copies = CopyReads(services, ledger_id, digest, self._quorum, scope, self._pace, self.accuser.looked_at)
        self._policy = policy_of(cell.metadata.custom_metadata, services.bookies.policy)
        self._checked = self._total = self._copied = self._copied_bytes = 0
        self._replaced: list[Replacement] = []
        self._problems: list[str] = []

    async def run(self) -> RepairReport:
        metadata = self._cell.metadata
        ranges = self._ranges(metadata)
        self._total = sum(
            high - low + 1
            for fragment, last in ranges
            for position in range(len(fragment.ensemble))
            for low, high in self._quorum.held_ranges(position, fragment.first_entry, last)
        )
        for fragment, last in ranges:
            await self._fragment(fragment, last)
            if self._move:
                await self._spread(fragment.first_entry, last)
        if not metadata.closed:
            first = metadata.last_fragment.first_entry
            self._problems.append(f"entries from {first} on can still grow: close or recover the ledger, then repair")
        return RepairReport(
            self._ledger_id,
            len(ranges),
            self._checked,
            self._copied,
            self._copied_bytes,
            tuple(self._replaced),
            tuple(self._problems),
        )

    async def fill_in(self, members: Collection[BookieId], confirmed: EntryId | None, *, listed: bool) -> bool:
        metadata = self._cell.metadata
        ranges = self._ranges(metadata)
        if not metadata.closed and confirmed is not None:
            ranges.append((metadata.last_fragment, confirmed))
        done = True
        for bookie in members:
            held = await self._copies.list_of(bookie) if listed else None
            for fragment, last in ranges:
                if bookie in fragment.ensemble:
                    position = fragment.ensemble.index(bookie)
                    done &= await self._member(fragment, last, position, bookie, bookie, held)
        return done

    def _ranges(self, metadata: LedgerMetadata) -> list[tuple[Fragment, EntryId]]:
        """Return the fragments that cannot grow, with their last entry (below the first: an empty one)."""
        ends = [fragment_end(metadata, index) for index in range(len(metadata.fragments))]
        return [(f, end) for f, end in zip(metadata.fragments, ends, strict=True) if end is not None]

    async def _fragment(self, fragment: Fragment, last: EntryId) -> None:
        gone = {p: b for p, b in enumerate(fragment.ensemble) if self._services.bookies.info(b) is None}
        for position, bookie in enumerate(fragment.ensemble):
            if position not in gone:
                await self._member(fragment, last, position, bookie, bookie)
        if not gone:
            return
        metadata = self._cell.metadata
        spare = self._services.bookies.replace(
            fragment.ensemble, gone, write_quorum=metadata.write_quorum, policy=self._policy
        )
        for position, old in gone.items():
            new = spare.get(position)
            if new is None:
                where = f"bookie {old} (entries {fragment.first_entry} to {last})"
                self._problems.append(NoFreeBookie(f"{where} is gone and no other bookie is free: start one more"))
            elif await self._member(fragment, last, position, old, new) and await self._replace(fragment, old, new):
                await self._look_again(fragment, last, position, old, new)

    async def _spread(self, first: EntryId, last: EntryId) -> None:
        """Move as few members as the placement needs. A new one holds everything before it is named (M7), and the old
        one is among those that it is copied from."""
        metadata = self._cell.metadata
        fragment = metadata.fragments[fragment_index(metadata, first)]
        moves = self._services.bookies.moves(fragment.ensemble, self._quorum, self._policy)
        if moves is None:
            self._problems.append(
                f"entries {first} to {last} break the placement `{self._policy}`, and no available bookies "
                "could mend that: see `buckram placement check`"
            )
            return
        for position, new in moves.items():
            old = fragment.ensemble[position]
            if await self._member(fragment, last, position, old, new) and await self._replace(fragment, old, new):
                await self._look_again(fragment, last, position, old, new)

    async def _member(
        self,
        fragment: Fragment,
        last: EntryId,
        position: Position,
        old: BookieId,
        target: BookieId,
        listed: EntryList | None = None,
    ) -> bool:
        """Make `target` hold everything that `position` stores; True if it durably does (M7). What it has `listed` is
        taken for held."""
        held: Iterator[Row] = self._quorum.held_ranges(position, fragment.first_entry, last)
        if listed is not None:
            held = without(held, listed.runs())
        own = (entry for low, high in held for entry in range(low, high + 1))
        lost: dict[EntryId, str] = {}
        while ids := list(islice(own, _WINDOW)):
            try:
                bad = await self._copies.bad(target, ids)
                for start in range(0, len(bad), AT_ONCE):
                    lost.update(await self._copy(fragment, old, target, bad[start : start + AT_ONCE]))
            except BookieError as error:
                self._problems.append(f"entries from {ids[0]} on at bookie {target}: {error}")
                return False
            self._checked += len(ids)
            if self._progress is not None:
                self._progress(self._checked, self._total)
        if target != old and last >= fragment.first_entry and not await self._is_durable(target):
            return False
        if lost:
            self._problems.append(lost_entries_problem(old, lost))
        return not lost

    async def _is_durable(self, target: BookieId) -> bool:
        """Return whether all that a new member holds is durable. Entries it had already may be copies that another
        repair makes right now: readable, but not yet synced."""
        reply = await ask(self._services.pool, target, Force(self._ledger_id, self._digest.birth))
        if isinstance(reply, BuckramError) or reply.code is not Code.OK:
            why = reply if isinstance(reply, BuckramError) else bookie_error(target, reply.code)
            self._problems.append(f"bookie {target} did not confirm that its copies are durable: {why}")
            return False
        return True

    async def _copy(
        self, fragment: Fragment, old: BookieId, target: BookieId, ids: Sequence[EntryId]
    ) -> dict[EntryId, str]:
        """Read good copies and add them to the target; they are durable when this returns. Return the entries without
        one."""
        gone = old == target or self._services.bookies.info(old) is None
        sources = await self._copies.sources(fragment, old if gone else None, ids)
        lost = {entry: source for entry, source in zip(ids, sources, strict=True) if isinstance(source, str)}
        found = [source for source in sources if isinstance(source, Entry)]
        for failure in await self._copies.all([self._add(target, entry) for entry in found]):
            if failure is not None:
                raise failure
        lost.update(await self._unstored(target, [entry.entry_id for entry in found]))
        size = sum(len(entry.payload) for entry in found)
        self._copied, self._copied_bytes = self._copied + len(found), self._copied_bytes + size
        await self._pace.take(size)
        return lost

    async def _unstored(self, target: BookieId, ids: Sequence[EntryId]) -> dict[EntryId, str]:
        """Return those entries that the bookie has just acknowledged and does not have on its disk, with the reason: it
        denies them, or cannot read them.

        A bookie in limbo admits to no entry; what it acknowledged is good all the same.
        """
        incarnation = self._services.bookies.incarnation(target)
        answers = await self._copies.stored(target, ids)
        denied = [e for e, answer in answers if isinstance(answer, Negative) and answer.code is Code.NO_ENTRY]
        why = f"bookie {target} acknowledged it, and now answers that it does not have it"
        if denied and await self._is_still_there(target, incarnation):
            self.accuser.saw(Deed.UNSTORED, target, denied[0], why)
        unreadable = {
            entry: f"bookie {target} acknowledged it and cannot read it: {answer.error}"
            for entry, answer in answers
            if isinstance(answer, Unknown) and isinstance(answer.error, BookieIOError)
        }
        if unreadable and await self._in_limbo(target, next(iter(unreadable))):
            unreadable = {}
        return dict.fromkeys(denied, why) | unreadable

    async def _in_limbo(self, bookie: BookieId, entry: EntryId) -> bool:
        """Return whether the bookie is in limbo; asked on the v3 wire, because v2 cannot tell that from an I/O
        error."""
        reply = await ask(self._services.pool, bookie, Read(self._ledger_id, entry), protocol=3)
        return reply_is(reply, Code.UNKNOWN_LEDGER_STATE)

    async def _is_still_there(self, bookie: BookieId, incarnation: str | None) -> bool:
        """Return whether the ledger and the bookie's incarnation are unchanged: if not, that explains what is missing
        now."""
        try:
            await self._services.bookies.refresh()
            await self._services.store.read_ledger(self._ledger_id)
        except MetadataError:
            return False
        return self._services.bookies.incarnation(bookie) == incarnation

    async def _add(self, target: BookieId, entry: Entry) -> BuckramError | None:
        stored = self._digest.seal(
            self._ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, entry.payload
        )
        request = Add(self._ledger_id, entry.entry_id, self._key, stored, recovery=True, birth=self._digest.birth)
        reply = await ask(self._services.pool, target, request)
        if isinstance(reply, BuckramError):
            return reply
        return None if reply.code is Code.OK else bookie_error(target, reply.code)

    async def _look_again(
        self, fragment: Fragment, last: EntryId, position: Position, old: BookieId, new: BookieId
    ) -> None:
        """Check the new member again now that metadata names it: what it still holds stays there, what is gone is
        copied again."""
        held = self._quorum.held_ranges(position, fragment.first_entry, last)
        if await lists_all(self._services, new, self._ledger_id, self._digest.birth, held):
            return
        checked, progress = self._checked, self._progress
        self._progress = None  # these replicas were counted before
        try:
            if not await self._member(fragment, last, position, old, new):
                self._problems.append(
                    f"bookie {new} took the place of {old} (entries {fragment.first_entry} to {last}) and does not "
                    "hold them any more: repair the ledger again"
                )
        finally:
            self._checked, self._progress = checked, progress

    async def _replace(self, fragment: Fragment, old: BookieId, new: BookieId) -> bool:
        """Replace a member in metadata. Return True if metadata names `new` now because of this."""

        def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
            index = fragment_index(metadata, fragment.first_entry)
            present = metadata.fragments[index]
            if present.first_entry != fragment.first_entry or old not in present.ensemble or new in present.ensemble:
                return None
            return member_replaced(metadata, fragment.first_entry, old, new)

        before = self._cell.current.version
        metadata = await self._cell.update(change, within_s=_WITHIN_S)
        ensemble = metadata.fragments[fragment_index(metadata, fragment.first_entry)].ensemble
        if self._cell.current.version == before or new not in ensemble:
            return False
        self._replaced.append(Replacement(fragment.first_entry, old, new))
        return True
