"""Recovery as a coroutine: R1 to R8 (docs/reference/protocol.md, recovery).

The decisions are in core/ledgers/recovery and promises.

Fencing reads and recovery adds travel on the v3 wire (runtime/net/pool sees to that): on v2 their answers could not be
told from those to a plain read or add of the same entry by this client's own reader or writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from buckram.client.maintain.entry_lists import members_behind
from buckram.client.maintain.evidence import Accuser
from buckram.client.maintain.fill import copy_missing_of
from buckram.client.read.lac import bookie_lac
from buckram.client.read.open import check_ledger_id, check_password, digest_of
from buckram.client.read.reader import OnReaderClosed, Reader
from buckram.client.read.replicas import LedgerReads, run_race
from buckram.client.shared.lagging_replicas import BehindNotes, Copies
from buckram.client.shared.ledger_metadata import Change, MetadataCell
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest, master_key
from buckram.core.ledgers.answers import Answer, Positive, Unknown
from buckram.core.ledgers.metadata import birth_of, in_recovery, names_mac, recovered
from buckram.core.ledgers.reading import Race, Strategy, span_of
from buckram.core.ledgers.recovery import Fencing, ForwardRead, Promises, Resend, WriteBack, quorum_of
from buckram.core.placement.policy import policy_of
from buckram.core.wire.acks import SentRun
from buckram.core.wire.adds import HIGH_PRIORITY, RECOVERY_ADD, ack_frames, frame_add
from buckram.errors import (
    BookieUnavailable,
    BuckramError,
    HandleClosed,
    RecoveryFailed,
    Unauthorized,
    check,
)
from buckram.runtime.process.tasks import TaskScope
from buckram.types import (
    BookieId,
    DigestType,
    Entry,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Position,
    Slot,
)

T = TypeVar("T")
_WITHIN_S = 10.0
_MEMBERS_S = 1.0
"""Total time that a recovery waits for members that have not answered before it believes others' denials, seconds."""
_LISTS_S = 0.25
"""Least time that late members get, seconds: first for their copies, and then for their lists."""
_ATTEMPTS = 5
_AHEAD_MIN, _AHEAD_MAX = 16, 256
_AHEAD_BYTES = 8 * 1024 * 1024


async def recover_ledger(
    services: Services,
    ledger_id: LedgerId,
    *,
    password: bytes = b"",
    digest: DigestType | None = None,
    on_closed: OnReaderClosed | None = None,
) -> Reader:
    """Fence the writer, close the ledger after its last recoverable entry, and give a reader of it.

    A closed ledger is just opened. Errors: NoSuchLedger; Unauthorized (nothing was fenced or written);
    RecoveryFailed (too few bookies: the ledger stays IN_RECOVERY, recover again); MetadataUnavailable.
    """
    services.guard()
    versioned = await services.store.read_ledger(check_ledger_id(ledger_id))
    check_password(ledger_id, versioned.metadata, password)
    opened = digest_of(ledger_id, versioned.metadata, password, digest)
    if not versioned.metadata.closed:
        cell, key = MetadataCell(services.store, ledger_id, versioned), master_key(password)
        notes = BehindNotes(services.store, ledger_id, services.runtime.stats)
        behind = await _close(services, cell, ledger_id, opened, key, notes)
        # Whoever closed it, its record is the result (F15).
        versioned = cell.current
        services.lagging.add(ledger_id, behind, copy_missing_of(services, ledger_id, opened, key, notes))
    metadata = versioned.metadata
    check(metadata.closed, "S2", f"ledger {ledger_id} is {metadata.state.name} after recovery")
    assert metadata.last_entry is not None
    reading = await services.encryption.reading_later(ledger_id, metadata, opened, password)
    return Reader(services, ledger_id, versioned, reading, metadata.last_entry, on_closed=on_closed)


