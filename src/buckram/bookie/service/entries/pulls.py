"""Pulls: entries that this bookie copies from a neighbour's files itself, instead of receiving them as recovery adds.

What is read counts for nothing until each entry's ids, key and digest are checked. Then it goes the way of any run of
recovery adds of the connection that asked, through access, quotas, admission and fences; one answer says how much of
it is durable. Reading needs no task of the loop's thread, and what all pulls have in memory is bounded.

Not here: which directories may be read (`bookie/trust/copy_sources.py`), bytes of the packets (`core/wire/pulls.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from buckram.bookie.service.connections.session import REQUEST_COST, Session
from buckram.bookie.service.entries.adds import REFUSALS
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.store import Store
from buckram.core.entries.entry import Digest
from buckram.core.entries.packed import FRAME_HEAD
from buckram.core.wire.adds import HIGH_PRIORITY, RECOVERY_ADD, AddRun, take_runs
from buckram.core.wire.located import FileExtent, Located, bodies_of
from buckram.core.wire.messages import MemoryUse, Pull, PullReply, ReplyContext
from buckram.errors import Code, MetadataError
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import FileData, FileRange, LocalDirectory, Stats
from buckram.types import BookieId, DigestType, EntryId, LedgerId

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of files that all pulls together have in memory, from the read until they are durable."""
MOST_WAITING = 64
_EXTENT_COST = 256
_TURN_BYTES = 1024 * 1024
"""Number of bytes after whose check other requests have their turn."""
_KEYLESS = (DigestType.CRC32, DigestType.CRC32C)
"""Digests that need no password, which a bookie does not have."""


class OpenSource(Protocol):
    async def __call__(self, source: BookieId, located: Located, /) -> LocalDirectory | None:
        """Return the directory of this bookie; None if it is not there or not that bookie's. Raises MetadataError."""
        ...


