"""Repair of one marked ledger: lost members are replaced by others that hold everything they held, or a reason is
given.

Closed fragments only; an open ledger is recovered first if its writer is dead. The order is M7's: all copies durable,
then the metadata, then a second look at them. Not here: which ledger is next, locks and marks
(`healing/repair/replicator`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.client.maintain.entry_lists import lists_all
from buckram.client.maintain.recover import recover_ledger
from buckram.client.maintain.repair import fill_in, repair_ledger
from buckram.client.maintain.repair_report import EntriesWithoutCopy, NoFreeBookie
from buckram.client.read.open import digest_of
from buckram.client.read.replicas import ask
from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.core.entries.entry import Digest, master_key
from buckram.core.healing.needs import Missing, members_of, needs_of
from buckram.core.healing.operator_requests import OperatorRequest
from buckram.core.healing.status import Reason, Why, named_rows
from buckram.core.ledgers.metadata import fragment_index, member_replaced
from buckram.core.ledgers.quorum import Quorum
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.core.placement.policy import PlacementPolicy, policy_of
from buckram.core.wire.messages import Force
from buckram.errors import (
    BookieError,
    BuckramError,
    Code,
    InvalidArgument,
    MalformedRecord,
    NoSuchLedger,
    ReadFailed,
    RecoveryFailed,
)
from buckram.healing.repair.fragment_copy import Copied, FragmentCopy
from buckram.healing.repair.member_verdicts import OpenLedgers, reasons_for
from buckram.healing.repair.server_side_copy import CopyLimits
from buckram.healing.repair.spare_selection import next_spare, spare_members
from buckram.metadata.records.operator_requests import read_wish
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Position, Versioned

_WITHIN_S = 10.0


@dataclass(slots=True)
class Outcome:
    """Result of one attempt at a ledger. `whole`: nothing lacks, so its mark may be removed."""

    reasons: list[Reason] = field(default_factory=list)
    survivors: int = 0
    replaced: int = 0
    copied: Copied = field(default_factory=Copied)

    @property
    def whole(self) -> bool:
        return not self.reasons


class LedgerRepair:
    """Attempts at ledgers, for one replicator."""

    def __init__(self, client: LedgerClient, open_ledgers: OpenLedgers, pace: Pace) -> None:
        self._client, self._services = client, client.services
        self._open_ledgers, self._pace, self._limits = open_ledgers, pace, CopyLimits()
        self._slow: dict[int, Pace] = {}
        """The speed limit that an operator set last, by its rate in bytes per second; at most one is kept."""

    async def run(self, ledger: LedgerId, named: Collection[BookieId]) -> Outcome:
        """Attempt to repair a ledger. `named`: the bookies of its mark.

        Those that are registered are checked entry by entry; if the mark names none, or EVERY_MEMBER, all members are.
        Raises MetadataUnavailable, and InvariantViolation for a bug.
        """
        outcome = Outcome()
        try:
            versioned = await self._services.store.read_ledger(ledger)
        except NoSuchLedger:
            return outcome  # deleted: nothing is lacking
        except MalformedRecord as error:
            outcome.reasons.append(Reason(Why.UNREADABLE_RECORD, str(error)))
            return outcome
        leaving = await self._leaving(named)
        members = members_of(versioned.metadata)
        gone = [b for b in members if b in named and self._services.bookies.info(b) is None]
        lost = [b for b in members if b in gone or b in leaving]
        needs = needs_of(ledger, versioned.metadata, lost)
        outcome.survivors = needs_of(ledger, versioned.metadata, gone).survivors
        joined = False
        if needs.open_tail:
            versioned = await self._end(ledger, versioned, leaving, outcome) or versioned
            needs = needs_of(ledger, versioned.metadata, lost)
            # A recovery ends a ledger when Qa members have its entries, and may have put others into it by then.
            joined = any(bookie not in members for bookie in members_of(versioned.metadata))
        if needs.closed_part:
            await self._replace_lost(ledger, versioned, needs.closed_part, lost, leaving, outcome)
        # EVERY_MEMBER is no bookie that is lost. A bookie of the mark that is no member any more was replaced, maybe by
        # a worker that died before it saw whether the new member has its copies: all are looked at then, too.
        if (not named or joined or any(bookie not in lost for bookie in named)) and not outcome.reasons:
            await self._check(ledger, versioned.metadata, outcome)
        if outcome.whole:
            self._open_ledgers.forget(ledger)
        return outcome

    async def move(self, ledger: LedgerId, moves: Collection[tuple[EntryId, BookieId, BookieId]]) -> Outcome:
        """Replace members that live. Each move: (first entry of the fragment, old member, new member).

        A move whose fragment has changed meanwhile is skipped. Metadata names a new member once it lists all that the
        old one stores, so there are never fewer copies than before. Raises what `run` raises, and NoSuchLedger.
        """
        outcome = Outcome()
        versioned = await self._services.store.read_ledger(ledger)
        password = versioned.metadata.password or b""
        digest = digest_of(ledger, versioned.metadata, password, None)
        cell, quorum = MetadataCell(self._services.store, ledger, versioned), quorum_of(versioned.metadata)
        async with TaskScope(f"move {ledger}") as scope:
            for first, source, target in moves:
                members = needs_of(ledger, cell.metadata, (source,)).closed_part
                fragment = cell.metadata.fragments[fragment_index(cell.metadata, first)]
                for member in (one for one in members if one.first == first and target not in fragment.ensemble):
                    copy = FragmentCopy(
                        self._services,
                        ledger,
                        quorum,
                        fragment,
                        digest,
                        master_key(password),
                        scope,
                        gone=[bookie for bookie in fragment.ensemble if self._services.bookies.info(bookie) is None],
                        pace=self._pace,
                        limits=self._limits,
                        entry_bytes=_entry_bytes(cell.metadata),
                    )
                    await self._replace(cell, copy, digest, quorum, member, target, outcome, look_first=True)
        return outcome

    async def _leaving(self, named: Collection[BookieId]) -> dict[BookieId, OperatorRequest]:
        """Return those of these bookies that an operator takes out, alive or not, each with the operator's wish."""
        wishes = {bookie: await read_wish(self._services.store, bookie) for bookie in named if valid_bookie_id(bookie)}
        return {bookie: wish for bookie, wish in wishes.items() if wish.leave}

    def _pace_of(self, lost: Collection[BookieId], leaving: Mapping[BookieId, OperatorRequest]) -> Pace:
        """Return the replicator's speed limit, or the operator's if all that is copied leaves at an operator's wish."""
        rates = [leaving[bookie].rate if bookie in leaving else 0 for bookie in lost]
        if not rates or not all(rates):
            return self._pace
        rate = max(rates)
        if rate not in self._slow:
            self._slow = {rate: Pace(rate, self._pace)}
        return self._slow[rate]

    async def _end(
        self, ledger: LedgerId, versioned: Versioned, leaving: Mapping[BookieId, OperatorRequest], outcome: Outcome
    ) -> Versioned | None:
        """Recover a ledger whose writer is dead; else give the reason why not."""
        metadata = versioned.metadata
        last = metadata.last_fragment.ensemble
        gone = [b for b in last if b in leaving or self._services.bookies.info(b) is None]
        if not self._spare(metadata, metadata.last_fragment, gone, leaving):
            outcome.reasons.append(_no_bookie(gone))
            return None
        why = await self._open_ledgers.why_not(ledger, metadata)
        if why:
            there = len(gone) < len(metadata.last_fragment.ensemble)
            outcome.reasons.append(Reason(Why.WRITER_LIVES if there else Why.COPY_AWAY, why))
            return None
        try:
            reader = await recover_ledger(
                self._services, ledger, password=metadata.password or b"", digest=metadata.digest_type
            )
            await reader.close()
        except RecoveryFailed as error:
            outcome.reasons.append(Reason(Why.COPY_AWAY, f"it cannot be recovered: {error}"))
            return None
        return await self._services.store.read_ledger(ledger)

    def _spare(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        lost: Collection[BookieId],
        leaving: Mapping[BookieId, OperatorRequest],
    ) -> dict[int, BookieId]:
        """Return replacements for the lost members by position, as many as can be found.

        The bookie that the operator wants is preferred where the placement allows it.
        """
        failed = {p: b for p, b in enumerate(fragment.ensemble) if b in lost}
        quorum, policy, wanted = self._placement(metadata, leaving)
        return spare_members(self._services.bookies, fragment.ensemble, failed, quorum, policy, wanted)

    def _next_spare(
        self,
        metadata: LedgerMetadata,
        lost: Collection[BookieId],
        left: Collection[Missing],
        leaving: Mapping[BookieId, OperatorRequest],
    ) -> tuple[Missing, BookieId | None]:
        """Return the next member of a fragment to replace among those not tried yet, and its replacement, None if there
        is none.
        """
        by_position = {member.position: member for member in left}
        ensemble = metadata.fragments[fragment_index(metadata, next(iter(left)).first)].ensemble
        failed = {Position(position): bookie for position, bookie in enumerate(ensemble) if bookie in lost}
        failed |= {position: member.bookie for position, member in by_position.items()}
        quorum, policy, wanted = self._placement(metadata, leaving)
        position, target = next_spare(
            self._services.bookies, ensemble, failed, list(by_position), quorum, policy, wanted
        )
        return by_position[position], target

    def _placement(
        self, metadata: LedgerMetadata, leaving: Mapping[BookieId, OperatorRequest]
    ) -> tuple[Quorum, PlacementPolicy, dict[BookieId, BookieId]]:
        policy = policy_of(metadata.custom_metadata, self._services.bookies.policy)
        return quorum_of(metadata), policy, {bookie: wish.target for bookie, wish in leaving.items()}

    async def _replace_lost(
        self,
        ledger: LedgerId,
        versioned: Versioned,
        missing: Collection[Missing],
        lost: Collection[BookieId],
        leaving: Mapping[BookieId, OperatorRequest],
        outcome: Outcome,
    ) -> None:
        metadata = versioned.metadata
        try:
            digest = digest_of(ledger, metadata, metadata.password or b"", None)
        except InvalidArgument as error:
            outcome.reasons.append(Reason(Why.OTHER, str(error)))
            return
        cell = MetadataCell(self._services.store, ledger, versioned)
        key = master_key(metadata.password or b"")
        quorum = quorum_of(metadata)
        async with TaskScope(f"heal {ledger}") as scope:
            for first in dict.fromkeys(member.first for member in missing):
                fragment = metadata.fragments[fragment_index(metadata, first)]
                copy = FragmentCopy(
                    self._services,
                    ledger,
                    quorum_of(metadata),
                    fragment,
                    digest,
                    key,
                    scope,
                    gone=[b for b in lost if self._services.bookies.info(b) is None],
                    pace=self._pace_of(lost, leaving),
                    limits=self._limits,
                    entry_bytes=_entry_bytes(metadata),
                )
                left = [member for member in missing if member.first == first]
                while left:
                    member, target = self._next_spare(cell.metadata, lost, left, leaving)
                    left.remove(member)
                    if target is None:
                        outcome.reasons.append(_no_bookie([member.bookie]))
                    else:
                        await self._replace(cell, copy, digest, quorum, member, target, outcome)

    async def _replace(
        self,
        cell: MetadataCell,
        copy: FragmentCopy,
        digest: Digest,
        quorum: Quorum,
        member: Missing,
        target: BookieId,
        outcome: Outcome,
        *,
        look_first: bool = False,
    ) -> None:
        """Copy to the target and name it in place of a member.

        `look_first`: check the target's list of copies before metadata names it, too, while nothing is at stake yet.
        """
        assert member.last is not None
        ranges = partial(quorum.held_ranges, member.position, member.first, member.last)
        birth = digest.birth
        for again in (False, True):  # second pass: entries that the target dropped before metadata named it
            try:
                copied = await copy.to(target, member.position, member.last)
                if member.last >= member.first:
                    await self._force(target, digest, copy.ledger)
            except BookieError as error:
                self._services.bookies.report_failed(target)
                outcome.reasons.append(Reason(Why.TARGET_FAILED, str(error)))
                return
            outcome.copied.entries += copied.entries
            outcome.copied.bytes += copied.bytes
            if not copied.whole:
                outcome.reasons += _reasons_of(copied)
                return
            if (
                look_first
                and not again
                and await lists_all(self._services, target, copy.ledger, birth, ranges()) is False
            ):
                why = f"bookie {target} acknowledged copies and does not list them all; nothing was changed"
                outcome.reasons.append(Reason(Why.TARGET_FAILED, why))
                return
            if not again and not await self._name(cell, member, target):
                return  # somebody else replaced the member
            if not again:
                outcome.replaced += 1
            # A peer without lists of entries acknowledged all of them: that has to do.
            if await lists_all(self._services, target, copy.ledger, birth, ranges()) is not False:
                return
        outcome.reasons.append(
            Reason(
                Why.TARGET_FAILED, f"bookie {target} took the place of {member.bookie} and does not list all entries"
            )
        )

    async def _force(self, target: BookieId, digest: Digest, ledger: LedgerId) -> None:
        """Have the target sync the ledger: entries that it had already may be unsynced copies of somebody else's.

        Raises BookieError or the error of the request.
        """
        reply = await ask(self._services.pool, target, Force(ledger, digest.birth))
        if isinstance(reply, BuckramError):
            raise reply
        if reply.code is not Code.OK:
            raise BookieError(target, f"does not confirm that its copies are durable: {reply.code.name}")

    async def _name(self, cell: MetadataCell, member: Missing, target: BookieId) -> bool:
        """Put the target in the place of the lost bookie; return whether this call did it."""

        def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
            present = metadata.fragments[fragment_index(metadata, member.first)]
            if present.first_entry != member.first or member.bookie not in present.ensemble:
                return None
            if target in present.ensemble:
                return None
            return member_replaced(metadata, member.first, member.bookie, target)

        before = cell.current.version
        metadata = await cell.update(change, within_s=_WITHIN_S)
        return (
            cell.current.version != before
            and target in metadata.fragments[fragment_index(metadata, member.first)].ensemble
        )

    async def _check(self, ledger: LedgerId, metadata: LedgerMetadata, outcome: Outcome) -> None:
        """Read every copy where it is, and copy again those that are missing or bad."""
        try:
            report = await repair_ledger(
                self._services, ledger, password=metadata.password or b"", digest=metadata.digest_type
            )
        except NoSuchLedger:
            return
        outcome.copied.entries += report.entries_copied
        outcome.copied.bytes += report.bytes_copied
        problems, without = list(report.problems), list[EntryId]()
        if problems and not metadata.closed:
            # The last problem is that an open ledger's end was not checked. Its confirmed entries are copied here; the
            # writer, or the recovery of the ledger, completes the rest. A mark for that would stay for ever if there is
            # no writer or recovery any more.
            not_looked_at = problems.pop()
            if not await self._fill_open(ledger):
                outcome.reasons.append(Reason(Why.WRITER_LIVES, not_looked_at))
        for problem in problems:
            if isinstance(problem, EntriesWithoutCopy):
                without += problem.entries
            else:
                why = Why.NO_BOOKIE if isinstance(problem, NoFreeBookie) else Why.OTHER
                outcome.reasons.append(Reason(why, problem))
        if without:
            digest = digest_of(ledger, metadata, metadata.password or b"", None)
            outcome.reasons += await reasons_for(self._services, ledger, metadata, digest, without)

    async def _fill_open(self, ledger: LedgerId) -> bool:
        """Copy the confirmed entries of an open last fragment to those members that lack them; return whether all have
        them.

        Then nothing has to wait for its end: what follows the LAC is written by its writer or by recovery.
        """
        versioned = await self._services.store.read_ledger(ledger)
        metadata = versioned.metadata
        members = dict.fromkeys(metadata.last_fragment.ensemble)
        if metadata.closed or any(self._services.bookies.info(bookie) is None for bookie in members):
            return False
        password, kind = metadata.password or b"", metadata.digest_type
        try:
            async with self._client.open(ledger, password=password, digest=kind) as reader:
                confirmed = reader.last_confirmed
        except ReadFailed:
            return False
        digest = digest_of(ledger, metadata, password, kind)
        key = master_key(password)
        return await fill_in(self._services, ledger, versioned, digest, key, list(members), confirmed=confirmed)


def _entry_bytes(metadata: LedgerMetadata) -> int:
    """Return the average payload bytes of an entry; 0 if the record does not say how many entries there are."""
    entries = 0 if metadata.last_entry is None else metadata.last_entry + 1
    return (metadata.length or 0) // entries if entries else 0


def _no_bookie(lost: Collection[BookieId]) -> Reason:
    names = ", ".join(lost)
    return Reason(Why.NO_BOOKIE, f"no bookie can take the place of {names}: start one more, or make one writable")


def _reasons_of(copied: Copied) -> list[Reason]:
    found: list[Reason] = []
    if copied.lost:
        rows = tuple(sorted(copied.lost))
        found.append(Reason(Why.NO_GOOD_COPY, f"entries {named_rows(rows)} have no good copy", rows))
    if copied.unread:
        rows = tuple(sorted(copied.unread))
        text = f"entries {named_rows(rows)} are on bookies that do not answer: {copied.error}"
        found.append(Reason(Why.COPY_AWAY, text, rows))
    return found
