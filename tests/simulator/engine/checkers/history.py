"""Hand-written histories for the judge: the events that a wire, stores and clients would cause, without any of them."""

from __future__ import annotations

from dataclasses import replace

from buckram.core.entries.entry import Digest, master_key
from buckram.errors import Code
from buckram.types import DigestType, EntryId, Fragment, LedgerMetadata, LedgerState
from simulator.engine.checkers.base import ReadResult
from simulator.engine.checkers.facts import Handle
from simulator.engine.checkers.judge import Judge
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.wire import Answer, Request
from simulator.engine.pace import Pace

LEDGER = 7
KEY = master_key(b"")
DIGEST = Digest(DigestType.CRC32C, b"")


class History:
    """A history of writer w1, bookies b1, b2, ... and recovering clients c1, c2, ...

    Each method is one event; `found` are the invariants violated so far. It is the Inspector of its judge: disks have
    all entries that were submitted, unless `on_disk`, `copies` or `fences` say otherwise.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 3, 2),
        *,
        explicit: bool = False,
        deferred: bool = False,
        pace: Pace | None = None,
    ) -> None:
        self.time, self.pace = 1.0, pace or Pace()
        self.on_disk: dict[tuple[str, EntryId], bool] = {}
        self.copies: dict[tuple[str, EntryId], bytes] = {}
        self.fences: dict[str, bool] = {}
        self.superblocks: dict[str, bytes] = {}
        self.report = Report(lambda: self.time)
        self.judge = Judge(
            self.report,
            self,
        )
        self.ensemble = tuple(f"b{n + 1}" for n in range(shape[0]))
        self.md = LedgerMetadata(*shape, (Fragment(0, self.ensemble),))
        self.judge.ledger_changed(LEDGER, None, self.md, "w1")
        self.handle: Handle = self.judge.opened_writer("w1", LEDGER, explicit=explicit, deferred=deferred)
        self.lengths: dict[EntryId, int] = {}

    @property
    def found(self) -> list[str]:
        return list(dict.fromkeys(v.invariant for v in self.report.violations))

    # the inspector

    def now(self) -> float:
        return self.time

    def steady(self, host: str, since: float) -> bool:
        return True

    def resumed_at(self, host: str) -> float:
        return -1.0

    def writer_gave_up(self) -> bool:
        return False

    def unproven_key(self, bookie: str, ledger: int) -> bytes | None:
        return None

    def superblock_on_disk(self, bookie: str) -> bytes:
        return self.superblocks.get(bookie, b"")

    def fenced_on_disk(self, bookie: str, ledger: int) -> bool:
        return self.fences.get(bookie, True)

    def entries_on_disk(self, bookie: str, ledger: int, entries: list[EntryId]) -> dict[EntryId, bool]:
        return {e: self.on_disk.get((bookie, e), True) for e in entries}

    def copies_on_disk(self, bookie: str, ledger: int, entries: list[EntryId]) -> dict[EntryId, bytes | None]:
        written = len(self.handle.payloads)
        held = [e for e in entries if e < written and self.on_disk.get((bookie, e), True)]
        return dict.fromkeys(entries) | {e: self.copies.get((bookie, e), self.stored(e)) for e in held}

    def tick(self) -> None:
        self.time += 1.0

    # the writer

    def submit(self, count: int = 1, ids: list[EntryId] | None = None) -> None:
        first = len(self.handle.payloads)
        self.judge.submit(self.handle, [b"payload %d" % (first + n) for n in range(count)], ids or [None] * count)

    def stored(
        self, entry: EntryId, *, payload: bytes | None = None, lac: int = -1, length: int | None = None
    ) -> bytes:
        payload = self.handle.payloads[entry] if payload is None else payload
        size = sum(len(p) for p in self.handle.payloads[: entry + 1]) if length is None else length
        return DIGEST.seal(LEDGER, entry, lac, size, payload)

    def add(
        self,
        bookie: str,
        entry: EntryId,
        code: Code | None = Code.OK,
        *,
        client: str = "w1",
        recovery: bool = False,
        body: bytes | None = None,
        lac: int = -1,
        key: bytes = KEY,
        delivered: bool = True,
    ) -> Request:
        """An add goes out, arrives and is answered with `code` (None: not yet)."""
        body = self.stored(entry, lac=lac) if body is None else body
        request = Request("add", client, bookie, LEDGER, entry, key, recovery=recovery, lac=lac, body=body)
        self.judge.request_sent(request)
        request.delivered_at = self.time
        self.judge.request_delivered(request)
        if code is not None:
            self.answer(request, code, delivered=delivered)
        return request

    def answer(
        self, request: Request, code: Code, *, bodies: list[bytes] | None = None, delivered: bool = True
    ) -> None:
        answer = Answer(request, code, bodies or [], first=request.entry)
        self.judge.answer_sent(answer)
        if delivered:
            self.judge.answer_delivered(answer)

    def acked(self, index: int, entry: EntryId | None = None) -> None:
        self.judge.acked(self.handle, index, index if entry is None else entry)

    def write(self, count: int, on: tuple[str, ...] | None = None) -> None:
        """Submit, add to the bookies and acknowledge."""
        first = len(self.handle.payloads)
        self.submit(count)
        for entry in range(first, first + count):
            for bookie in on or self.ensemble:
                self.add(bookie, entry)
        for entry in range(first, first + count):
            self.acked(entry)

    # stores and metadata

    def insert(
        self,
        bookie: str,
        entry: EntryId,
        *,
        normal: bool = True,
        fenced: bool = False,
        body: bytes | None = None,
        key: bytes = KEY,
    ) -> None:
        body = self.stored(entry) if body is None else body
        frame = (24 + len(body)).to_bytes(4, "big") + bytes([2, 1, 0, 0 if normal else 2]) + key + body
        self.judge.inserted(bookie, LEDGER, frame, 0, len(frame), fenced, KEY)

    def change(self, who: str, **changes: object) -> None:
        new = replace(self.md, **changes)  # type: ignore[arg-type]  # fields of the record
        self.judge.ledger_changed(LEDGER, self.md, new, who)
        self.md = new

    def close(self, last: EntryId, who: str = "w1", length: int | None = None) -> None:
        size = sum(len(p) for p in self.handle.payloads[: last + 1]) if length is None else length
        self.change(who, state=LedgerState.CLOSED, last_entry=last, length=size)

    # recovery

    def recovery(self, client: str = "c1") -> None:
        self.judge.recovery_started(client, LEDGER)
        if self.md.state is LedgerState.OPEN:
            self.change(client, state=LedgerState.IN_RECOVERY)

    def fence(self, bookie: str, entry: EntryId = -1, code: Code = Code.NO_ENTRY, client: str = "c1") -> None:
        request = Request("read", client, bookie, LEDGER, entry, KEY, fence=True)
        self.judge.request_sent(request)
        request.delivered_at = self.time
        self.judge.request_delivered(request)
        self.answer(request, code)

    # readers

    def read(
        self,
        entries: list[EntryId],
        *,
        kind: str = "read",
        lac: int = 100,
        client: str = "r1",
        payload: bytes | None = None,
        error: str = "",
        error_entry: EntryId | None = None,
    ) -> None:
        rows = []
        for entry in entries:
            length = sum(len(p) for p in self.handle.payloads[: entry + 1])
            rows.append((entry, self.handle.payloads[entry] if payload is None else payload, length, -1))
        self.judge.read_done(LEDGER, ReadResult(client, kind, 0, 0, lac, rows, error, error_entry=error_entry))


def good() -> History:
    h = History()
    h.write(3)
    h.close(2)
    h.read([0, 1, 2])
    h.read([0, 1, 2], kind="final", client="f1")
    h.judge.check_settled()
    h.judge.life_ended()
    return h
