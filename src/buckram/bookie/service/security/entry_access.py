"""Entries: may who is on this connection append to, or read, this ledger? One look-up for a run or a batch.

Only connections of peers whom grants concern come here, and, while namespaces have quotas, all others. The first
request of a ledger has to wait for a look at metadata, which says the ledger's stream or namespace, and what arrives
on the connection behind it waits, too, in its order. Where nothing is ever refused, because there is no authorisation
or an administrator asks, nothing urgent waits, nor depends on an answer.

An id can be given again, so what is known of a ledger is known of its birth. The connection is made to mean that birth
(`bookie/service/connections/ledger_births.py`): what another ledger of the same id has stored here is not there for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

from buckram.bookie.service.connections.ledger_births import MAX_NAMED
from buckram.bookie.service.connections.session import AddHandler, Session
from buckram.bookie.service.security.audit_events import OnRefused
from buckram.bookie.service.security.ledger_owners import ABSENT, Owners
from buckram.core.backoff import UNREAD_OWNER, Delays
from buckram.core.ledgers.metadata import is_certain
from buckram.core.security.required_permissions import FENCING, NEEDS, OF_OPERATIONS
from buckram.core.wire.adds import HIGH_PRIORITY, RECOVERY_ADD, AddRun
from buckram.core.wire.messages import OP_ADD, Auth, BatchRead, GetBookieInfo, Pull, Read, StartTls
from buckram.core.wire.server_protocol import Incoming, Item, Named, encode_error
from buckram.errors import BuckramError, Code, MalformedRecord, NoSuchLedger
from buckram.runtime.process.tasks import TaskScope
from buckram.types import LedgerId

log = logging.getLogger("buckram.bookie")
READ, APPEND = 1, 2
_MOST_LEDGERS = 100_000
_RECENT_S = 1.0
"""Time that metadata's answer stays valid where nothing here confirms which ledger the id means, seconds."""


def bits(permissions: Iterable[str]) -> int:
    """READ and APPEND of permissions on a namespace."""
    return (READ if "read" in permissions else 0) | (APPEND if "append" in permissions else 0)


_BITS = {number: 0 if effect is None else bits(NEEDS[effect]) for number, effect in OF_OPERATIONS.items()}
"""Permission bits that each operation needs on its ledger; 0 for an operation that is about no ledger."""
_FENCING = bits(NEEDS[FENCING])


class GrantedRights(Protocol):
    """Knows grants (`bookie/service/security/bookie_security.py`)."""

    @property
    def version(self) -> int:
        """Return a value that changes whenever grants change."""
        ...

    def rights(self, session: Session, name: str) -> int: ...


PurseT = TypeVar("PurseT")


class PlainAdds(Protocol[PurseT]):
    """Where plain adds go once they are allowed (`bookie/service/rate_limiter.py:RateLimiter`)."""

    def purse(self, ledger_id: LedgerId) -> PurseT | None:
        """Return what adds of a ledger are paid from; None if they have to come as runs."""
        ...

    def take(
        self,
        session: Session,
        chunk: bytes,
        offset: int,
        max_packet: int,
        v3: bool,
        ledgers: Mapping[LedgerId, bytes],
        purse: PurseT,
    ) -> int:
        """Take plain adds of these ledgers, all of this purse, each with the birth that the connection has to mean."""
        ...


class Right(NamedTuple):
    """READ and APPEND of a connection on the ledger of this birth. One that can be mistaken for another ledger counts
    until `until` (loop time)."""

    rights: int
    birth: bytes
    until: float


_EVER = float("inf")
NOTHING = Right(0, b"", float("-inf"))


