"""Grants: which principal or role may do what with which namespaces. Nothing is allowed that was not granted.

Pure. Not here: where they are kept (`metadata/security.py`), what an operation needs (`core/security/namespaces.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from buckram.core.security.principal import Principal

PERMISSIONS = ("read", "append", "create", "delete", "admin")
"""`admin` of a namespace: all of these, and its policy."""
ROLE = "role:"
SERVERS = "system"
"""The namespace of what servers write, such as the audit trail."""


@dataclass(frozen=True, slots=True)
class Grant:
    """`who` is a principal's name or `role:NAME`; `namespaces` a name or a pattern such as `shop-*`, or the full name
    of a database, `shop/main`, or a pattern of such names."""

    who: str
    namespaces: str
    permissions: frozenset[str]

    def names(self, principal: Principal) -> bool:
        by_role = self.who.startswith(ROLE) and self.who.removeprefix(ROLE) in principal.roles
        return by_role or self.who == principal.name

    def concerns(self, principal: Principal, namespace: str) -> bool:
        return self.names(principal) and fnmatchcase(namespace, self.namespaces)


@dataclass(frozen=True, slots=True)
class Acl:
    """All grants of a cluster."""

    grants: tuple[Grant, ...] = ()

    def allowed(self, principal: Principal, namespace: str) -> frozenset[str]:
        """Return what the principal may do with a namespace."""
        if principal.admin:
            return frozenset(PERMISSIONS)
        if namespace == SERVERS:
            return self._of_servers(principal)
        found: set[str] = set()
        for grant in self.grants:
            if grant.concerns(principal, namespace):
                found |= grant.permissions
        return frozenset(PERMISSIONS) if "admin" in found else frozenset(found)

    def _of_servers(self, principal: Principal) -> frozenset[str]:
        """Only servers write there; reading has to be granted by name, not by a pattern."""
        named = [one.permissions for one in self.grants if one.names(principal) and one.namespaces == SERVERS]
        return frozenset({"read"}) if any(found & {"read", "admin"} for found in named) else frozenset()

    def allowed_on(self, principal: Principal, name: str) -> frozenset[str]:
        """The same for a database, NAMESPACE/NAME: by grants on its namespace, and by those on its full name."""
        return self.allowed(principal, name.partition("/")[0]) | self.allowed(principal, name)

    def concern(self, principal: Principal) -> bool:
        """Whether the principal was granted anything at all."""
        return principal.admin or any(grant.names(principal) for grant in self.grants)

    def granting(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """With these permissions more."""
        return self._changed(who, namespaces, lambda present: present | set(permissions))

    def revoking(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """Without these permissions; only those that were granted for the same words."""
        return self._changed(who, namespaces, lambda present: present - set(permissions))

    def _changed(self, who: str, namespaces: str, change: object) -> Acl:
        assert callable(change)
        rest = [one for one in self.grants if (one.who, one.namespaces) != (who, namespaces)]
        present = [one.permissions for one in self.grants if (one.who, one.namespaces) == (who, namespaces)]
        permissions = frozenset(change(present[0] if present else frozenset()))
        if permissions:
            rest.append(Grant(who, namespaces, permissions))
        return Acl(tuple(sorted(rest, key=lambda one: (one.who, one.namespaces))))

    def encode(self) -> bytes:
        rows = [
            {"who": one.who, "namespaces": one.namespaces, "permissions": sorted(one.permissions)}
            for one in self.grants
        ]
        return json.dumps({"version": 1, "grants": rows}).encode()

    @classmethod
    def parse(cls, value: bytes) -> Acl:
        """Raises ValueError for what `encode` did not make."""
        found = json.loads(value)
        try:
            if found["version"] != 1:
                raise ValueError(f"grants of version {found['version']}, this release knows 1")
            rows = found["grants"]
            return cls(
                tuple(Grant(str(one["who"]), str(one["namespaces"]), _known(one["permissions"])) for one in rows)
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no grants: {error!r}") from None


def _known(permissions: Iterable[str]) -> frozenset[str]:
    found = frozenset(permissions)
    if not found <= set(PERMISSIONS):
        raise ValueError(f"unknown permissions {sorted(found - set(PERMISSIONS))}")
    return found
