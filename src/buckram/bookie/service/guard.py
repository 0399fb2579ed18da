"""What a bookie knows of security: keys, revocations and grants, followed in the metadata store, and who is connected.

When a token expires or is revoked its connections end within seconds. While the store cannot be read, what was known
goes on to count. Not here: connections before they are known (`bookie/service/door.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from buckram.bookie.service.access import APPEND, READ, bits
from buckram.bookie.service.session import Session
from buckram.core.security.access import KeyRules
from buckram.core.security.namespaces import Known, NamespaceRules, Places
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import Token, verify
from buckram.errors import MetadataError
from buckram.metadata.security import SecurityState, SecurityStore
from buckram.net.tasks import TaskScope
from buckram.seams import Clock, MetadataStore

log = logging.getLogger("buckram.bookie")
READ_S = 2.0
"""How long until it is read again, whether a watch fired or not."""
SWEEP_S = 1.0


@dataclass(slots=True)
class _Connected:
    principal: Principal
    token: Token | None


class Guard:
    """`authorises`: whether grants count; without that every known peer may do everything."""

    def __init__(self, store: MetadataStore, clock: Clock, *, authorises: bool, tokens: bool = True) -> None:
        self._tokens = tokens
        self._store, self._clock, self.authorises = store, clock, authorises
        self.version = 0
        """Another one whenever grants changed."""
        self._security = SecurityStore(store)
        layout = getattr(store, "layout", None)
        self._places = Places(
            store.root, store.own, lambda key: layout is not None and layout.ledger_of(key) is not None
        )
        self._known = Known()
        self._cluster = ""
        self.state = SecurityState()
        self._connected: dict[Session, _Connected] = {}
        self._scope = TaskScope("security")
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Read once, so that nobody is judged by nothing, and follow from then on. MetadataError."""
        self._cluster = await self._store.instance_id()
        if self._tokens:
            await self._security.prepare()
        self.state = await self._security.state(self._changed.set)
        self._scope.spawn(self._follow(), "follow")
        self._scope.spawn(self._sweep(), "sweep")

    async def close(self) -> None:
        await self._scope.close()

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                state = await self._security.state(self._changed.set)
                self.version += state.acl != self.state.acl
                self.state = state
            except MetadataError as error:
                log.warning("keys, revocations and grants stay as they were: %s", error)
                await asyncio.sleep(READ_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = self._now_s()
            for session, one in list(self._connected.items()):
                if session.ended:
                    del self._connected[session]
                elif one.token is not None:
                    why = self.state.revoked.why(one.token)
                    why = why or ("its token has expired" if now_s >= one.token.expires_s else "")
                    if why:
                        session.abort(f"{one.principal}: {why}")

    def _now_s(self) -> float:
        return self._clock.wall_us() / 1e6

    def verify(self, text: bytes) -> Token:
        """Raises TokenRefused."""
        return verify(text, self.state.keys, self._cluster, self._now_s(), self.state.revoked)

    def entered(self, session: Session, principal: Principal, token: Token | None) -> None:
        """A peer is known from now on."""
        session.principal = principal
        self._connected[session] = _Connected(principal, token)

    def rules(self, principal: Principal) -> KeyRules | None:
        """As KeyAccess."""
        if not self.authorises or principal.admin:
            return None
        return NamespaceRules(self._places, lambda: self.state.acl, principal, self._known)

    def rights(self, session: Session, namespace: str) -> int:
        """READ and APPEND of a connection on the ledgers of a namespace."""
        if not self.authorises or session.principal.admin:
            return READ | APPEND
        return bits(self.state.acl.allowed(session.principal, namespace))