class EntryAccess:
    """`add` and `handle` are what requests go to once they are allowed. `judge` None: everything is allowed, and the
    namespace is looked up for quotas only. `birth_here`: of the ledger whose data this bookie has under an id; b"" if
    it has none or does not know."""

    def __init__(
        self,
        owners: Owners,
        judge: GrantedRights | None,
        add: AddHandler,
        handle: Callable[[Session, Item], None],
        birth_here: Callable[[LedgerId], bytes],
    ) -> None:
        self.add, self._handle = add, handle
        self._judge = judge
        self._birth_here = birth_here
        self.owners = owners
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope("access")
        self.plain: PlainAdds[Any] | None = None
        """Where plain adds go; None: all adds come as runs."""
        self.on_refused: OnRefused | None = None
        """Callback for each request that grants refuse."""
        self._unread: dict[LedgerId, None] = {}
        """Ledgers that count for no namespace because metadata could not be read; it is read again."""

    def guard(self, session: Session) -> None:
        """Route every later request of the connection through a gate that checks rights."""
        gate = ConnectionAccess(self, session)
        session.add_run, session.handle_item = gate.add, gate.item
        session.take_adds = None if self.plain is None else gate.take

    async def close(self) -> None:
        await self._scope.close()

    def now(self) -> float:
        return self._loop.time()

    def right(self, session: Session, ledger_id: LedgerId, named: bytes, needed: int, *, looked: bool) -> Right | None:
        """Return the rights of a connection on the ledger that it means, or None if metadata has to be asked first:
        because the namespace is not known, or because what is known refuses what is `needed`, or may be about another
        ledger that had this id.

        `named`: the birth that the client named, b"" for none. `looked`: metadata was asked just now.
        """
        owner = self.owners.get(ledger_id)
        if owner is None:
            return None
        if owner is ABSENT and not looked and needed & APPEND:
            return None  # the client that writes it must have made it since
        if self._judge is None or self.is_open(session):
            if owner is ABSENT:
                return Right(READ | APPEND if needed & APPEND else READ, named, self.now() + _RECENT_S)
            return Right(READ | APPEND, named, _EVER)
        recent = self.now() < owner.at + _RECENT_S
        rights = self._judge.rights(session, owner.granted_name)
        if not looked:
            sure = named == owner.birth if named else recent or self._birth_here(ledger_id) == owner.birth != b""
            if not sure or (not recent and not rights & needed):
                return None
        if named and owner.birth and named != owner.birth:
            return NOTHING  # there is no such ledger any more
        lasts = bool(named) and is_certain(owner.birth)
        return Right(rights, owner.birth, _EVER if lasts else self.now() + _RECENT_S)

    @property
    def version(self) -> int:
        """Return a value that changes whenever grants change."""
        return 0 if self._judge is None else self._judge.version

    def is_open(self, session: Session) -> bool:
        """Return whether nothing that comes on a connection is ever refused: no grants are in force, or it is an
        administrator's."""
        return self._judge is None or session.principal.admin

    def find_out(self, ledger_id: LedgerId, then: Callable[[Code], None], *, is_open: bool) -> None:
        """Look at metadata, then call with OK, or with the code of an answer to whatever waits."""
        self._scope.spawn(self._look(ledger_id, then, is_open), "namespace")

    async def _look(self, ledger_id: LedgerId, then: Callable[[Code], None], is_open: bool) -> None:
        code = Code.OK
        try:
            await self.owners.look(ledger_id)
        except NoSuchLedger:
            code = Code.UNAUTHORIZED  # without an owner; whether it exists is not shown to peers without rights
        except BuckramError as error:
            log.warning("ledger %d: its namespace is not known: %s", ledger_id, error)
            code = Code.TOO_MANY_REQUESTS
        if code is not Code.OK and is_open:
            unread = code is Code.TOO_MANY_REQUESTS
            self.owners.nobodys(ledger_id, absent=not unread)
            if unread:
                self._ask_again(ledger_id)
            code = Code.OK
        then(code)

    def _ask_again(self, ledger_id: LedgerId) -> None:
        """Read later from metadata whose ledger this is; one task reads for all such ledgers."""
        if not self._unread:
            self._scope.keep(self._ask_for_unread, "unread owners")
        if len(self._unread) < _MOST_LEDGERS:
            self._unread[ledger_id] = None

    async def _ask_for_unread(self) -> None:
        delays = Delays(UNREAD_OWNER)
        while self._unread:
            await asyncio.sleep(delays.take())
            for ledger_id in list(self._unread):
                try:
                    await self.owners.look(ledger_id)
                except MalformedRecord:
                    continue  # the record may be mended
                except NoSuchLedger:
                    self.owners.nobodys(ledger_id, absent=True)
                except BuckramError:
                    break  # the store is away, for all the others, too
                del self._unread[ledger_id]
                delays.reset()

    def allowed(self, session: Session, item: Item | AddRun) -> None:
        if type(item) is AddRun:
            self.add(session, item)
        else:
            self._handle(session, item)


