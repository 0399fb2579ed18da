"""Who sends a request: bearer tokens of the cluster, and what was granted to whom.

Not here: what a request needs (`hrana/access.py`, `gateway/access.py`), pages in browsers (`http/origins.py`).
"""

from __future__ import annotations

from typing import Self

from starlette.requests import Request

from buckram.core.security.acl import Acl
from buckram.core.security.principal import Principal
from buckram.core.security.tokens import Token, TokenRefused, need_extra
from buckram.errors import AccessRefused, ConfigError
from buckram.http.problems import HttpProblem
from buckram.metadata.security_follow import FollowedSecurity
from buckram.seams import Clock, MetadataStore

_BEARER = "bearer"


class ClusterTokens:
    """Bearer tokens (`buckram token create`) and grants (`buckram acl grant`). `async with`, before the server's.

    ConfigError for a store that is not opened directly: only who opens it sees keys and grants.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        need_extra("--tokens")
        self._uri = store.uri
        self._security = FollowedSecurity(store, clock)

    async def __aenter__(self) -> Self:
        try:
            await self._security.start()
        except AccessRefused:
            raise ConfigError(
                f"--tokens needs the metadata store itself, and {self._uri} is served by bookies: give a sqlite://, "
                "zk:// or etcd:// URI"
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._security.close()

    async def authenticate(self, request: Request) -> Principal:
        """As Authenticate of the server."""
        return self.verified(bearer_of(request)).principal

    def verified(self, token: str) -> Token:
        """What a token says, if it counts. Raises HttpProblem 401."""
        try:
            return self._security.verify(token)
        except TokenRefused as error:
            raise _unknown(f"the token does not count: {error}") from None

    def why_over(self, token: Token) -> str:
        """Return why a token that was verified counts no longer; empty if it does."""
        return self._security.why_over(token)

    @property
    def acl(self) -> Acl:
        """The grants of this moment."""
        return self._security.state.acl


def bearer_of(request: Request) -> str:
    """The token of a request. Raises HttpProblem 401 for one without."""
    scheme, _, token = request.headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() != _BEARER or not token.strip():
        raise _unknown("send a token of this cluster: `Authorization: Bearer TOKEN`")
    return token.strip()


def _unknown(why: str) -> HttpProblem:
    return HttpProblem(401, "UNAUTHORIZED", why, headers={"WWW-Authenticate": "Bearer"})


__all__ = ["ClusterTokens", "bearer_of"]
