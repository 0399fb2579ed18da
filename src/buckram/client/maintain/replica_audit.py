"""Replicas read where they are: every entry that one bookie holds of a piece, verified. Needs no metadata store.

Only what a bookie's files have counts, not what it keeps in memory. Nothing is repaired and nothing is fenced. Entries
that bookies hold beyond what metadata places on them are not looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from buckram.client.read.replicas import as_single, ask, one_from_files
from buckram.config import NetConfig
from buckram.core.backoff import BUSY_BOOKIE, Delays
from buckram.core.cluster.conviction import shown_for_another
from buckram.core.entries.entry import Digest
from buckram.core.entries.packed import total_bytes
from buckram.core.ledgers.answers import Answer, Negative, Positive, Unknown, classify
from buckram.core.ledgers.replica_audit import NAMED, BlockSums, Piece, PieceReport
from buckram.core.wire.introduction import Peer
from buckram.core.wire.messages import BatchRead, BatchReadReply, Read, ReadReply, Reply
from buckram.errors import (
    BookieError,
    BookieIOError,
    BookieTooBusy,
    BookieUnavailable,
    BuckramError,
    Code,
    ProtocolError,
    RequestTimeout,
    UnknownLedgerState,
)
from buckram.runtime.net.introductions import FixedIdentities, Introductions
from buckram.runtime.net.pace import Pace
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import Runtime
from buckram.types import BookieAddress, BookieId, Entry, EntryId

BATCH_BYTES = 1024 * 1024
"""Size of one read, bytes: it fits a processor's cache, and larger batches cost both sides more."""
_WALKERS = 2
_STRIPED_WALKERS = 8
_SINGLES = 32
_HUNG_UP = 2
_WITHIN_S = 10.0
"""Time that an overloaded, restarting or stopped bookie is asked again and again, seconds."""


