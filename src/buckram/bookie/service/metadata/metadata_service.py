"""Serves the metadata store to clients that do not open it themselves: sessions, watches, and who may do what.

All connections share one store; a connection that makes a session key gets a store of its own, because such a key
belongs to one client and ends with it. Every operation passes `KeyAccess` first. On stores that can answer at once
(`metadata/tree/key_grammar.py:PromptKeys`), requests that need no look at anything before they are allowed take no
task: those of one turn of the loop are one look at the store, and one commit (`KeyTurn`).

Not here: all other requests (`bookie/service/metadata/key_session.py`), the packets (`metadata/service/packets.py`),
the clients (`metadata/service`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from buckram.bookie.service.connections.session import REQUEST_COST, Session
from buckram.bookie.service.metadata.key_session import Creations, KeySession
from buckram.bookie.service.security.audit_events import AuditedChanges, AuditSink
from buckram.core.security.key_access import KeyAccess, OpenAccess
from buckram.core.wire.messages import BadPacket
from buckram.errors import (
    BuckramError,
    ClusterNotInitialised,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    StoreReplaced,
    WrongCluster,
)
from buckram.metadata.service.error_codec import encode_error
from buckram.metadata.service.packets import (
    KeyRequest,
    RequestKind,
    Welcome,
    decode_request,
    encode_refusal,
    encode_reply,
)
from buckram.metadata.tree.key_grammar import Absent, PromptKeys
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import Notify
from buckram.types import Create, KeyOp, KeyValue, SetValue

log = logging.getLogger("buckram.bookie")

MAX_IN_WORK = 2_000
"""Requests of one connection that are carried out at the same time."""

MAX_PLACES = 100_000
"""Keys that are watched through the shared store, by whomever."""

LEAST_S, MOST_S = 2.0, 60.0

_SWEEP_S = 1.0

OpenStore = Callable[[], Awaitable[TreeStore]]


class SharedStore:
    """The store that all connections use, and one watch for each key that any of them watches."""

    def __init__(self, store: TreeStore, creations: Creations | None = None, events: AuditSink | None = None) -> None:
        self.store, self.creations = store, creations
        self.noting = None if events is None else AuditedChanges(events, store)
        self._armed: dict[tuple[RequestKind, str], tuple[Notify, dict[KeySession, None]]] = {}

    @property
    def full(self) -> bool:
        return len(self._armed) >= MAX_PLACES

    def watch(self, place: tuple[RequestKind, str], session: KeySession) -> Notify:
        """Watch a place for a session; return the callback to hand to the store, always the same for a place."""
        armed = self._armed.get(place)
        if armed is None:
            armed = self._armed[place] = (lambda: self._fire(place), {})
        armed[1][session] = None
        return armed[0]

    def _fire(self, place: tuple[RequestKind, str]) -> None:
        armed = self._armed.pop(place, None)
        for session in armed[1] if armed is not None else ():
            session.changed(place)

    def forget(self, session: KeySession) -> None:
        """Forget a session that ended. The store's watches stay until the keys change: they are few, one for each
        key."""
        for place in session.places:
            armed = self._armed.get(place)
            if armed is not None:
                armed[1].pop(session, None)


class MetadataService:
    """`open_store` opens one more session with the bookie's metadata store."""

    def __init__(self, open_store: OpenStore, max_frame_bytes: int, access: KeyAccess | None = None) -> None:
        self._open_store = open_store
        self._access: KeyAccess = access or OpenAccess()
        self._room = max_frame_bytes - 64
        self._scope = TaskScope("metadata service")
        self._sessions: dict[Session, KeySession] = {}
        self._shared: SharedStore | None = None
        self.creations: Creations | None = None
        """Holds what clients create to quotas; set before anybody connects."""
        self.events: AuditSink | None = None
        """Takes events for the audit trail; the same."""
        self._opening = asyncio.Lock()
        self._turn = KeyTurn(self._room, self._take, self._failed)
        self._sweep: asyncio.TimerHandle | None = None
        self._swept = 0.0

    def received(self, session: Session, packet: bytes) -> None:
        """Carry out a request; a connection that sends something else is closed."""
        try:
            request_id, request = decode_request(packet)
        except BadPacket as error:
            session.refuse(str(error))
            return
        keys = self._sessions.get(session)
        if keys is not None:
            keys.heard = asyncio.get_running_loop().time()
        if request.kind is RequestKind.PING:
            session.send(encode_reply(request_id, None))
            return
        if keys is None and request.kind is not RequestKind.HELLO:
            session.refuse("a metadata request before HELLO")
            return
        if keys is not None and keys.in_work < MAX_IN_WORK and self._turn.add(session, keys, request_id, request):
            return
        self._turn.end()  # what was asked before this
        self._take(session, keys, request_id, request)

    def _take(self, session: Session, keys: KeySession | None, request_id: int, request: KeyRequest) -> None:
        """Carry a request out in a task of its own, or say that there are too many."""
        if keys is not None and keys.in_work >= MAX_IN_WORK:
            busy = MetadataUnavailable(
                f"{MAX_IN_WORK} requests of this connection are in progress, the limit; try again later"
            )
            session.send(encode_refusal(request_id, *encode_error(busy)))
            return
        if self._scope.closed:
            return
        cost = cost_of(request)
        session.requests_held += cost
        if keys is not None:
            keys.in_work += 1
        self._scope.spawn(self._answer(session, keys, request_id, request, cost), "request")

    def _failed(self, session: Session, request_id: int, error: BaseException) -> None:
        session.send(encode_refusal(request_id, *encode_error(_said(error))))
        if isinstance(error, StoreReplaced) and not self._scope.closed:
            self._scope.spawn(self._reset(str(error)), "begin anew")

    async def _answer(
        self, session: Session, keys: KeySession | None, request_id: int, request: KeyRequest, cost: int
    ) -> None:
        try:
            reply = await (self._hello(session, request) if keys is None else keys.carry_out(request))
            frame = encode_reply(request_id, reply)
            if len(frame) > self._room + 64:
                raise MetadataError(f"an answer of {len(frame)} bytes is over this bookie's [net] max_frame_bytes")
        except BuckramError as error:
            frame = encode_refusal(request_id, *encode_error(error))
            if isinstance(error, StoreReplaced):
                await self._reset(str(error))
        except Exception as error:
            frame = encode_refusal(request_id, *encode_error(_said(error)))
        finally:
            session.release(cost)
            if keys is not None:
                keys.in_work -= 1
        session.send(frame)
        session.recount()

    async def _hello(self, session: Session, request: KeyRequest) -> Welcome:
        async with self._opening:
            if self._shared is not None and self._shared.full:
                await self._reset(f"{MAX_PLACES} keys are watched, the limit")
            if self._shared is None:
                self._shared = SharedStore(await self._open_store(), self.creations, self.events)
            shared = self._shared
        instance_id, manager = await self._known(shared.store)
        if request.key and request.key != instance_id:
            raise WrongCluster(
                f"this bookie belongs to cluster {instance_id}, not to {request.key}: ask its own bookies"
            )
        timeout_s = min(max(request.number / 1000, LEAST_S), MOST_S)
        if session.open and shared is self._shared:
            keys = KeySession(session, shared, self._open_store, self._access, self._room, timeout_s)
            self._sessions[session] = keys
            self._watch_over(keys)
        else:
            session.close()
        return Welcome(instance_id, shared.store.root, shared.store.own, manager, round(timeout_s * 1000))

    async def _known(self, store: TreeStore) -> tuple[str, str]:
        """Return the cluster's id and ledger manager; empty before it was set up."""
        with contextlib.suppress(ClusterNotInitialised):
            return await store.instance_id(), await store.ledgers.manager_name()
        return "", ""

    def _watch_over(self, keys: KeySession) -> None:
        loop = asyncio.get_running_loop()
        keys.heard = loop.time()
        if self._sweep is None:
            self._swept = loop.time()
            self._sweep = loop.call_later(_SWEEP_S, self._on_sweep)

    def _on_sweep(self) -> None:
        """End silent sessions. If this bookie was late itself it could hear none of them: that time does not count."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = max(0.0, now - self._swept - 2 * _SWEEP_S)
        self._swept = now
        for session, keys in list(self._sessions.items()):
            keys.heard += late
            if now - keys.heard > keys.timeout_s:
                session.abort(f"its metadata session was silent for {now - keys.heard:.1f} s")
        self._sweep = loop.call_later(_SWEEP_S, self._on_sweep) if self._sessions else None

    def ended(self, session: Session) -> None:
        """End the session of a connection that is gone."""
        keys = self._sessions.pop(session, None)
        if keys is not None and not self._scope.closed:
            self._scope.spawn(keys.close(), "end of a session")

    async def _reset(self, why: str) -> None:
        """End all sessions and leave the shared store: what comes next opens another one."""
        log.warning("the metadata service starts again after an error: %s", why)
        shared, self._shared = self._shared, None
        for session in list(self._sessions):
            session.close()
        if shared is not None:
            await shared.store.close()

    async def close(self) -> None:
        """End all sessions with their keys."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        await self._scope.close()
        sessions, self._sessions = self._sessions, {}
        for keys in sessions.values():
            await keys.close()
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.store.close()


