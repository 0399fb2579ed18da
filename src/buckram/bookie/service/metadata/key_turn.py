"""Requests about keys that need no task: those of one turn of the loop are one look at the store, and one commit.

Only for stores that can do that (`metadata/tree/key_grammar.py:PromptKeys`), and for requests that need no look at
anything before they are allowed. Everything else is `KeySession.carry_out`, in a task of its own
(`bookie/service/metadata/metadata_service.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from buckram.bookie.service.connections.session import REQUEST_COST, Session
from buckram.bookie.service.metadata.key_session import KeySession
from buckram.errors import BuckramError, MetadataUnavailable
from buckram.metadata.service.packets import KeyRequest, RequestKind, encode_reply
from buckram.metadata.tree.key_grammar import PromptKeys
from buckram.types import Create, KeyOp, SetValue

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
            if found is not None and len(found.value) < self._room and one.keys.may_see(one.request.key, found):
                answers.setdefault(one.session, []).append(encode_reply(one.request_id, found))
            else:
                self._take(one.session, one.keys, one.request_id, one.request)
        for session, frames in answers.items():
            session.send_now(b"".join(frames))
            session.recount()

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