class ReplicaAuditor:
    """Checks pieces of any bookies that are known: where, and whom to expect there; `async with` or close()."""

    def __init__(
        self,
        runtime: Runtime,
        peers: Mapping[BookieId, Peer | BookieAddress | None],
        net: NetConfig | None = None,
        *,
        within_s: float = _WITHIN_S,
    ) -> None:
        known = {bookie: peer if isinstance(peer, Peer) else Peer(peer) for bookie, peer in peers.items() if peer}
        self._addresses = {bookie: peer.address for bookie, peer in known.items()}
        expected = {bookie: peer.expected for bookie, peer in known.items()}
        net = net or NetConfig()
        self._batch_bytes = min(BATCH_BYTES, net.max_frame_bytes - 64 * 1024)
        introductions = Introductions(FixedIdentities(expected))
        self._pool = BookiePool(runtime, net, self._addresses.get, introductions=introductions)
        self._scope = TaskScope("audit")
        self._hung_up: dict[BookieId, int] = {}
        self._within_s = within_s
        self._troubled: dict[BookieId, float] = {}
        """Since when a bookie has not answered anything (or only that it is busy)."""

    async def check(self, piece: Piece, pace: Pace | None = None) -> PieceReport:
        """Read and verify all of it. Does not raise for what a bookie does: that is in the report."""
        report = PieceReport(piece)
        if self._addresses.get(piece.bookie) is None:
            report.error = f"bookie {piece.bookie} is not registered: start it, or repair the ledger onto another one"
            return report
        work = _PieceCheck(self, piece, report, pace or Pace(None))
        walkers = [self._scope.spawn(work.walk(), f"audit {piece.ledger}") for _ in range(work.width)]
        try:
            for walker in walkers:
                if error := await walker:
                    report.error = str(error)
                    break
        finally:
            for walker in walkers:
                walker.cancel()
        report.bad.sort()
        report.sums = work.sums.result()
        return report

    async def sample(self, piece: Piece, entries: Sequence[EntryId], pace: Pace | None = None) -> PieceReport:
        """Check only these entries of the fragment, as `check` does; there are no sums."""
        report = PieceReport(piece)
        work = _PieceCheck(self, piece, report, pace or Pace(None))
        try:
            for start in range(0, len(entries), _SINGLES):
                await work.singles(entries[start : start + _SINGLES])
        except BuckramError as error:
            report.error = str(error)
        report.bad.sort()
        return report

    async def entry(self, piece: Piece, entry: EntryId) -> Answer[Entry]:
        """Return one entry as this bookie holds it."""
        digest = Digest(piece.digest, piece.password, piece.birth)
        return _opened(digest, piece, entry, await self.ask(piece.bookie, Read(piece.ledger, entry, birth=piece.birth)))

    async def stored(self, piece: Piece, entry: EntryId, digest: Digest) -> Reply | BookieError:
        """Return the answer to a read of one entry, from the bookie's files if it knows batch reads."""
        if self.takes_batches(piece.bookie):
            request = one_from_files(piece.ledger, entry, self._batch_bytes, digest)
            reply = await self.ask(piece.bookie, request)
            if isinstance(reply, BatchReadReply):
                return as_single(request, reply)
            if not isinstance(reply, BookieUnavailable | ProtocolError):
                return reply
        return await self.ask(piece.bookie, Read(piece.ledger, entry, birth=piece.birth))

    async def ask(self, bookie: BookieId, request: Read | BatchRead) -> Reply | BookieError:
        """Send a request, and again while the bookie may only be busy: for `within_s` after it last answered one."""
        loop, delays = asyncio.get_running_loop(), Delays(BUSY_BOOKIE)
        while True:
            reply = await ask(self._pool, bookie, request)
            if not _passing(request, reply):
                if not isinstance(reply, BookieError):
                    self._troubled.pop(bookie, None)
                return reply
            # One limit for all requests: a bookie that is away for good must not cost a wait for each of thousands.
            if loop.time() - self._troubled.setdefault(bookie, loop.time()) >= self._within_s:
                return reply
            await asyncio.sleep(delays.take())

    @property
    def batch_bytes(self) -> int:
        return self._batch_bytes

    def takes_batches(self, bookie: BookieId) -> bool:
        """Return False for a peer that hung up on batch reads again and again: it does not know them."""
        return self._hung_up.get(bookie, 0) < _HUNG_UP

    def hung_up(self, bookie: BookieId) -> None:
        self._hung_up[bookie] = self._hung_up.get(bookie, 0) + 1

    def knows_batches(self, bookie: BookieId) -> None:
        """Forget that a bookie hung up on batch reads: it answered one, so it hung up for another reason, such as a
        restart."""
        self._hung_up.pop(bookie, None)

    async def close(self) -> None:
        await self._scope.close()
        await self._pool.close()

    async def __aenter__(self) -> ReplicaAuditor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _PieceCheck:
    """One piece; several walkers take ranges of it from one list."""

    def __init__(self, auditor: ReplicaAuditor, piece: Piece, report: PieceReport, pace: Pace) -> None:
        self._auditor, self._piece, self._report, self._pace = auditor, piece, report, pace
        self._digest = Digest(piece.digest, piece.password, piece.birth)
        self.sums = BlockSums(piece)
        self._ranges = piece.ranges
        self.width = _STRIPED_WALKERS
        if len(self._ranges) == 1:
            # In halves, so that the bookie reads while this side verifies.
            (low, high), self.width = self._ranges[0], _WALKERS
            middle = (low + high + 1) // 2
            self._ranges = [(a, b) for a, b in ((low, middle - 1), (middle, high)) if a <= b]
        self._ranges.reverse()

    async def walk(self) -> BuckramError | None:
        """Take ranges until none is left. Returns what keeps the bookie from being asked."""
        try:
            await self._walk()
        except BuckramError as error:
            return error
        return None

    async def _walk(self) -> None:
        while self._ranges:
            at, last = self._ranges.pop()
            singles = 1
            while at <= last:
                if singles == 1:
                    at = await self._batch(at, last)
                    singles = _SINGLES if at <= last else 1
                else:
                    stop = min(last, at + singles - 1)
                    singles = 1 if await self.singles(range(at, stop + 1)) else _SINGLES
                    at = stop + 1

    async def _batch(self, first: EntryId, last: EntryId) -> EntryId:
        """Return where it ended: after the range, or at an entry that is to be asked for by itself."""
        auditor, piece = self._auditor, self._piece
        while first <= last and auditor.takes_batches(piece.bookie):
            count, key = last - first + 1, self._digest.key
            request = BatchRead(
                piece.ledger,
                first,
                count,
                auditor.batch_bytes,
                master_key=key,
                framed=True,
                from_files=True,
                birth=piece.birth,
            )
            reply = await auditor.ask(piece.bookie, request)
            if isinstance(reply, BookieUnavailable | ProtocolError):
                auditor.hung_up(piece.bookie)
                return first
            if not isinstance(reply, BatchReadReply) or reply.code is not Code.OK:
                return first
            auditor.knows_batches(piece.bookie)
            bodies = reply.bodies[: last - first + 1]
            found = self._digest.open_digests(piece.ledger, first, bodies)
            self._good(first, found, total_bytes(bodies))
            await self._pace.take(total_bytes(bodies))
            first += len(found)
            if len(found) < len(bodies) or not found:
                return first
        return first

    async def singles(self, wanted: Sequence[EntryId]) -> bool:
        """Ask for each entry; True if all were good."""
        auditor, piece = self._auditor, self._piece
        replies = await asyncio.gather(*(auditor.stored(piece, entry, self._digest) for entry in wanted))
        good = True
        for entry, reply in zip(wanted, replies, strict=True):
            answer = _opened(self._digest, piece, entry, reply)
            if isinstance(answer, Positive) and isinstance(reply, ReadReply) and reply.body is not None:
                self._good(entry, self._digest.open_digests(piece.ledger, entry, [reply.body]), len(reply.body))
                continue
            good = False
            if isinstance(reply, ReadReply) and reply.body is not None and not self._report.lie:
                self._report.lie = shown_for_another(self._digest, piece.ledger, entry, reply.body)
                self._report.lie_entry = entry
            if isinstance(answer, Unknown) and answer.damaged and self._report.unfit < 0:
                self._report.unfit = entry
            self._bad(entry, answer)
        await self._pace.take(sum(len(r.body) for r in replies if isinstance(r, ReadReply) and r.body is not None))
        return good

    def _good(self, first: EntryId, digests: Sequence[int], size: int) -> None:
        self._report.good += len(digests)
        self._report.bytes += size
        self.sums.add(first, digests)

    def _bad(self, entry: EntryId, answer: Answer[Entry]) -> None:
        report = self._report
        if isinstance(answer, Negative):
            report.missing += 1
        elif not isinstance(answer, Positive) and (
            answer.damaged or isinstance(answer.error, BookieIOError | UnknownLedgerState)
        ):
            # It answers that it cannot give the entry, or gives other bytes: this replica is bad.
            report.damaged += 1
        elif not isinstance(answer, Positive):
            raise answer.error
        if len(report.bad) < NAMED:
            report.bad.append(entry)
        self.sums.bad(entry)


