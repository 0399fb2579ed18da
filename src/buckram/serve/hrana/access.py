"""Who may use the databases of a server: tokens of the cluster, and grants on namespaces or single databases.

Not here: who sends a request (`serve/http/tokens.py`), requests that pages in browsers send (`serve/http/origins.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.requests import Request

from buckram.core.security.acl import PERMISSIONS
from buckram.core.security.effects import Effect, lacking
from buckram.core.security.principal import Principal
from buckram.serve.http.application import anybody
from buckram.serve.http.problems import HttpProblem
from buckram.serve.http.tokens import ClusterTokens, Vouch, while_granted

Granted = Callable[[str], frozenset[str]]
"""The permissions on a database, by its full name, at the moment of each call."""


class DatabaseAccess(Protocol):
    """Finds out who asks, and what they may do."""

    @property
    def vouch(self) -> Vouch | None:
        """What tells another server who asks, in a request that is sent on; None where nobody has to say it."""
        ...

    async def authenticate(self, request: Request) -> Principal:
        """Return who sends a request. Raises HttpProblem 401 for nobody who is known."""
        ...

    def allowed(self, principal: Principal) -> Granted:
        """Return what gives the permissions of a principal."""
        ...

    def watched(self, request: Request) -> Callable[[], str]:
        """Return what says why the token of a request, which counted, counts no longer; empty while it does."""
        ...


class Everybody:
    """Whoever can connect may do everything."""

    vouch: Vouch | None = None
    """As DatabaseAccess."""

    async def authenticate(self, request: Request) -> Principal:
        """As DatabaseAccess."""
        return await anybody(request)

    def allowed(self, principal: Principal) -> Granted:
        """As DatabaseAccess."""
        return lambda database: frozenset(PERMISSIONS)

    def watched(self, request: Request) -> Callable[[], str]:
        """As DatabaseAccess."""
        return lambda: ""


class TokenAccess(ClusterTokens):
    """Whoever has `read` on a database reads it, and with `append` as well changes it."""

    def allowed(self, principal: Principal) -> Granted:
        """As DatabaseAccess."""
        return lambda database: self.acl.allowed(principal, database)

    def watched(self, request: Request) -> Callable[[], str]:
        """As DatabaseAccess."""
        return self.watched_token(request)


def may_change(access: DatabaseAccess, principal: Principal, database: str) -> bool:
    """Return whether a principal may change a database, and not only read it. Raises HttpProblem 403 without `read`."""
    permissions = access.allowed(principal)(database)
    if lacks := lacking(Effect.READ, permissions):
        raise lacks_permission(principal, lacks, database)
    return not lacking(Effect.WRITE, permissions)


def lacks_permission(principal: Principal, lacks: Sequence[str], database: str) -> HttpProblem:
    """The answer to whoever lacks permissions on a database that he may see."""
    permissions = ", ".join(lacks)
    why = f"{principal} has no permission `{permissions}` on database {database} (`buckram acl grant` gives it)"
    return HttpProblem(403, "FORBIDDEN", why, value=database)


def watch(
    access: DatabaseAccess, request: Request, principal: Principal, permission: str, database: str
) -> Callable[[], str]:
    """For what takes long: says why it has to end; empty while its request may do so."""
    return while_granted(principal, access.allowed(principal), permission, database, access.watched(request))


__all__ = ["DatabaseAccess", "Everybody", "TokenAccess", "lacks_permission", "may_change", "watch"]