class ConnectionAccess:
    """One connection: what it may do with which ledger, and what waits."""

    def __init__(self, access: EntryAccess, session: Session) -> None:
        self._access, self._session = access, session
        self._add, self._open = access.add, access.is_open(session)
        self._rights: dict[LedgerId, Right] = {}
        self._meant: dict[LedgerId, bytes] = {}
        """Births that this gate, and not the client, had the connection mean."""
        self._version = access.version
        self._waiting: list[tuple[Item, float]] = []
        """Requests that wait for a look at metadata, each with its time of arrival."""
        self._held = 0
        self._plain: dict[Any, dict[LedgerId, bytes]] = {}
        """Ledgers whose adds need no look here, by purse, each with the birth that it is allowed for."""
        self._purse: Any = None
        """The purse of the last run."""
        self._plain_until = _EVER

    def add(self, session: Session, run: AddRun) -> None:
        known = self._rights.get(run.ledger_id, NOTHING)
        if known.rights & APPEND and not self._waiting and self._counts(run.ledger_id, known):
            if self._access.plain is not None:
                self._remember(run.ledger_id, known, self._access.plain)
            self._add(session, run)
        else:
            self.item(session, run)

    def take(self, session: Session, chunk: bytes, offset: int, max_packet: int, v3: bool) -> int:
        """Let plain adds pass of ledgers for which a run did before; see `ChunkHandler`."""
        plain, purse = self._access.plain, self._purse
        if plain is None or purse is None or self._waiting or self._version != self._access.version:
            return offset
        if self._plain_until != _EVER and self._access.now() >= self._plain_until:
            self._forget_plain()
            return offset
        return plain.take(session, chunk, offset, max_packet, v3, self._plain[purse], purse)

    def _remember(self, ledger_id: LedgerId, known: Right, plain: PlainAdds[Any]) -> None:
        """Note that the next adds of a ledger need no look, as long as its right counts."""
        purse = self._purse = plain.purse(ledger_id)
        if purse is not None:
            ledgers = self._plain.setdefault(purse, {})
            if ledgers.get(ledger_id) != known.birth:
                ledgers[ledger_id] = known.birth
            self._plain_until = min(self._plain_until, known.until)

    def _forget_plain(self) -> None:
        self._plain.clear()
        self._purse, self._plain_until = None, _EVER

    def item(self, session: Session, item: Item, looked: LedgerId | None = None) -> None:
        """Decide on anything but an allowed run. `looked`: the ledger that metadata was asked about just now."""
        if self._waiting:
            if self._open and is_urgent(item) and not self._is_named_behind(item):
                self._access.allowed(session, item)
            else:
                self._wait(item)
            return
        needed = _needed(item)
        if needed is None or (self._open and is_urgent(item)):
            self._access.allowed(session, item)
            return
        ledger_id, permission = needed
        rights = self._rights_of(ledger_id, permission, looked == ledger_id)
        if rights is None:
            self._wait(item)
            if not self._open:
                session.pause_reads()
            self._access.find_out(ledger_id, lambda code: self._go_on(ledger_id, code), is_open=self._open)
        elif rights & permission:
            self._access.allowed(session, item if session.principal.admin else _without_places(item))
        else:
            self._refuse(item, Code.UNAUTHORIZED)

    def _counts(self, ledger_id: LedgerId, known: Right) -> bool:
        """Return whether known rights still hold: the grants and the ledger that the connection means are unchanged."""
        return (
            self._version == self._access.version
            and self._session.named.get(ledger_id, b"") == known.birth
            and (known.until == _EVER or self._access.now() < known.until)
        )

    def _is_named_behind(self, item: Item) -> bool:
        """Return whether a packet that still waits names the birth of this item's ledger."""
        needed = _needed(item)
        return any(isinstance(one, Named) and needed and one.ledger_id == needed[0] for one, _ in self._waiting)

    def _rights_of(self, ledger_id: LedgerId, needed: int, looked: bool) -> int | None:
        if self._version != self._access.version:
            self._version = self._access.version
            self._rights.clear()
            self._forget_plain()
        known = self._rights.get(ledger_id, NOTHING)
        if known.rights & needed and self._counts(ledger_id, known):
            return known.rights
        named = self._session.named.get(ledger_id, b"")
        if self._meant.get(ledger_id) == named:
            named = b""  # by this gate, and not by the client
        found = self._access.right(self._session, ledger_id, named, needed, looked=looked)
        if found is None:
            return None
        if found.birth and not named:
            self._mean(ledger_id, found.birth)
        if len(self._rights) >= _MOST_LEDGERS:
            self._rights.clear()
            self._forget_plain()
        self._rights[ledger_id] = found
        return found.rights

    def _mean(self, ledger_id: LedgerId, birth: bytes) -> None:
        """Have the connection mean the ledger that was judged, and no other that has its id."""
        if self._session.named.get(ledger_id) != birth:
            self._session.births.name(ledger_id, birth)
        self._meant[ledger_id] = birth
        if len(self._meant) > MAX_NAMED:
            del self._meant[next(iter(self._meant))]

    def _wait(self, item: Item) -> None:
        size = item.end - item.start if isinstance(item, AddRun) else 256
        self._held += size
        self._session.requests_held += size
        self._waiting.append((item, self._access.now()))

    def _go_on(self, ledger_id: LedgerId, code: Code) -> None:
        """Decide the waiting requests in their order after a look at metadata, until one has to wait for another
        look."""
        waiting, self._waiting = self._waiting, []
        self._session.release(self._held)
        self._held = 0
        if self._is_over():
            return
        if not self._open:
            self._session.resume_reads()
        for arrived, since in waiting:
            item = _after(arrived, self._access.now() - since)
            needed = _needed(item)
            if code is not Code.OK and needed is not None and needed[0] == ledger_id and not self._waiting:
                self._refuse(item, code)
            else:
                self.item(self._session, item, ledger_id)
            if self._is_over():
                return
        self._session.recount()

    def _refuse(self, item: Item, code: Code) -> None:
        session, on_refused = self._session, self._access.on_refused
        needed = _needed(item)
        if on_refused is not None and needed is not None and code is Code.UNAUTHORIZED:
            on_refused(
                session, action_of(item), needed[0], f"{session.principal} has no permission for that on the ledger"
            )
        if isinstance(item, AddRun):
            session.answer_run(item, code)
        elif isinstance(item, Incoming):
            session.send(encode_error(item.context, code))

    def _is_over(self) -> bool:
        return self._session.ended


