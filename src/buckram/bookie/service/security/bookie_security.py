"""The security state of a bookie: keys, revocations and grants, followed in the metadata store, and who is connected.

When a token expires, or a token or certificate is revoked, its connections end within seconds. While the store cannot
be read, what was known goes on to count. Not here: connections before they are known
(`bookie/service/security/connection_gate.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.security.entry_access import APPEND, READ, bits
from buckram.core.cluster.believed_time import TellsTime
from buckram.core.cluster.bookie_report import ExpiredToken
from buckram.core.security.key_access import KeyRules
from buckram.core.security.namespace_rules import ClusterKeys, Known, NamespaceRules, allowed_on_entries
from buckram.core.security.oidc import Issuer
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import Token, TokenExpired
from buckram.metadata.records.security import SecurityState
from buckram.metadata.records.security_watcher import FollowedSecurity
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore

SWEEP_S = 1.0
MOST_EXPIRED = 20
"""Maximum number of subjects with expired tokens that are remembered for operators."""


@dataclass(slots=True)
class _Connected:
    principal: Principal
    token: Token | None
    certificate: int | None


class BookieSecurity:
    """`authorises`: whether grants count; without that every known peer may do everything."""

    def __init__(
        self,
        store: MetadataStore,
        time: TellsTime,
        *,
        authorises: bool,
        tokens: bool = True,
        issuer: Issuer | None = None,
    ) -> None:
        self.authorises = authorises
        self._security = FollowedSecurity(store, time, tokens=tokens, issuer=issuer)
        self._places = ClusterKeys(store.root, store.own, lambda key: _is_ledger(store, key))
        self._known = Known()
        self._connected: dict[Session, _Connected] = {}
        self._expired: dict[str, int] = {}
        """By subject of an expired token: when one was shown last, or ended a connection; seconds since 1970."""
        self._scope = TaskScope("security")

    @property
    def state(self) -> SecurityState:
        return self._security.state

    @property
    def version(self) -> int:
        """Return a value that changes whenever grants change."""
        return self._security.version

    async def start(self) -> None:
        """Read keys, revocations and grants once before anything is judged, and follow them from then on. Raises
        MetadataError."""
        await self._security.start()
        self._scope.keep(self._sweep, "sweep")

    async def close(self) -> None:
        await self._scope.close()
        await self._security.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for session, one in list(self._connected.items()):
                if session.ended:
                    del self._connected[session]
                elif one.certificate is not None and (why := self.why_withdrawn(one.certificate)):
                    session.abort(f"{one.principal}: {why}")
                elif one.token is not None and (why := self._security.why_over(one.token)):
                    if self._security.now_s() >= one.token.expires_s:
                        self._note_expired(one.token.known_as)
                    session.abort(f"{one.principal}: {why}")

    def verify(self, text: bytes) -> Token:
        """Return what a token says. Raises TokenRefused."""
        try:
            return self._security.verify(text)
        except TokenExpired as error:
            self._note_expired(error.subject)
            raise

    def meet(self, text: bytes, then: Callable[[], None]) -> None:
        """Fetch keys of the issuer that a token may need, then call `then`: within seconds, also if that fails."""
        self._scope.spawn(self._meet(text, then), "a key of the issuer")

    async def _meet(self, text: bytes, then: Callable[[], None]) -> None:
        await self._security.meet(text)
        then()

    def _note_expired(self, subject: str) -> None:
        self._expired.pop(subject, None)  # the one that was seen last stands last
        self._expired[subject] = int(self._security.now_s())
        if len(self._expired) > MOST_EXPIRED:
            del self._expired[next(iter(self._expired))]

    def expired_tokens(self) -> tuple[ExpiredToken, ...]:
        """Return the subjects of tokens that were shown after they had expired, the newest last."""
        return tuple(ExpiredToken(subject, seen_s) for subject, seen_s in self._expired.items())

    def why_withdrawn(self, certificate: int) -> str:
        """Return why the certificate of this serial number does not count; "" if it does."""
        return self.state.revoked.why_certificate(certificate)

    def entered(
        self, session: Session, principal: Principal, token: Token | None, certificate: int | None = None
    ) -> None:
        """Register a connection whose peer is known now. `certificate`: serial number of the certificate it is known
        by."""
        session.principal = principal
        self._connected[session] = _Connected(principal, token, certificate)

    def rules(self, principal: Principal) -> KeyRules | None:
        """Return the principal's rules for keys, see KeyAccess; None if it may use all of them."""
        if not self.authorises or principal.admin:
            return None
        return NamespaceRules(self._places, lambda: self.state.acl, principal, self._known)

    def rights(self, session: Session, name: str) -> int:
        """Return READ and APPEND as a connection has them on the ledgers of a stream, or on those of a namespace
        without one."""
        if not self.authorises or session.principal.admin:
            return READ | APPEND
        return bits(allowed_on_entries(name, self.state.acl.allowed(session.principal, name)))

    def may_know(self, session: Session, namespace: str) -> bool:
        """Return whether a connection may be told about a namespace as a whole, such as its quotas."""
        return not self.authorises or bool(self.state.acl.within(session.principal, namespace))


def _is_ledger(store: MetadataStore, key: str) -> bool:
    """Return whether a key is a ledger's record. Where these are is known for certain from the first use of a cluster
    on."""
    layout = getattr(store, "layout", None)
    return layout is not None and layout.ledger_of(key) is not None
