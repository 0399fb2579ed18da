"""One namespace on a bookie: its rates, what it did, and its lines of requests that are held back."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from buckram.bookie.service.connections.session import Session
from buckram.core.tenants.pacing import PIECE_S, Bucket
from buckram.core.tenants.quotas import Usage
from buckram.core.wire.adds import AddRun
from buckram.core.wire.server_protocol import Item

ADDS, READS = "adds", "reads"
FLIGHT_BYTES = 512 * 1024
"""Bytes that a namespace may have on their way to the disk while it competes with others."""
LONG_BYTES = 8 * 1024 * 1024
"""A line with more than this is fed no longer: its connections are not read until it is half as long."""
CREDIT_BYTES, CREDIT_ENTRIES, CREDIT_S = 4 * 1024 * 1024, 10_000, 0.05
"""Limits of what may pass on credit, without a look at the clock and the rates: bytes, entries, and seconds' worth of a
rate."""
_PACE, _PACE_BURST_S, _PACE_PIECE_BYTES = "pace", 0.005, 64 * 1024
_UNLIMITED = 2**63


class HeldRequest(NamedTuple):
    """A request that waits. `copies`: on how many bookies its ledger has each entry. `name`: the birth that its
    connection had named when it came."""

    session: Session
    item: Item
    size: int
    entries: int = 0
    copies: int = 1
    name: bytes | None = None


class Line:
    """The queue of held requests of one kind, by connection; connections take turns."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.waiting: dict[Session, deque[HeldRequest]] = {}
        self._paused: dict[Session, None] = {}
        self.held_bytes = 0
        self.entries = self.logical_bytes = 0.0
        """Entries and bytes of adds that wait, each entry counted once for all its copies."""
        self.byte_rate = self.entry_rate = math.inf
        """Bytes and entries a second that leave the line; infinite without a limit."""

    def put(self, held: HeldRequest) -> None:
        self.waiting.setdefault(held.session, deque()).append(held)
        self._count(held, 1)
        if self.held_bytes > LONG_BYTES:
            self._paused[held.session] = None
            held.session.pause_reads()

    def next(self) -> HeldRequest:
        return next(iter(self.waiting.values()))[0]

    def take(self, most_entries: int) -> HeldRequest:
        """Take the first request of the connection whose turn it is, or the first `most_entries` of a run, and move
        that connection to the end."""
        session, waiting = next(iter(self.waiting.items()))
        held = waiting.popleft()
        if isinstance(held.item, AddRun) and held.entries > most_entries:
            head, tail = held.item.split(most_entries)
            rest = held._replace(item=tail, size=tail.end - tail.start, entries=tail.count)
            waiting.appendleft(rest)
            held = held._replace(item=head, size=head.end - head.start, entries=head.count)
        del self.waiting[session]
        if waiting:
            self.waiting[session] = waiting
        self._count(held, -1)
        if self._paused and self.held_bytes < LONG_BYTES // 2:
            self._resume()
        return held

    def _count(self, held: HeldRequest, sign: int) -> None:
        self.held_bytes += sign * held.size
        self.entries += sign * held.entries / held.copies
        self.logical_bytes += sign * held.size / held.copies

    def wait_s(self, held: HeldRequest) -> float:
        """Return how long another request would wait in this line, seconds."""
        by_bytes = (self.logical_bytes + held.size / held.copies) / self.byte_rate
        return max(by_bytes, (self.entries + held.entries / held.copies) / self.entry_rate)

    def _resume(self) -> None:
        paused, self._paused = self._paused, {}
        for session in paused:
            if not session.ended:
                session.resume_reads()


class Tally(NamedTuple):
    """Totals since the start: bytes in the log, and, each entry counted once, bytes and entries added, and bytes
    read."""

    stored: int
    in_bytes: float
    in_entries: float
    out_bytes: int