def _needed(item: Item) -> tuple[LedgerId, int] | None:
    """Return the ledger and the permission that an item needs; None if it is about no ledger."""
    if isinstance(item, AddRun):
        return item.ledger_id, _BITS[OP_ADD]
    if not isinstance(item, Incoming) or (needed := _BITS[item.context.operation]) == 0:
        return None
    request = item.request
    assert not isinstance(request, Auth | StartTls | GetBookieInfo)
    fences = isinstance(request, Read | BatchRead) and request.fence
    return request.ledger_id, _FENCING if fences else needed


def ledger_of(item: Item) -> LedgerId | None:
    """Return the ledger that an item is about; None if it is about none."""
    needed = _needed(item)
    return None if needed is None else needed[0]


def action_of(item: Item) -> str:
    """Return the name of a request about entries in the audit trail: "fence", "append" or "read"."""
    needed = _needed(item)
    if isinstance(item, Incoming) and isinstance(item.request, Read | BatchRead) and item.request.fence:
        return "fence"
    return "append" if needed is not None and needed[1] & APPEND else "read"


def is_urgent(item: Item) -> bool:
    """Return whether an item is a fence, a recovery or of high priority: nothing may hold it up."""
    if isinstance(item, AddRun):
        return bool(item.flags & (RECOVERY_ADD | HIGH_PRIORITY))
    request = item.request if isinstance(item, Incoming) else None
    if isinstance(request, Pull):
        return True
    return isinstance(request, Read | BatchRead) and (request.fence or request.high_priority)


def _after(item: Item, waited_s: float) -> Item:
    """Return an item as it is to be served after it has waited here: a long poll ends by its own timeout (L8)."""
    request = item.request if isinstance(item, Incoming) else None
    if not isinstance(item, Incoming) or not isinstance(request, Read) or not request.timeout_ms:
        return item
    return item._replace(request=request._replace(timeout_ms=max(0, request.timeout_ms - round(waited_s * 1000))))


def _without_places(item: Item) -> Item:
    """Return the item without the wish for the entries' places in files: only administrators may read these files."""
    if isinstance(item, Incoming) and isinstance(item.request, BatchRead) and item.request.located:
        return item._replace(request=replace(item.request, located=False))
    return item
