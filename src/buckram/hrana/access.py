"""Who may use the databases of a server: tokens of the cluster, and grants on namespaces or single databases.

Not here: who sends a request (`http/tokens.py`), requests that pages in browsers send (`http/origins.py`).
"""

from __future__ import annotations

from buckram.core.security.principal import Principal
from buckram.http.problems import HttpProblem
from buckram.http.tokens import ClusterTokens


class TokenAccess(ClusterTokens):
    """Whoever has `read` on a database reads it, and with `append` as well changes it."""

    async def authorize(self, principal: Principal, database: str) -> bool:
        """As Authorize of the server."""
        allowed = self.acl.allowed(principal, database)
        if "read" not in allowed:
            raise HttpProblem(
                403,
                "FORBIDDEN",
                f"{principal} has no permission `read` on database {database} (`buckram acl grant` gives it)",
                value=database,
            )
        return "append" in allowed


__all__ = ["TokenAccess"]