def _passing(request: Read | BatchRead, reply: Reply | BookieError) -> bool:
    """Return whether the failure of a request may pass, so that it is worth asking again.

    A bookie that hangs up on a batch read may not know these, so it is asked for single entries instead.
    """
    if isinstance(reply, BookieUnavailable):
        return isinstance(request, Read)
    if isinstance(reply, BookieError):
        return isinstance(reply, BookieTooBusy | RequestTimeout)
    return reply.code is Code.TOO_MANY_REQUESTS


def _opened(digest: Digest, piece: Piece, entry: EntryId, reply: Reply | BuckramError) -> Answer[Entry]:
    def verify() -> Entry:
        if not isinstance(reply, ReadReply) or reply.body is None:
            raise ProtocolError(piece.bookie, "answered a read without an entry")
        return digest.open(piece.ledger, entry, reply.body)

    return classify(piece.bookie, reply, verify)


async def differing(auditor: ReplicaAuditor, replicas: Sequence[Piece], entries: Sequence[EntryId]) -> list[EntryId]:
    """Return those of `entries` that good replicas hold with different contents (not counting the LAC, which recovery
    may write anew)."""
    found: list[EntryId] = []
    for begin in range(0, len(entries), _SINGLES):
        part = entries[begin : begin + _SINGLES]
        answers = await asyncio.gather(*(auditor.entry(piece, entry) for entry in part for piece in replicas))
        for place, entry in enumerate(part):
            own = answers[place * len(replicas) : (place + 1) * len(replicas)]
            held = [(a.value.payload, a.value.length) for a in own if isinstance(a, Positive)]
            if any(one != held[0] for one in held):
                found.append(entry)
    return found
