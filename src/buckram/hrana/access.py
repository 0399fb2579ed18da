"""Who may use the databases of a server: tokens of the cluster, and grants on namespaces or single databases.

Not here: requests that pages in browsers send (`http/origins.py`).
"""

from __future__ import annotations

from starlette.requests import Request

from buckram.core.security.principal import Principal
from buckram.core.security.tokens import TokenRefused, need_extra
from buckram.errors import AccessRefused, ConfigError
from buckram.http.problems import HttpProblem
from buckram.metadata.security_follow import FollowedSecurity
from buckram.seams import Clock, MetadataStore

_BEARER = "bearer"


class TokenAccess:
    """Bearer tokens (`buckram token create`) and grants (`buckram acl grant`). `async with`, before the server's.

    Whoever has `read` on a database reads it, and with `append` as well changes it. ConfigError for a store that is
    not opened directly: only who opens it sees keys and grants.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        need_extra("--tokens")
        self._uri = store.uri
        self._security = FollowedSecurity(store, clock)

    async def __aenter__(self) -> TokenAccess:
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
        scheme, _, token = request.headers.get("authorization", "").strip().partition(" ")
        if scheme.lower() != _BEARER or not token.strip():
            raise _unknown("send a token of this cluster: `Authorization: Bearer TOKEN`")
        try:
            return self._security.verify(token.strip()).principal
        except TokenRefused as error:
            raise _unknown(f"the token does not count: {error}") from None

    async def authorize(self, principal: Principal, database: str) -> bool:
        """As Authorize of the server."""
        allowed = self._security.state.acl.allowed(principal, database)
        if "read" not in allowed:
            raise HttpProblem(
                403,
                "FORBIDDEN",
                f"{principal} has no permission `read` on database {database} (`buckram acl grant` gives it)",
                value=database,
            )
        return "append" in allowed


def _unknown(why: str) -> HttpProblem:
    return HttpProblem(401, "UNAUTHORIZED", why, headers={"WWW-Authenticate": "Bearer"})


__all__ = ["TokenAccess"]