async def _close(
    services: Services, cell: MetadataCell, ledger_id: LedgerId, digest: Digest, key: bytes, notes: BehindNotes
) -> list[BookieId]:
    """Try until the ledger is closed. What was found under one record closes that one only (F22). Return the members
    that may lack entries; that is noted before the record is CLOSED."""
    for _ in range(_ATTEMPTS):
        # R1. IN_RECOVERY needs no write: several recoveries may run side by side.
        begun = await cell.update(_begin, within_s=_WITHIN_S)
        if begun.closed:
            return []
        attempt = _Attempt(services, ledger_id, begun, digest, key)
        close = await attempt.run()
        try:
            wanted = close(begun)
            assert wanted is not None
            assert wanted.last_entry is not None
            behind = await members_behind(services, ledger_id, wanted, wanted.last_entry, attempt.left_s)
            if behind:
                await notes.note(behind)
            await cell.update(close, within_s=_WITHIN_S)
            return behind
        except _OtherRecordError:
            continue
    raise RecoveryFailed(ledger_id, f"its metadata changed during each of {_ATTEMPTS} attempts: recover it again")


def _begin(metadata: LedgerMetadata) -> LedgerMetadata | None:
    return in_recovery(metadata) if metadata.state is LedgerState.OPEN else None


class _OtherRecordError(Exception):
    """The record is no longer the one that the attempt was made for."""


def _same(before: LedgerMetadata, now: LedgerMetadata) -> bool:
    """Return whether what was found in the last fragment of one record says where the other ends."""
    return (
        now.state is LedgerState.IN_RECOVERY
        and now.last_fragment == before.last_fragment
        and quorum_of(now) == quorum_of(before)
        and now.creation_time_ms == before.creation_time_ms
        and birth_of(now) == birth_of(before)
    )


