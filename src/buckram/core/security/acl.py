"""Grants: which principal or role may do what with which namespaces, streams and objects. Nothing else is allowed.

Pure. Not here: where they are kept (`metadata/security.py`), what an operation needs (`core/security/namespaces.py`,
and for objects `gateway/object_pages.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from buckram.core.objects.rows import LOG
from buckram.core.security.object_names import OBJECTS, NameRange, check_range, disjoint, granted_range
from buckram.core.security.principal import Principal
from buckram.errors import InvalidArgument

PERMISSIONS = ("read", "append", "create", "delete", "admin")
"""`admin` of a namespace: all of these, and its policy."""
ROLE = "role:"
SERVERS = "system"
"""The namespace of what servers write, such as the audit trail."""


@dataclass(frozen=True, slots=True)
class Grant:
    """`who` is a principal's name or `role:NAME`; `namespaces` the name of a namespace or a pattern such as `shop-*`,
    for all that is in them; or the full name of a stream or database, `shop/orders`, or a pattern such as `shop/o*`; or
    objects, `shop/objects/logs/*`."""

    who: str
    namespaces: str
    permissions: frozenset[str]

    def names(self, principal: Principal) -> bool:
        by_role = self.who.startswith(ROLE) and self.who.removeprefix(ROLE) in principal.roles
        return by_role or self.who == principal.name

    def covers(self, name: str) -> bool:
        """Whether a namespace, a stream by its full name, or an object is one of those that the grant is for."""
        namespace, _, within = name.partition("/")
        first, deeper, rest = self.namespaces.partition("/")
        if not fnmatchcase(namespace, first):
            return False
        if not deeper:
            return True
        kind, is_object, name_of_object = within.partition("/")
        found = granted_range(rest)
        if found is not None:
            return bool(is_object) and kind == OBJECTS and found.has(name_of_object)
        # Whoever may use the log of their names may use all objects.
        stream = LOG if is_object and kind == OBJECTS else within
        return bool(stream) and "/" not in stream and fnmatchcase(stream, rest)

    def range_in(self, namespace: str) -> NameRange | None:
        """The names of objects of a namespace that the grant is for; None if it is for no objects alone."""
        first, _, rest = self.namespaces.partition("/")
        return granted_range(rest) if fnmatchcase(namespace, first) else None

    @property
    def for_objects(self) -> bool:
        """Whether it is for objects alone. Bookies know no names of objects, so it counts at gateways only."""
        return granted_range(self.namespaces.partition("/")[2]) is not None

    def concerns(self, principal: Principal, name: str) -> bool:
        return self.names(principal) and self.covers(name)


@dataclass(frozen=True, slots=True)
class Acl:
    """All grants of a cluster."""

    grants: tuple[Grant, ...] = ()

    def allowed(self, principal: Principal, name: str) -> frozenset[str]:
        """Return what the principal may do with a namespace, a stream by its full name, or an object, `shop/objects/a`:
        by grants on the namespace, and by those on the stream or object."""
        if principal.admin:
            return frozenset(PERMISSIONS)
        if name.partition("/")[0] == SERVERS:
            return self._of_servers(principal, (SERVERS, name))
        return _together(grant for grant in self.grants if grant.concerns(principal, name))

    def within(self, principal: Principal, namespace: str) -> frozenset[str]:
        """Return what the principal may do with a namespace or with at least some streams in it. This is enough to
        know that the namespace is there, its policy and its quotas."""
        if principal.admin:
            return frozenset(PERMISSIONS)
        own = [grant for grant in self.grants if grant.names(principal) and not grant.for_objects]
        if namespace == SERVERS:
            names = [one.namespaces for one in own if one.namespaces.partition("/")[0] == SERVERS]
            return self._of_servers(principal, names)
        spaces = (replace(grant, namespaces=grant.namespaces.partition("/")[0]) for grant in own)
        return _together(grant for grant in spaces if grant.covers(namespace))

    def objects(self, principal: Principal, namespace: str, permission: str) -> tuple[NameRange, ...]:
        """Return which objects of a namespace the principal has a permission on, in the order of their names."""
        if permission in self.allowed(principal, f"{namespace}/{LOG}"):
            return (NameRange(""),)
        own = [one for one in self.grants if one.names(principal) and permission in _together((one,))]
        ranges = [one.range_in(namespace) for one in own] if namespace != SERVERS else []
        return disjoint(one for one in ranges if one is not None)

    def sees(self, principal: Principal, namespace: str) -> bool:
        """Return whether the principal may do anything with a namespace or with something in it."""
        objects = (self.objects(principal, namespace, permission) for permission in PERMISSIONS)
        return bool(self.within(principal, namespace)) or any(objects)

    def _of_servers(self, principal: Principal, names: Collection[str]) -> frozenset[str]:
        """Only servers write there; reading has to be granted by one of these names, not by a pattern."""
        named = [one.permissions for one in self.grants if one.names(principal) and one.namespaces in names]
        return frozenset({"read"}) if any(found & {"read", "admin"} for found in named) else frozenset()

    def concern(self, principal: Principal) -> bool:
        """Whether the principal was granted anything that bookies check."""
        return principal.admin or any(grant.names(principal) and not grant.for_objects for grant in self.grants)

    def granting(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """With these permissions more."""
        return self._changed(who, namespaces, lambda present: present | set(permissions))

    def revoking(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """Without these permissions; only those that were granted for the same words."""
        return self._changed(who, namespaces, lambda present: present - set(permissions))

    def of_namespace(self, namespace: str) -> tuple[Grant, ...]:
        """The grants that are for this namespace and what is in it, and for no other one."""
        return tuple(one for one in self.grants if one.namespaces.partition("/")[0] == namespace)

    def with_namespace(self, namespace: str, grants: Iterable[Grant]) -> Acl:
        """With these grants in the place of those for this namespace alone."""
        own = self.of_namespace(namespace)
        return _sorted((*(one for one in self.grants if one not in own), *grants))

    def _changed(self, who: str, namespaces: str, change: object) -> Acl:
        assert callable(change)
        rest = [one for one in self.grants if (one.who, one.namespaces) != (who, namespaces)]
        present = [one.permissions for one in self.grants if (one.who, one.namespaces) == (who, namespaces)]
        permissions = frozenset(change(present[0] if present else frozenset()))
        if permissions:
            rest.append(Grant(who, namespaces, permissions))
        return _sorted(rest)

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


def _sorted(grants: Iterable[Grant]) -> Acl:
    return Acl(tuple(sorted(grants, key=lambda one: (one.who, one.namespaces))))


def _together(grants: Iterable[Grant]) -> frozenset[str]:
    """What grants allow; `admin` is all."""
    found = {permission for grant in grants for permission in grant.permissions}
    return frozenset(PERMISSIONS) if "admin" in found else frozenset(found)


def _known(permissions: Iterable[str]) -> frozenset[str]:
    found = frozenset(permissions)
    if not found <= set(PERMISSIONS):
        raise ValueError(f"unknown permissions {sorted(found - set(PERMISSIONS))}")
    return found


def check_granted(name: str) -> str:
    """What a grant may be for: a namespace, a stream or objects, or a pattern of them. Raises InvalidArgument."""
    namespace, slash, rest = name.partition("/")
    if namespace and rest.startswith(f"{OBJECTS}/"):
        check_range(rest)
    elif not namespace or (slash and not rest) or "/" in rest:
        raise InvalidArgument(
            f"{name!r}: needs NAMESPACE, NAMESPACE/STREAM, or a pattern such as 'shop/o*'; for objects "
            "NAMESPACE/objects/NAME, or 'NAMESPACE/objects/PREFIX*'"
        )
    return name
