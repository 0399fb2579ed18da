"""Keys, revocations and grants, followed in the metadata store: verifies tokens, and knows what was granted.

Tokens of an issuer of OIDC, where there is one, are verified here as well. While the store cannot be read, what was
known stays valid. Not here: the keys themselves (`metadata/records/security.py`), who is connected
(`bookie/service/security/bookie_security.py`, `serve/http/tokens.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from buckram.core.cluster.believed_time import TellsTime
from buckram.core.security.oidc import Issuer
from buckram.core.security.tokens import Token, audience, sign, verify
from buckram.errors import MetadataError
from buckram.metadata.records.security import SecurityState, SecurityStore
from buckram.runtime.net.security.issuer_keys import IssuerKeys
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore

_log = logging.getLogger("buckram.security")
READ_S = 2.0
"""Seconds until it is read again, whether a watch fired or not."""


class FollowedSecurity:
    """`start` and `close`. `tokens`: make a signing key where there is none. While `time` is in doubt, a token has to
    count at all that it may be."""

    def __init__(
        self, store: MetadataStore, time: TellsTime, *, tokens: bool = True, issuer: Issuer | None = None
    ) -> None:
        self._store, self._time, self._tokens = store, time, tokens
        self._security = SecurityStore(store)
        self._cluster = ""
        self._signer: tuple[str, bytes] | None = None
        self._scope = TaskScope("security")
        self._issuer = None if issuer is None else IssuerKeys(issuer)
        self._changed = asyncio.Event()
        self.state = SecurityState()
        self.version = 0
        """Counter that changes whenever grants changed."""

    async def start(self) -> None:
        """Read once, so that no request is judged without knowledge, and follow from then on. Raises MetadataError."""
        self._cluster = await self._store.instance_id()
        await self._time.ensure()
        if self._tokens:
            await self._security.prepare()
        self.state = await self._security.state(self._changed.set)
        if self._issuer is not None:
            await self._issuer.start()
        self._scope.keep(self._follow, "follow")

    async def close(self) -> None:
        await self._scope.close()
        if self._issuer is not None:
            await self._issuer.close()

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_S):
                    await self._changed.wait()
            self._changed.clear()
            await self._time.ensure()
            try:
                state = await self._security.state(self._changed.set)
                self.version += state.acl != self.state.acl
                self.state = state
            except MetadataError as error:
                _log.warning("keys, revocations and grants stay as they were: %s", error)
                await asyncio.sleep(READ_S)

    def now_s(self) -> float:
        """Return the latest time that it may be now, which is what ends tokens."""
        return self._time.moment().high / 1e6

    def verify(self, text: str | bytes, purpose: str = "") -> Token:
        """Verify a token. `purpose`: the one that it has to be for; empty: it is an ordinary token, of the cluster or
        of the issuer.

        Raises TokenRefused.
        """
        if self._issuer is not None and not purpose and self._issuer.is_mine(text):
            now = self._time.moment()
            return self._issuer.verify(text, now.high / 1e6, self.state.revoked, now.low / 1e6)
        now, wanted = self._time.moment(), audience(self._cluster, purpose)
        return verify(text, self.state.keys, wanted, now.high / 1e6, self.state.revoked, earliest_s=now.low / 1e6)

    async def meet(self, text: str | bytes) -> None:
        """Fetch a key that the issuer published just now.

        To be awaited before `verify` where there is time.
        """
        if self._issuer is not None:
            await self._issuer.meet(text)

    async def pass_for(self, token: Token, purpose: str) -> str:
        """Sign a token that is valid for this purpose only. It is not recorded that it was made.

        The key is read once for all of them, and again when there is a newer one. Raises MetadataError, AccessRefused
        for a store that is not opened directly.
        """
        if self._signer is None or self._signer[0] != max(self.state.keys, default=""):
            self._signer = await self._security.signing_key()
        return sign(token, audience(self._cluster, purpose), *self._signer)

    def why_over(self, token: Token) -> str:
        """Return why a token that was verified is not valid any more; "" if it is."""
        why = self.state.revoked.why(token)
        return why or ("its token has expired" if self.now_s() >= token.expires_s else "")