class _Attempt:
    """R2 to R6 once. `run` gives the change that closes the ledger (R7)."""

    def __init__(
        self, services: Services, ledger_id: LedgerId, metadata: LedgerMetadata, digest: Digest, key: bytes
    ) -> None:
        self._services = services
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._policy = policy_of(metadata.custom_metadata, services.bookies.policy)
        self._digest = digest
        self._key = key
        self._scope = TaskScope(f"recovery {ledger_id}")
        self._accuser = Accuser(services, ledger_id, digest, sealed=names_mac(metadata))
        self._reads = LedgerReads(services, ledger_id, digest, self._scope, on_digest_mismatch=self._accuser.looked_at)
        self._progress = asyncio.Event()
        self._error: BaseException | None = None
        self._promises = Promises(ledger_id)
        self._members_time = _MembersTime()
        self._forward: ForwardRead | None = None
        self._shown: list[Entry] = []
        """Entries that came with the answers to fencing; they are copies like others."""
        self._members_asked = 0
        """Requests to members about the ledger as a whole that are not answered yet."""

    @property
    def left_s(self) -> float:
        """Return the seconds that members may take that have not answered yet."""
        return max(_LISTS_S, self._members_time.left_s)

    async def run(self) -> Change:
        try:
            start = await self._fence()
            back = await self._copy_forward(start)
            length = await self._length(back)
            self._promises.check_end(back.head)
        finally:
            await self._scope.close()
            await self._accuser.accuse()
        fragments = [Fragment(first, members) for first, members in back.fragments.items()]

        def close(metadata: LedgerMetadata) -> LedgerMetadata | None:
            if metadata.closed:
                return None
            if not _same(self._metadata, metadata):
                raise _OtherRecordError
            return recovered(metadata, fragments, back.head, length)

        return close

    # -- R3, R4 ------------------------------------------------------------------------------------------

    async def _fence(self) -> EntryId:
        fencing = Fencing(self._ledger_id, self._metadata)
        asked = {
            self._scope.spawn(self._member(partial(self._fencing_read, bookie, None)), f"fence {bookie}"): position
            for position, bookie in enumerate(fencing.ensemble)
        }
        for bookie in fencing.ensemble:
            self._scope.spawn(self._member(partial(self._sealed_lac, bookie)), f"LAC of {bookie}")
        while not fencing.covered:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in asked if task.done()]:
                fencing.answered(asked.pop(task), task.result())
        # Those that have not answered go on being asked: the more are fenced the sooner a live writer stops, and what
        # they have to show may still forbid the end that is found meanwhile.
        return fencing.start

    async def _member(self, question: Callable[[], Awaitable[T]]) -> T:
        self._members_asked += 1
        try:
            return await question()
        finally:
            self._members_asked -= 1
            self._progress.set()

    def _all_answered(self) -> bool:
        return not self._members_asked or not self._members_time.left_s

    async def _fencing_read(self, bookie: BookieId, entry: EntryId | None) -> Answer[Entry]:
        try:
            losses = self._services.pool.losses(bookie)
            answer = await self._reads.fencing(bookie, entry, self._key)
            lost = isinstance(answer, Unknown) and isinstance(answer.error, BookieUnavailable)
            if lost and self._services.pool.losses(bookie) != losses:
                # The end of a connection says nothing of the process that may be there now.
                answer = await self._reads.fencing(bookie, entry, self._key)
        except HandleClosed as error:
            return Unknown(error)
        if isinstance(answer, Positive):
            self._promises.entry(bookie, answer.value)
            if entry is None:
                self._shown.append(answer.value)
                if self._forward is not None:
                    self._forward.shown(answer.value)
        return answer

    async def _sealed_lac(self, bookie: BookieId) -> None:
        answer = await bookie_lac(self._services, bookie, self._ledger_id, self._digest)
        if isinstance(answer, Positive):
            self._promises.sealed_lac(bookie, answer.value)

    # -- R5, R6 ------------------------------------------------------------------------------------------

    async def _copy_forward(self, start: EntryId) -> WriteBack:
        reads = self._forward = ForwardRead(self._ledger_id, self._metadata, start)
        for entry in self._shown:
            reads.shown(entry)
        spread = self._services.bookies.ack_rules(self._policy, self._metadata.write_quorum)
        back = WriteBack(self._ledger_id, self._metadata, start, spread)
        for position, bookie in enumerate(back.ensemble):
            # Its domain is unknown, so copies there may not be spread enough: it gets none and is to be replaced.
            if self._services.bookies.info(bookie) is None and any(rule.domain(bookie) is None for rule in spread):
                back.add_failed(Position(position), bookie)
        sink = _Sink(
            back,
            self._progress,
            self._services,
            (self._ledger_id, self._digest.birth) if self._digest.birth else None,
        )
        largest = _AHEAD_BYTES // _AHEAD_MIN
        while not (reads.finished and not back.pending and self._all_answered()):
            self._progress.clear()
            if self._error is not None:
                raise self._error
            if sink.unauthorized is not None:
                raise sink.unauthorized
            if back.to_replace:
                self._send(back, back.replaced(self._replacements(back)), sink)
            found = reads.take()
            if found:
                largest = max(largest // 2, *(len(entry.payload) for entry in found), 1)
                self._send(back, back.add(found), sink)
                continue
            if reads.finished:
                self._promises.check_end(reads.end)
            ahead = max(_AHEAD_MIN, min(_AHEAD_MAX, _AHEAD_BYTES // largest)) - back.pending
            order = {bookie: rank for rank, bookie in enumerate(self._services.bookies.read_order(back.ensemble))}
            for wanted in reads.next_reads(max(ahead, 0)):
                self._scope.spawn(self._decide(reads, wanted, order), f"recovery read {wanted}")
            ended = reads.finished and not back.pending
            if reads.denied or (ended and not self._all_answered()):
                if not await self._members_time.wait(self._progress):
                    reads.give_up()
            elif not ended and not back.to_replace:
                await self._progress.wait()
        await sink.copies.wait(self.left_s)  # enough members have everything, and the others shall have it, too
        sink.copies.complete()
        return back

    async def _decide(self, reads: ForwardRead, entry: EntryId, order: dict[BookieId, int]) -> None:
        try:
            race = reads.race(entry, order)
            outcome = await run_race(
                race, lambda b: self._fencing_read(b, entry), self._services, self._scope, on_answers=self._progress.set
            )
            reads.decided(entry, outcome)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._error = error
        finally:
            self._progress.set()

    def _replacements(self, back: WriteBack) -> dict[int, BookieId]:
        """Return other bookies for the failed positions, never one that failed in this attempt; {} if there is none."""
        metadata = self._metadata
        return self._services.bookies.replace(
            back.ensemble,
            back.to_replace,
            exclude=list(back.failed),
            write_quorum=metadata.write_quorum,
            policy=self._policy,
        )

    def _send(self, back: WriteBack, sends: list[Resend], sink: _Sink) -> None:
        frames: dict[EntryId, bytes] = {}
        for send in sends:
            # A bookie that failed is never asked again in this attempt, so its position is slot enough.
            slot = Slot(send.position)
            runs: list[SentRun] = []
            parts: list[bytes] = []
            acks: list[bytes] = []
            for entry in send.entries:
                entry_id = entry.entry_id
                if entry_id not in frames:
                    frames[entry_id] = self._frame(entry, back.frozen_lac)
                parts.append(frames[entry_id])
                acks.append(ack_frames(self._ledger_id, entry_id, 1))
                if runs and runs[-1][3] == entry_id - 1:
                    runs[-1] = (sink, slot, runs[-1][2], entry_id)
                else:
                    runs.append((sink, slot, entry_id, entry_id))
            sink.copies.unanswered += len(send.entries)
            self._services.pool.lane(send.bookie).send(b"".join(parts), b"".join(acks), runs)

    def _frame(self, entry: Entry, frozen_lac: EntryId) -> bytes:
        """Send the recovery add, with the same id, payload and prefix length, and the LAC of the start (F10)."""
        stored = self._digest.seal(self._ledger_id, entry.entry_id, frozen_lac, entry.length, entry.payload)
        return frame_add(self._key, stored, RECOVERY_ADD | HIGH_PRIORITY)

    # -- the length (3.7) --------------------------------------------------------------------------------

    async def _length(self, back: WriteBack) -> int:
        """Return the prefix length in the last entry's header; it is read where it was not recovered just now."""
        if back.last_recovered is not None:
            return back.last_recovered.length
        if back.head < 0:
            return 0
        span = span_of(self._metadata, back.head, back.head)
        members = [span.ensemble[position] for position in quorum_of(self._metadata).write_set(back.head)]
        race: Race[Entry] = Race(self._services.bookies.read_order(members), Strategy.PARALLEL)
        outcome = await run_race(race, lambda b: self._reads.entry(b, back.head), self._services, self._scope)
        if isinstance(outcome, Positive):
            return outcome.value.length
        why = outcome.error if isinstance(outcome, Unknown) else "every replica says that it does not hold it"
        raise RecoveryFailed(
            self._ledger_id, f"entry {back.head} is confirmed but cannot be read for the ledger's length: {why}"
        )


class _MembersTime:
    """The time that one recovery has left for members that have not answered (F18)."""

    def __init__(self) -> None:
        self.left_s = _MEMBERS_S

    async def wait(self, progress: asyncio.Event) -> bool:
        """Wait until a member answers; False when there is no time left."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self.left_s):
                await progress.wait()
        except TimeoutError:
            self.left_s = 0.0
            return False
        self.left_s = max(0.0, self.left_s - (loop.time() - began))
        return True


class _Sink:
    """Takes the answers to recovery adds from the lanes."""

    def __init__(
        self, back: WriteBack, progress: asyncio.Event, services: Services, name: tuple[LedgerId, bytes] | None
    ) -> None:
        self._back = back
        self._progress = progress
        self._bookies = services.bookies
        self.name = name
        self.unauthorized: BuckramError | None = None
        self.copies = Copies(services.pending_copies)

    def acked(self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId) -> None:
        self.copies.answered(last - first + 1)
        self._back.acked(slot, bookie_id, first, last)
        self._progress.set()

    def add_failed(self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId, error: BuckramError) -> None:
        self.copies.answered(last - first + 1)
        if isinstance(error, Unauthorized):
            self.unauthorized = error
        else:
            self._bookies.report_failed(bookie_id)
        self._back.add_failed(slot, bookie_id)
        self._progress.set()