@dataclass(eq=False, slots=True)
class _Job:
    """One request. `name`: the birth that its connection had named when it came; `charged`: bytes of the request."""

    session: Session
    context: ReplyContext
    request: Pull
    name: bytes | None
    charged: int
    handed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing more of it goes to the adds."""
    answers: dict[EntryId, tuple[EntryId, Code, int]] = field(default_factory=dict)
    """Answers by the first entry of each run: its last entry, the code, and the stored bytes."""
    waiting: int = 0
    """Entries of runs that have no answer yet."""
    given: bool = False
    """True once all runs of the request were given to the adds."""
    code: Code = Code.OK
    """Reason why the runs that were given are fewer than was asked for; OK if they are not."""

    def outcome(self) -> PullReply:
        """Return the reply: what is durable without a gap, and the code of what stopped it."""
        at, size = self.request.entry_id, 0
        while (answer := self.answers.get(at)) is not None and answer[1] is Code.OK:
            at, size = answer[0] + 1, size + answer[2]
        count = at - self.request.entry_id
        code = self.code if answer is None else answer[1]
        code = Code.OK if count == self.request.count else code
        return PullReply(code, self.request.ledger_id, self.request.entry_id, count, size)


class PullPath:
    """Carries out the pulls of all connections. `open_source` None: there are no files that could be read."""

    def __init__(self, store: Store, open_source: OpenSource | None, max_frame_bytes: int, stats: Stats) -> None:
        self._store, self._open_source, self._max_frame_bytes = store, open_source, max_frame_bytes
        self._waiting: deque[_Job] = deque()
        self._in_work: dict[_Job, None] = {}
        self._bytes_in_work = 0
        self._newest: dict[LedgerId, _Job] = {}
        self._scope = TaskScope("pulls")
        self.entries = 0
        """Entries that are durable because of pulls, since the start."""
        self._entries = stats.counter("buckram_bookie_pulled_entries_total", "entries copied from neighbours' files")
        self._bytes = stats.counter("buckram_bookie_pulled_bytes_total", "stored bytes of those")
        store.on_backpressure_end(self._go_on)

    def memory(self) -> MemoryUse:
        """Return how much memory pulls take now, and the most that they may."""
        return MemoryUse("pulls", self._bytes_in_work, MOST_BYTES)

    def arrive(self, session: Session, context: ReplyContext, request: Pull) -> None:
        """Take a request, or refuse it at once."""
        code = self._refusal(request)
        if code is not Code.OK:
            session.reply(context, PullReply(code, request.ledger_id, request.entry_id))
            return
        charged = REQUEST_COST + _EXTENT_COST * len(request.located.extents)
        session.requests_held += charged
        self._waiting.append(_Job(session, context, request, session.named.get(request.ledger_id), charged))
        self._go_on()

    def forget(self, session: Session) -> None:
        """Forget a connection that ended: its requests that wait elsewhere get no reply."""
        self._waiting = deque(job for job in self._waiting if job.session is not session)
        for job in [one for one in self._in_work if one.session is session and one.given]:
            self._release(job)

    async def close(self) -> None:
        self._waiting.clear()
        await self._scope.close()

    def _refusal(self, request: Pull) -> Code:
        if self._open_source is None or request.digest not in _KEYLESS:
            return Code.BAD_REQUEST
        if self._store.failed is not None:
            return Code.IO_ERROR
        if not self._store.is_writable and not self._store.reserve_usable:
            return Code.READ_ONLY
        return Code.TOO_MANY_REQUESTS if len(self._waiting) >= MOST_WAITING else Code.OK

    def _go_on(self) -> None:
        """Begin what there is room for, in the order of arrival."""
        while self._waiting and not self._store.backpressure:
            size = self._waiting[0].request.size
            if self._in_work and self._bytes_in_work + size > MOST_BYTES:
                return
            job = self._waiting.popleft()
            self._in_work[job] = None
            self._bytes_in_work += size
            ledger_id = job.request.ledger_id
            before, self._newest[ledger_id] = self._newest.get(ledger_id), job
            self._scope.spawn(self._work(job, before), f"pull {ledger_id}")

    async def _work(self, job: _Job, before: _Job | None) -> None:
        try:
            job.code = await self._copy(job, before)
        except OSError:
            job.code = Code.NO_ENTRY  # the file was removed, or cannot be read: the entries may be elsewhere by now
        except MetadataError:
            job.code = Code.TOO_MANY_REQUESTS
        except StoreError as error:
            job.code = REFUSALS.get(error.kind, Code.IO_ERROR)
        except BaseException:
            self._release(job)
            raise
        finally:
            job.handed.set()
            if self._newest.get(job.request.ledger_id) is job:
                del self._newest[job.request.ledger_id]
        job.given = True
        if job.session.ended:
            self._release(job)
        else:
            self._finish(job)

    async def _copy(self, job: _Job, before: _Job | None) -> Code:
        """Read, check and hand over; why not everything was, or OK. Raises OSError, MetadataError and StoreError.

        `before`: the pull of the same ledger that came before. Its entries go first, whichever is read sooner: the
        index has a place for each entry that comes below others, and else one for each run.
        """
        request, session = job.request, job.session
        assert self._open_source is not None
        directory = await self._open_source(request.source, request.located)
        if directory is None:
            return Code.BAD_REQUEST
        extents = request.located.extents
        pieces = await directory.read([FileRange(*extent[:3]) for extent in extents])
        if before is not None:
            await before.handed.wait()
        checked = 0
        for extent, piece in zip(extents, pieces, strict=True):
            runs = self._runs(request, extent, piece)
            if session.ended:
                break
            if session.named.get(request.ledger_id) != job.name:
                return Code.TOO_MANY_REQUESTS  # the id means another ledger by now
            for run in runs:
                self._give(job, run)
            if sum(run.count for run in runs) < extent.entries:
                return Code.NO_ENTRY
            checked += extent.length
            if checked >= _TURN_BYTES:
                checked = 0
                await asyncio.sleep(0)
        directory.give_back(pieces)
        return Code.OK

    def _runs(self, request: Pull, extent: FileExtent, piece: FileData) -> Sequence[AddRun]:
        """Yield runs of the good entries of one extent, up to the first entry that is not what the request names."""
        bodies = bodies_of(extent, *piece)
        if bodies is None or not bodies:
            return []
        good = Digest(request.digest, b"").count_good(request.ledger_id, extent.first, bodies)
        if not good:
            return []
        with memoryview(bodies.packet)[bodies.starts[0] - FRAME_HEAD : bodies.ends[good - 1]] as frames:
            return list(_ours(take_runs(frames, self._max_frame_bytes), request, extent.first))

    def _give(self, job: _Job, run: AddRun) -> None:
        job.waiting += run.count

        def answered(run: AddRun, code: Code) -> None:
            job.answers[run.first] = run.last, code, run.end - run.start - FRAME_HEAD * run.count
            job.waiting -= run.count
            self._finish(job)

        run.answered = answered
        try:
            job.session.add_run(job.session, run)
        except StoreError:
            job.waiting -= run.count
            raise

    def _finish(self, job: _Job) -> None:
        """Answer the request if everything that it led to has an answer."""
        if not job.given or job.waiting or job not in self._in_work:
            return
        self._release(job)
        reply = job.outcome()
        self.entries += reply.count
        self._entries.inc(reply.count)
        self._bytes.inc(reply.bytes)
        job.session.reply(job.context, reply)
        job.session.recount()

    def _release(self, job: _Job) -> None:
        del self._in_work[job]
        self._bytes_in_work -= job.request.size
        job.session.requests_held -= job.charged
        self._go_on()


def _ours(runs: Sequence[AddRun], request: Pull, first: EntryId) -> Iterator[AddRun]:
    """Yield the runs as recovery adds, as far as they are of this ledger, with its key, and in order."""
    for run in runs:
        if run.ledger_id != request.ledger_id or run.first != first or run.master_key != request.master_key:
            return
        run.flags = RECOVERY_ADD | HIGH_PRIORITY
        first += run.count
        yield run
