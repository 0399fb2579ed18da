"""Holds back requests of namespaces that are over their rates, and lets those that compete take turns.

A request comes here when its ledger's namespace is known. While one namespace has the bookie to itself and is below its
quotas, everything passes at once. What is held back waits in lines of its own, one for each connection of a namespace,
so nobody else's requests wait behind it; a namespace's connections take turns. Fences, recovery and other requests of
high priority never wait: they make a debt.

Not here: buckets and turns (`core/tenants`), where limits come from (`bookie/accounting/namespace_usage.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from buckram.bookie.service.connections.session import REQUEST_COST, AddHandler, Session
from buckram.bookie.service.pacing import TenantPacer
from buckram.bookie.service.security.audit_events import OnRefused
from buckram.bookie.service.security.entry_access import action_of, is_urgent, ledger_of
from buckram.bookie.service.security.ledger_owners import ABSENT, NOBODY, Owner, Owners
from buckram.bookie.service.tenant import (
    ADDS,
    FLIGHT_BYTES,
    NOBODYS,
    READS,
    UNCOUNTED,
    HeldRequest,
    Line,
    Purse,
    Tenant,
)
from buckram.bookie.storage.store import UNLIMITED, Store, TakenAdds
from buckram.core.tenants.pacing import Turns
from buckram.core.wire.adds import SMALLEST_ADD, AddRun
from buckram.core.wire.introduction import KNOWS_QUOTAS
from buckram.core.wire.messages import BatchRead, Read
from buckram.core.wire.server_protocol import Incoming, Item, encode_error
from buckram.errors import Code
from buckram.types import LedgerId

MIXED_S = 0.1
"""Time after a request of another namespace than the one before it, during which namespaces compete, seconds."""
ROUND_BYTES = 1024 * 1024
"""Maximum bytes that leave the lines in one turn of the loop."""
APACHE_WAIT_S = 3.0
"""Longest wait of an add from a client that does not know of quotas, seconds: a longer one is refused with
TOO_MANY_REQUESTS, because such a client gives an add up after 5 s, and the bookie with it."""
FAIR_READ_BYTES = 256 * 1024
_UNLIMITED = 2**63
Unanswered = Callable[[Session, Item], None]


class AddTaker(Protocol):
    """Takes plain adds of a chunk that are let pass (`bookie/service/entries/adds.py:AddPath.take`)."""

    def __call__(
        self,
        session: Session,
        chunk: bytes,
        offset: int,
        max_packet: int,
        v3: bool,
        allowed: Mapping[LedgerId, bytes] | None,
        most_bytes: int,
        /,
    ) -> TakenAdds | None: ...


class RateLimiter:
    """`add`, `take` and `handle` are what requests go to when it is their turn. `active`: whether anything is looked
    at."""

    def __init__(self, owners: Owners, store: Store, add: AddHandler, take: AddTaker, handle: Unanswered) -> None:
        self._owners, self._store, self._add, self._take, self._handle = owners, store, add, take, handle
        self._owner = owners.get
        self._loop = asyncio.get_running_loop()
        self.active = False
        self.tenants: dict[str, Tenant] = {}
        self._last: Tenant | None = None
        self._mixed_until = float("-inf")
        self._turn: dict[Tenant, int] = {}
        """Bytes that passed in this turn of the loop, by tenant."""
        self._turns: dict[str, Turns[Tenant]] = {ADDS: Turns(), READS: Turns()}
        self._timers: dict[tuple[Tenant, str], asyncio.TimerHandle] = {}
        self._giving_way = TenantPacer(self.tenants, lambda: self.contended)
        self._soon = False
        self.on_refused: OnRefused | None = None
        """Callback for each request for which a quota is used up."""

    def tenant(self, namespace: str) -> Tenant:
        found = self.tenants.get(namespace)
        if found is None:
            found = self.tenants[namespace] = Tenant(namespace)
        return found

    @property
    def contended(self) -> bool:
        """Return whether several namespaces have sent requests a moment ago."""
        return self.active and self._loop.time() < self._mixed_until

    # -- arriving requests

    def add(self, session: Session, run: AddRun) -> None:
        """Let a run of adds pass, hold it back, or refuse it. While a namespace has credit, nothing else is looked
        at."""
        owner = self._owner(run.ledger_id) if self.active else None
        if owner is None or not owner[0]:
            self._add(session, run)
            return
        tenant = self.tenants.get(owner[0]) or self.tenant(owner[0])
        size = run.end - run.start
        if (
            tenant is self._last
            and size < tenant.credit
            and run.count < tenant.credit_entries
            and session in tenant.sessions
        ):
            tenant.credit -= size
            tenant.credit_entries -= run.count
            tenant.added(size, run.count, owner[1])
            self._add(session, run)
        else:
            self._look(tenant, owner, session, run)

    def purse(self, ledger_id: LedgerId) -> Purse | None:
        """Return what plain adds of a ledger are paid from; None while it is not certain whose the ledger is."""
        if not self.active:
            return UNCOUNTED
        owner = self._owner(ledger_id)
        if owner is None or owner is NOBODY or owner is ABSENT:
            return None
        return Purse(self.tenant(owner.namespace), owner.copies) if owner.namespace else NOBODYS

    def take(
        self,
        session: Session,
        chunk: bytes,
        offset: int,
        max_packet: int,
        v3: bool,
        ledgers: Mapping[LedgerId, bytes],
        purse: Purse,
    ) -> int:
        """Let plain adds of these ledgers, which have one purse, pass as far as there is credit; see `ChunkHandler`."""
        tenant, most_bytes = purse.tenant if self.active else None, UNLIMITED
        if tenant is not None:
            if tenant is not self._last or session not in tenant.sessions or tenant.adds.waiting:
                return offset
            # Each add has at least so many bytes: what has few entries left gets few bytes.
            most_bytes = min(tenant.credit, tenant.credit_entries * SMALLEST_ADD) - 1
            if most_bytes <= 0:
                return offset
        elif purse is UNCOUNTED and self.active:
            return offset
        taken = self._take(session, chunk, offset, max_packet, v3, ledgers, most_bytes)
        if taken is None:
            return offset
        if tenant is not None:
            tenant.credit -= taken.size
            tenant.credit_entries -= taken.entries
            tenant.added(taken.size, taken.entries, purse.copies)
        return taken.end

    def _look(self, tenant: Tenant, owner: Owner, session: Session, run: AddRun) -> None:
        """Decide on a run for which the namespace has no credit."""
        now = self._loop.time()
        self._seen(tenant, now)
        if is_urgent(run):
            self._pass_run(tenant, owner.copies, session, run)
        elif tenant.stored_left <= 0:
            self._refuse(session, run, "stored_bytes")
        elif session not in tenant.sessions and not tenant.enter(session):
            self._refuse(session, run, "connections")
        elif not tenant.adds.waiting and self._has_room(tenant, now) and tenant.may_add(now, run, owner.copies):
            self._pass_run(tenant, owner.copies, session, run)
            if now >= self._mixed_until and not self._giving_way.active:
                tenant.give_credit(now, owner.copies)
        else:
            name = session.named.get(run.ledger_id)
            held = HeldRequest(session, run.detached(), run.end - run.start, run.count, owner.copies, name)
            if session.introduction is None and tenant.adds.wait_s(held) > APACHE_WAIT_S:
                session.answer_run(run, Code.TOO_MANY_REQUESTS)
            else:
                self._hold(tenant, tenant.adds, held)

    def item(self, session: Session, item: Item) -> None:
        """Do the same with a request to read; everything else passes."""
        request = item.request if isinstance(item, Incoming) else None
        if type(item) is AddRun:
            self.add(session, item)
            return
        owner = None
        if self.active and isinstance(request, Read | BatchRead) and not is_urgent(item) and not _is_poll(request):
            owner = self._owners.get(request.ledger_id)
        if owner is None or not owner.namespace:
            self._handle(session, item)
            return
        tenant = self.tenant(owner.namespace)
        now = self._loop.time()
        self._seen(tenant, now)
        if session not in tenant.sessions and not tenant.enter(session):
            self._refuse(session, item, "connections")
        elif not tenant.reads.waiting and tenant.may_read(now):
            self._handle(session, item)
        else:
            self._hold(tenant, tenant.reads, HeldRequest(session, item, REQUEST_COST))

    def _seen(self, tenant: Tenant, now: float) -> None:
        """Note whose request came: namespaces compete for a while after a request of another one than that before
        it."""
        last = self._last
        if last is not None and last is not tenant:
            self._mixed_until = now + MIXED_S
            self._giving_way.begin()
            last.drop_credit()
            tenant.drop_credit()
        self._last = tenant

    def _has_room(self, tenant: Tenant, now: float) -> bool:
        """Return whether the tenant's adds may leave at once: it is alone, or has little in flight."""
        return tenant.in_flight < FLIGHT_BYTES or now >= self._mixed_until

    def _pass_run(self, tenant: Tenant, copies: int, session: Session, run: AddRun) -> None:
        size = run.end - run.start
        if not self._turn:
            self._loop.call_soon(self._turn_over)
        self._turn[tenant] = self._turn.get(tenant, 0) + size
        tenant.in_flight += size
        tenant.added(size, run.count, copies)
        tenant.pay(size, run.count, copies)
        self._add(session, run)

    def _turn_over(self) -> None:
        turn, self._turn = self._turn, {}
        self._store.after_durable(partial(self._durable, turn, self._loop.time()))

    def _durable(self, turn: dict[Tenant, int], since: float, error: OSError | None) -> None:
        self._giving_way.durable(turn, self._loop.time() - since)
        for tenant, size in turn.items():
            tenant.in_flight -= size
            if tenant.adds.waiting:
                self._turns[ADDS].wait(tenant)
        if self._turns[ADDS]:
            self._go_on_soon()

    def _refuse(self, session: Session, item: Item, quota: str) -> None:
        """Refuse a request. Apache's clients get UNAUTHORIZED: any other code would have them walk through the
        cluster."""
        said = session.introduction
        knows = said is not None and said.features & KNOWS_QUOTAS
        code = Code.QUOTA_EXCEEDED if knows else Code.UNAUTHORIZED
        ledger_id = ledger_of(item)
        if self.on_refused is not None and ledger_id is not None:
            self.on_refused(session, action_of(item), ledger_id, f"its namespace has used up its quota {quota}")
        if isinstance(item, AddRun):
            session.answer_run(item, code)
        elif isinstance(item, Incoming):
            session.send(encode_error(item.context, code))

    # -- lines

    def _hold(self, tenant: Tenant, line: Line, held: HeldRequest) -> None:
        held.session.requests_held += held.size
        line.put(held)
        self._wait(tenant, line)

    def _wait(self, tenant: Tenant, line: Line) -> None:
        """Have the line go on when the tenant's debt is paid. One that waits for the disk goes on when that is done."""
        wait_s = tenant.wait_s(line.kind, self._loop.time())
        key = (tenant, line.kind)
        if wait_s > 0:
            if key not in self._timers:
                self._timers[key] = self._loop.call_later(min(wait_s, 1.0), self._paid, key)
        elif line.kind == READS or tenant.in_flight < FLIGHT_BYTES or not self.contended:
            self._turns[line.kind].wait(tenant)
            self._go_on_soon()

    def _paid(self, key: tuple[Tenant, str]) -> None:
        self._timers.pop(key, None)
        tenant, kind = key
        if tenant.line(kind).waiting:
            self._wait(tenant, tenant.line(kind))

    def _go_on_soon(self) -> None:
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Let those that may take turns, as much as one turn of the loop is good for."""
        self._soon = False
        moved: dict[Session, None] = {}
        for kind, turns in self._turns.items():
            stopped: list[Tenant] = []
            turns.serve(ROUND_BYTES, partial(self._next_size, kind, stopped), partial(self._release, kind, moved))
            for tenant in stopped:
                if tenant.line(kind).waiting:
                    self._wait(tenant, tenant.line(kind))
        for session in moved:
            session.recount()
        if any(self._turns.values()):
            self._go_on_soon()

    def _next_size(self, kind: str, stopped: list[Tenant], tenant: Tenant) -> int | None:
        """Return the size of the next request of a tenant; if nothing may pass now, mark it as stopped and return
        None."""
        line, now = tenant.line(kind), self._loop.time()
        room = kind == READS or self._has_room(tenant, now)
        if line.waiting and room and tenant.wait_s(kind, now) <= 0:
            return line.next().size
        stopped.append(tenant)
        return None

    def _release(self, kind: str, moved: dict[Session, None], tenant: Tenant) -> None:
        line = tenant.line(kind)
        first = line.next()
        held = line.take(tenant.piece(first.size, first.entries, first.copies) if kind == ADDS else 1)
        session, item = held.session, held.item
        session.release(held.size)
        moved[session] = None
        if session.ended:
            return
        if not isinstance(item, AddRun):
            self._handle(session, item)
        elif session.named.get(item.ledger_id) != held.name:
            session.answer_run(item, Code.TOO_MANY_REQUESTS)  # the id means another ledger by now
        elif tenant.stored_left <= 0:
            self._refuse(session, item, "stored_bytes")
        else:
            self._pass_run(tenant, held.copies, session, item)

    # -- what is learned elsewhere

    def most_read_bytes(self, ledger_id: LedgerId) -> int:
        """Return the maximum bytes of an answer about a ledger: small while namespaces compete or if this one has a
        rate limit."""
        owner = self._owners.get(ledger_id) if self.active else None
        if owner is None or not (self._loop.time() < self._mixed_until or self.tenant(owner.namespace).is_limited):
            return _UNLIMITED
        return FAIR_READ_BYTES

    def served(self, ledger_id: LedgerId, size: int) -> None:
        """Count bytes of a ledger that readers got."""
        owner = self._owners.get(ledger_id) if self.active else None
        if owner is not None and owner.namespace:
            self.tenant(owner.namespace).read(size)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._giving_way.close()


def _is_poll(request: Read | BatchRead) -> bool:
    """Return whether a request is a long poll, which has a timeout of its own."""
    return isinstance(request, Read) and request.previous_lac is not None
