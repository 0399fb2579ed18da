"""Keys, revocations and grants, followed in the metadata store: what verifies tokens, and says what was granted.

While the store cannot be read, what was known goes on to count. Not here: the keys themselves
(`metadata/security.py`), who is connected (`bookie/service/guard.py`, `http/tokens.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from buckram.core.security.tokens import Token, verify
from buckram.errors import MetadataError
from buckram.metadata.security import SecurityState, SecurityStore
from buckram.net.tasks import TaskScope
from buckram.seams import Clock, MetadataStore

_log = logging.getLogger("buckram.security")
READ_S = 2.0
"""How long until it is read again, whether a watch fired or not."""


class FollowedSecurity:
    """`start` and `close`. `tokens`: make a signing key where there is none."""

    def __init__(self, store: MetadataStore, clock: Clock, *, tokens: bool = True) -> None:
        self._store, self._clock, self._tokens = store, clock, tokens
        self._security = SecurityStore(store)
        self._cluster = ""
        self._scope = TaskScope("security")
        self._changed = asyncio.Event()
        self.state = SecurityState()
        self.version = 0
        """Another one whenever grants changed."""

    async def start(self) -> None:
        """Read once, so that nobody is judged by nothing, and follow from then on. MetadataError."""
        self._cluster = await self._store.instance_id()
        if self._tokens:
            await self._security.prepare()
        self.state = await self._security.state(self._changed.set)
        self._scope.spawn(self._follow(), "follow")

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
                _log.warning("keys, revocations and grants stay as they were: %s", error)
                await asyncio.sleep(READ_S)

    def now_s(self) -> float:
        return self._clock.wall_us() / 1e6

    def verify(self, text: str | bytes) -> Token:
        """Raises TokenRefused."""
        return verify(text, self.state.keys, self._cluster, self.now_s(), self.state.revoked)

    def why_over(self, token: Token) -> str:
        """Return why a token that was verified counts no longer; "" if it does."""
        why = self.state.revoked.why(token)
        return why or ("its token has expired" if self.now_s() >= token.expires_s else "")