class Tenant:
    """Rates and counts of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.adds = Line(ADDS)
        self.reads = Line(READS)
        self.in_flight = 0
        """Bytes on their way to the disk; what passes on credit is not counted."""
        self.credit = self.credit_entries = 0
        """Bytes and entries that may pass without a look at anything else; they are paid for already."""
        self._credit_copies = 1
        self._stored_until = _UNLIMITED
        self.most_connections = _UNLIMITED
        self.sessions: dict[Session, None] = {}
        self._buckets: dict[str, Bucket] = {}
        self._stored, self._in_bytes, self._in_entries, self._out = 0, 0.0, 0.0, 0

    def __repr__(self) -> str:
        return f"<Tenant {self.namespace}>"

    def line(self, kind: str) -> Line:
        return self.adds if kind == ADDS else self.reads

    def tally(self) -> Tally:
        return Tally(self._stored, self._in_bytes, self._in_entries, self._out)

    # -- limits

    def limit(self, name: str, rate: float | None, now: float) -> None:
        """Set a rate (`in_bytes`, `in_entries`, `out_bytes`), a second; None: no limit."""
        bucket = self._buckets.get(name)
        if rate is None:
            self._buckets.pop(name, None)
        elif bucket is None:
            self._buckets[name] = Bucket(rate, now)
        else:
            bucket.set_rate(rate, now)
        speed = math.inf if rate is None else max(rate, 1.0)
        if name == "in_bytes":
            self.adds.byte_rate = speed
        elif name == "in_entries":
            self.adds.entry_rate = speed

    def pace(self, rate: float | None, now: float) -> None:
        """Set the bytes a second of adds and reads together that leave others room here; None: no limit."""
        bucket = self._buckets.get(_PACE)
        if rate is None:
            if bucket is not None:
                del self._buckets[_PACE]
        elif bucket is None:
            self._buckets[_PACE] = Bucket(rate, now, _PACE_BURST_S)
        else:
            bucket.set_rate(rate, now)

    @property
    def bytes_used(self) -> int:
        """Return the bytes of adds and reads since the start."""
        return self._stored + self._out

    @property
    def is_limited(self) -> bool:
        """Return whether the namespace has any rate limit."""
        return bool(self._buckets)

    def may_add(self, now: float, run: AddRun, copies: int) -> bool:
        """Return whether all of a run may pass now."""
        if not self._buckets:
            return True
        return self.wait_s(ADDS, now) <= 0 and run.count <= self.piece(run.end - run.start, run.count, copies)

    def piece(self, size: int, entries: int, copies: int) -> int:
        """Return how many entries of a run may pass at once, at least one."""
        part, most = PIECE_S * copies / max(1, len(self.adds.waiting)), float(entries)
        if (bucket := self._buckets.get("in_entries")) is not None:
            most = min(most, bucket.rate * part)
        if (bucket := self._buckets.get("in_bytes")) is not None:
            most = min(most, bucket.rate * part * entries / max(1, size))
        if _PACE in self._buckets:
            most = min(most, _PACE_PIECE_BYTES * entries / max(1, size))
        return max(1, int(most))

    def may_read(self, now: float) -> bool:
        return not self._buckets or self.wait_s(READS, now) <= 0

    def wait_s(self, kind: str, now: float) -> float:
        """Return the seconds until the next request of this kind may pass."""
        names = ("in_bytes", "in_entries", _PACE) if kind == ADDS else ("out_bytes", _PACE)
        return max((self._buckets[name].wait_s(now) for name in names if name in self._buckets), default=0.0)

    def enter(self, session: Session) -> bool:
        """Count a connection; False if the namespace has as many as it may have."""
        if len(self.sessions) >= self.most_connections:
            self.purge()
            if len(self.sessions) >= self.most_connections:
                return False
        self.sessions[session] = None
        return True

    def purge(self) -> None:
        """Forget connections that have ended."""
        for session in [one for one in self.sessions if one.ended]:
            del self.sessions[session]

    # -- counting

    def added(self, size: int, entries: int, copies: int) -> None:
        """Count a run that passes, each of whose entries has `copies` copies on all bookies together."""
        self._stored += size
        self._in_bytes += size / copies
        self._in_entries += entries / copies

    def pay(self, size: int, entries: int, copies: int) -> None:
        """Take from the rates what a run needs."""
        if self._buckets:
            if (bucket := self._buckets.get("in_bytes")) is not None:
                bucket.take(size / copies)
            if (bucket := self._buckets.get("in_entries")) is not None:
                bucket.take(entries / copies)
            if (bucket := self._buckets.get(_PACE)) is not None:
                bucket.take(size)

    def give_credit(self, now: float, copies: int) -> None:
        """Pay in advance for what may pass until the next look, if the rates have that much."""
        self.drop_credit()
        size, entries = min(CREDIT_BYTES, self.stored_left // 2), CREDIT_ENTRIES
        if (bucket := self._buckets.get("in_bytes")) is not None:
            size = min(size, int(bucket.rate * CREDIT_S * copies))
        if (bucket := self._buckets.get("in_entries")) is not None:
            entries = min(entries, int(bucket.rate * CREDIT_S * copies))
        if size > 0 and entries > 0 and self.wait_s(ADDS, now) <= 0:
            self.credit, self.credit_entries, self._credit_copies = size, entries, copies
            self.pay(size, entries, copies)

    def drop_credit(self) -> None:
        """Take back what is left of it."""
        if self.credit:
            self.pay(-self.credit, -self.credit_entries, self._credit_copies)
            self.credit = self.credit_entries = 0

    @property
    def stored_left(self) -> int:
        """Return the bytes that the namespace's quota has left on all bookies together."""
        return self._stored_until - self._stored

    @stored_left.setter
    def stored_left(self, left: int) -> None:
        self._stored_until = self._stored + left
        self.drop_credit()

    def read(self, size: int) -> None:
        self._out += size
        for name in ("out_bytes", _PACE):
            if (bucket := self._buckets.get(name)) is not None:
                bucket.take(size)

    def usage(self, before: Tally, elapsed_s: float, stored_bytes: int) -> Usage:
        """Return what the namespace used since `before`, and what it wanted: that, and what waits."""
        per = 1 / max(elapsed_s, 1e-3)
        in_bytes = (self._in_bytes - before.in_bytes) * per
        in_entries = (self._in_entries - before.in_entries) * per
        out_bytes = (self._out - before.out_bytes) * per
        more = 2.0 if self.reads.waiting else 1.0  # how much a read is of is not known before it is done
        return Usage(
            stored_bytes,
            in_bytes,
            in_entries,
            out_bytes,
            len(self.sessions),
            in_bytes + self.adds.logical_bytes * per,
            in_entries + self.adds.entries * per,
            out_bytes * more,
        )


class Purse(NamedTuple):
    """What adds of a ledger are paid from: the tenant, None for none, and the copies of each entry."""

    tenant: Tenant | None
    copies: int = 1


NOBODYS = Purse(None)
"""Of ledgers that are certainly of no namespace."""
UNCOUNTED = Purse(None, 0)
"""Of all ledgers while nothing is attributed to namespaces; it ends when that begins."""