def _said(error: BaseException) -> BuckramError:
    """Map an error to the client's reply; unexpected errors are logged, not sent."""
    if isinstance(error, BuckramError):
        return error
    log.error("a metadata request failed by a mistake in this program", exc_info=error)
    return MetadataError("the bookie failed over this request; its log says more")


# -- requests that need no task -------------------------------------------------------------------------------

OnFailed = Callable[[Session, int, BaseException], None]
"""Tells a client what became of its request."""


class Asked(NamedTuple):
    """A request that needs no task, and the store that carries it out."""

    session: Session
    keys: KeySession
    prompt: PromptKeys
    request_id: int
    request: KeyRequest


class KeyTurn:
    """`take` carries out, in the ordinary way, a read that turned out to need that."""

    def __init__(
        self, room: int, take: Callable[[Session, KeySession, int, KeyRequest], None], on_failed: OnFailed
    ) -> None:
        self._room, self._take, self._on_failed = room, take, on_failed
        self._reads: list[Asked] = []
        self._changes: list[Asked] = []

    def add(self, session: Session, keys: KeySession, request_id: int, request: KeyRequest) -> bool:
        """Return whether the request is carried out here, at the end of this turn."""
        if request.kind is RequestKind.GET:
            prompt, where = keys.prompt_for(request), self._reads
        elif request.kind is RequestKind.CHANGE:
            prompt, where = keys.prompt_for_change(request.ops), self._changes
        else:
            return False
        if prompt is None:
            return False
        if not (self._reads or self._changes):
            asyncio.get_running_loop().call_soon(self.end)
        where.append(Asked(session, keys, prompt, request_id, request))
        if where is self._changes:
            keys.in_work += 1
            session.requests_held += cost_of(request)
        return True

    def end(self) -> None:
        """Carry out what was asked: reads, and then changes, which no read waited for."""
        reads, self._reads = self._reads, []
        changes, self._changes = self._changes, []
        while reads:
            prompt = reads[0].prompt
            self._read(prompt, [one for one in reads if one.prompt is prompt])
            reads = [one for one in reads if one.prompt is not prompt]
        for one in changes:
            self._begin(one)

    def _read(self, prompt: PromptKeys, reads: list[Asked]) -> None:
        answers: dict[Session, list[bytes]] = {}
        for one, found in zip(reads, prompt.peek([one.request.key for one in reads]), strict=True):
            if one.session.ended:
                continue
            if (frame := self._frame(one, found)) is not None:
                answers.setdefault(one.session, []).append(frame)
            else:
                self._take(one.session, one.keys, one.request_id, one.request)
        for session, frames in answers.items():
            session.send_now(b"".join(frames))
            session.recount()

    def _frame(self, one: Asked, found: KeyValue | Absent | None) -> bytes | None:
        """Return the answer to a read; None if the ordinary way has to find it."""
        key = one.request.key
        if isinstance(found, Absent):
            if not one.keys.may_hear(key):
                return None
            return encode_refusal(one.request_id, *encode_error(NoSuchKey(key)))
        if found is None or len(found.value) >= self._room or not one.keys.may_see(key, found):
            return None
        return encode_reply(one.request_id, found)

    def _begin(self, one: Asked) -> None:
        try:
            begun = one.prompt.begin(one.request.ops)
        except BuckramError as error:
            self._ended(one, error)
            return
        begun.add_done_callback(lambda done: self._changed(one, done))

    def _changed(self, one: Asked, done: asyncio.Future[list[int]]) -> None:
        if done.cancelled():
            self._ended(one, MetadataUnavailable("the bookie is stopping"))
            return
        error = done.exception()
        if error is None:
            one.keys.changed_at_once(one.request.ops)
            alone = len(one.request.ops) == 1 and isinstance(one.request.ops[0], Create | SetValue)
            one.session.send(encode_reply(one.request_id, done.result()[0] if alone else None))
        self._ended(one, error)

    def _ended(self, one: Asked, error: BaseException | None) -> None:
        one.keys.in_work -= 1
        one.session.release(cost_of(one.request))
        if error is not None:
            self._on_failed(one.session, one.request_id, error)
        one.session.recount()


def cost_of(request: KeyRequest) -> int:
    """Bytes that a request is charged for while it is in work."""
    return REQUEST_COST + len(request.key) + len(request.value) + sum(map(_size, request.ops))


def _size(op: KeyOp) -> int:
    return len(op.key) + (len(op.value) if isinstance(op, Create | SetValue) else 0)
