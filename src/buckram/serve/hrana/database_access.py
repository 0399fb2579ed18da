"""Authorization for the databases of a server: tokens of the cluster, and grants on namespaces or single databases.

Not here: authentication of a request (`serve/http/tokens.py`), requests that pages in browsers send
(`serve/http/origins.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.requests import Request

from buckram.core.security.acl import PERMISSIONS
from buckram.core.security.principal import Principal
from buckram.core.security.required_permissions import Effect, lacking
from buckram.serve.http.application import anybody
from buckram.serve.http.problems import HttpProblem
from buckram.serve.http.tokens import ClusterTokens, Vouch, while_granted

Granted = Callable[[str], frozenset[str]]
"""The permissions on a database, by its full name, at the moment of each call."""


class DatabaseAccess(Protocol):
    """Authenticates clients, and gives their permissions."""

    @property
    def vouch(self) -> Vouch | None:
        """The function that makes the Authorization header of a forwarded request; None on servers without tokens."""
        ...

    async def authenticate(self, request: Request) -> Principal:
        """Return the sender of a request. Raises HttpProblem 401 for an unknown one."""
        ...

    def allowed(self, principal: Principal) -> Granted:
        """Return the function that gives a principal's permissions on a database."""
        ...

    def watched(self, request: Request) -> Callable[[], str]:
        """Return a function: why the request's token, which was valid, no longer is; empty while it is."""
        ...


class Everybody:
    """Access without tokens: every client may do everything."""

    vouch: Vouch | None = None
    """None: no forwarded request names its principal (DatabaseAccess)."""

    async def authenticate(self, request: Request) -> Principal:
        """Authenticate anybody (DatabaseAccess)."""
        return await anybody(request)

    def allowed(self, principal: Principal) -> Granted:
        """Grant all permissions (DatabaseAccess)."""
        return lambda database: frozenset(PERMISSIONS)

    def watched(self, request: Request) -> Callable[[], str]:
        """Return a function that always returns "", as there is no token that could expire (DatabaseAccess)."""
        return lambda: ""


class TokenAccess(ClusterTokens):
    """Access by tokens and grants: `read` on a database allows reading, `append` as well allows changes."""

    def allowed(self, principal: Principal) -> Granted:
        """Return the function that looks up a principal's grants (DatabaseAccess)."""
        return lambda database: self.acl.allowed(principal, database)

    def watched(self, request: Request) -> Callable[[], str]:
        """Return a function: why the request's token is no longer valid; empty while it is (DatabaseAccess)."""
        return self.watched_token(request)


def may_change(access: DatabaseAccess, principal: Principal, database: str) -> bool:
    """Return whether a principal may change a database, and not only read it. Raises HttpProblem 403 without `read`."""
    permissions = access.allowed(principal)(database)
    if lacks := lacking(Effect.READ, permissions):
        raise lacks_permission(principal, lacks, database)
    return not lacking(Effect.WRITE, permissions)


def lacks_permission(principal: Principal, lacks: Sequence[str], database: str) -> HttpProblem:
    """Return the error for a principal who may see a database, but lacks permissions on it."""
    permissions = ", ".join(lacks)
    why = f"{principal} has no permission `{permissions}` on database {database} (`buckram acl grant` grants it)"
    return HttpProblem(403, "FORBIDDEN", why, value=database)


def watch(
    access: DatabaseAccess, request: Request, principal: Principal, permission: str, database: str
) -> Callable[[], str]:
    """Return a function for long work: why it has to end, because of the token or the grants; empty while it may go
    on.
    """
    return while_granted(principal, access.allowed(principal), permission, database, access.watched(request))
