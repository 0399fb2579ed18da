"""Grants: the permissions of principals and roles on namespaces, streams and objects. Nothing else is allowed.

Denials take away what grants would give, whoever gave it; only administrators are not subject to them. Pure. Not here:
keeping them (`metadata/records/security.py`), the permissions that an operation needs
(`core/security/namespace_rules.py`, and for objects `serve/gateway/objects/object_pages.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from buckram.core.objects.rows import LOG
from buckram.core.security.object_names import OBJECTS, NameRange, check_range, disjoint, granted_range, without
from buckram.core.security.principal import Principal
from buckram.errors import InvalidArgument

PERMISSIONS = ("read", "append", "create", "delete", "admin")
"""Permissions that can be granted. `admin` of a namespace: all of these, and changes of its policy."""
ROLE = "role:"
SERVERS = "system"
"""Namespace of streams that only servers write, such as the audit trail."""
ACL_PROPERTY, ACL_VERSION = "buckram.acl", 2
"""`ACL_PROPERTY`: property of the registration of a bookie that judges grants, and of a gateway's or database server's
key: the highest version of the record of grants that it reads. `ACL_VERSION`: the highest of this release. Version 1
has no denials; a release that knows only this one refuses version 2 instead of granting too much."""
LOGIN_PROPERTY = "buckram.login"
"""Property of the registration of a bookie that requires a login: the kinds of login that it accepts."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permissions of a principal or a role on what `namespaces` names.

    `who`: a principal's name, or `role:NAME`. `namespaces`: a namespace or a pattern such as `shop-*`, for all that is
    in them; or the full name of a stream or database, `shop/orders`, or a pattern such as `shop/o*`; or objects,
    `shop/objects/logs/*`.
    """

    who: str
    namespaces: str
    permissions: frozenset[str]

    def names(self, principal: Principal) -> bool:
        by_role = self.who.startswith(ROLE) and self.who.removeprefix(ROLE) in principal.roles
        return by_role or self.who == principal.name

    def covers(self, name: str) -> bool:
        """Return whether the grant is for this namespace, stream (by its full name) or object."""
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
        # A grant on the log of all names of objects is one on all objects.
        stream = LOG if is_object and kind == OBJECTS else within
        return bool(stream) and "/" not in stream and fnmatchcase(stream, rest)

    def is_in(self, namespace: str) -> bool:
        """Return whether the grant is for the namespace, or for something in it."""
        return fnmatchcase(namespace, self.namespaces.partition("/")[0])

    def is_within(self, name: str) -> bool:
        """Return whether this is the full name of a namespace's log of objects, and the grant is for some of them."""
        namespace, _, stream = name.partition("/")
        return stream == LOG and self.range_in(namespace) is not None

    def range_in(self, namespace: str) -> NameRange | None:
        """Return the names of objects in a namespace that the grant is for; None if it is not for objects alone."""
        first, _, rest = self.namespaces.partition("/")
        return granted_range(rest) if fnmatchcase(namespace, first) else None

    @property
    def for_objects(self) -> bool:
        """Return whether the grant is for objects alone. Bookies know no names of objects: only gateways apply it."""
        return granted_range(self.namespaces.partition("/")[2]) is not None

    def concerns(self, principal: Principal, name: str) -> bool:
        return self.names(principal) and self.covers(name)


@dataclass(frozen=True, slots=True)
class Denial(Grant):
    """Permissions that are taken away from a principal or a role, whatever grants say; `admin`: all of them."""

    def takes_all_of(self, grant: Grant) -> bool:
        """Return whether the denial covers all streams of a grant; False for a few patterns although it does."""
        first, deeper, rest = self.namespaces.partition("/")
        its_first, its_deeper, its_rest = grant.namespaces.partition("/")
        if not _includes(first, its_first):
            return False
        if not deeper:
            return True
        return bool(its_deeper) and not self.for_objects and _includes(rest, its_rest)


class Decision(NamedTuple):
    """Decision on a permission, and the rule that decided; None for an administrator, and if no grant applies."""

    allowed: bool
    rule: Grant | None


@dataclass(frozen=True, slots=True)
class Acl:
    """All grants and denials of a cluster."""

    grants: tuple[Grant, ...] = ()
    denials: tuple[Denial, ...] = ()

    def allowed(self, principal: Principal, name: str) -> frozenset[str]:
        """Return the permissions of a principal on a namespace, a stream by its full name, or an object,
        `shop/objects/a`: those granted on the namespace, the stream or the object, less those denied there."""
        if principal.admin:
            return frozenset(PERMISSIONS)
        granted = _together(self._granting(principal, name))
        if name.partition("/")[0] == SERVERS:
            granted = granted & {"read"}  # only servers write there
        return granted - _together(self._denying(principal, name)) if self.denials and granted else granted

    def decision(self, principal: Principal, name: str, permission: str) -> Decision:
        """Return whether `allowed` has a permission, and the denial or grant that decides it."""
        if principal.admin:
            return Decision(True, None)
        for denial in self._denying(principal, name):
            if permission in _together((denial,)):
                return Decision(False, denial)
        allowed = permission in self.allowed(principal, name)
        grants = (one for one in self._granting(principal, name) if permission in _together((one,)))
        return Decision(allowed, next(grants, None) if allowed else None)

    def _granting(self, principal: Principal, name: str) -> list[Grant]:
        if name.partition("/")[0] != SERVERS:
            return [one for one in self.grants if one.concerns(principal, name)]
        # Streams of servers have to be granted by name, not by a pattern, and only for reading.
        named = (one for one in self.grants if one.names(principal) and one.namespaces in (SERVERS, name))
        return [Grant(one.who, one.namespaces, frozenset({"read"})) for one in named if "read" in _together((one,))]

    def _denying(self, principal: Principal, name: str) -> list[Denial]:
        """Return the denials for a name. Those by patterns apply to the streams of servers, too."""
        return [one for one in self.denials if one.names(principal) and (one.covers(name) or one.is_within(name))]

    def within(self, principal: Principal, namespace: str) -> frozenset[str]:
        """Return the permissions of a principal on a namespace or on at least some streams in it. Any of them is enough
        to see that the namespace exists, its policy and its quotas."""
        if principal.admin:
            return frozenset(PERMISSIONS)
        own = [grant for grant in self.grants if grant.names(principal) and not grant.for_objects]
        if namespace == SERVERS:
            names = {one.namespaces for one in own if one.namespaces.partition("/")[0] == SERVERS}
            return frozenset[str]().union(*(self.allowed(principal, name) for name in names))
        found = (self._left_of(principal, one, namespace) for one in own if one.is_in(namespace))
        return frozenset[str]().union(*found)

    def _left_of(self, principal: Principal, grant: Grant, namespace: str = "") -> frozenset[str]:
        """Return the permissions that denials leave of a grant, or of its part in one namespace."""
        if not self.denials:
            return _together((grant,))
        rest = grant.namespaces.partition("/")[1:]
        here = Grant(grant.who, "".join((namespace, *rest)), grant.permissions) if namespace else grant
        denials = (one for one in self.denials if one.names(principal) and one.takes_all_of(here))
        return _together((grant,)) - _together(denials)

    def objects(self, principal: Principal, namespace: str, permission: str) -> tuple[NameRange, ...]:
        """Return which objects of a namespace the principal has a permission on, in the order of their names."""
        if principal.admin:
            return (NameRange(""),)
        log = f"{namespace}/{LOG}"
        ranges = [NameRange("")] if permission in _together(self._granting(principal, log)) else []
        if namespace != SERVERS:
            own = [one for one in self.grants if one.names(principal) and permission in _together((one,))]
            ranges += [found for one in own if (found := one.range_in(namespace)) is not None]
        return without(disjoint(ranges), self.denied_objects(principal, namespace, permission))

    def denied_objects(self, principal: Principal, namespace: str, permission: str) -> tuple[NameRange, ...]:
        """Return which objects of a namespace are denied to the principal, in the order of their names."""
        if principal.admin:
            return ()
        own = [one for one in self.denials if one.names(principal) and permission in _together((one,))]
        ranges = [one.range_in(namespace) for one in own]
        whole = [NameRange("") for one in own if one.covers(f"{namespace}/{LOG}")]
        return disjoint([one for one in ranges if one is not None] + whole)

    def sees(self, principal: Principal, namespace: str) -> bool:
        """Return whether the principal may do anything with a namespace or with something in it."""
        objects = (self.objects(principal, namespace, permission) for permission in PERMISSIONS)
        return bool(self.within(principal, namespace)) or any(objects)

    def concern(self, principal: Principal) -> bool:
        """Return whether the principal is an administrator, or has a grant that bookies apply and no denial removes."""
        own = (one for one in self.grants if one.names(principal) and not one.for_objects)
        return principal.admin or any(self._left_of(principal, one) for one in own)

    def granting(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """Return rules that grant these permissions as well."""
        return self._with(_changed(self.grants, Grant, who, namespaces, lambda present: present | set(permissions)))

    def revoking(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """Return rules without the grant of these permissions; only a grant for the same `namespaces` is changed."""
        return self._with(_changed(self.grants, Grant, who, namespaces, lambda present: present - set(permissions)))

    def denying(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """Return rules that deny these permissions as well."""
        made = _changed(self.denials, Denial, who, namespaces, lambda present: present | set(permissions))
        return Acl(self.grants, made)

    def undenying(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """Return rules without the denial of these permissions; only one for the same `namespaces` is changed."""
        made = _changed(self.denials, Denial, who, namespaces, lambda present: present - set(permissions))
        return Acl(self.grants, made)

    def of_namespace(self, namespace: str) -> Acl:
        """Return the grants and denials for this namespace alone, and for things in it."""
        return Acl(_of(self.grants, namespace), _of(self.denials, namespace))

    def with_namespace(self, namespace: str, rules: Acl) -> Acl:
        """Return rules with these in place of those for this namespace alone."""
        own = self.of_namespace(namespace)
        return Acl(
            _sorted((*(one for one in self.grants if one not in own.grants), *rules.grants)),
            _sorted((*(one for one in self.denials if one not in own.denials), *rules.denials)),
        )

    def _with(self, grants: tuple[Grant, ...]) -> Acl:
        return Acl(grants, self.denials)

    def encode(self) -> bytes:
        """Encode the record. Without denials it is of version 1, the only one that releases without denials read."""
        if not self.denials:
            return json.dumps({"version": 1, "grants": _rows(self.grants)}).encode()
        denials = _rows(self.denials)
        return json.dumps({"version": ACL_VERSION, "grants": _rows(self.grants), "denials": denials}).encode()

    @classmethod
    def parse(cls, value: bytes) -> Acl:
        """Parse the record. Raises ValueError for anything that `encode` did not make."""
        found = json.loads(value)
        try:
            if found["version"] not in (1, ACL_VERSION):
                raise ValueError(f"grants of version {found['version']}, this release knows 1 to {ACL_VERSION}")
            denials = found["denials"] if found["version"] == ACL_VERSION else ()
            return cls(_parsed(found["grants"], Grant), _parsed(denials, Denial))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no grants: {error!r}") from None


Rule = TypeVar("Rule", bound=Grant)


def _changed(
    rules: Sequence[Rule],
    kind: type[Rule],
    who: str,
    namespaces: str,
    change: Callable[[frozenset[str]], Iterable[str]],
) -> tuple[Rule, ...]:
    rest = [one for one in rules if (one.who, one.namespaces) != (who, namespaces)]
    present = [one.permissions for one in rules if (one.who, one.namespaces) == (who, namespaces)]
    permissions = frozenset(change(present[0] if present else frozenset()))
    if permissions:
        rest.append(kind(who, namespaces, permissions))
    return _sorted(rest)


def _of(rules: Iterable[Rule], namespace: str) -> tuple[Rule, ...]:
    return tuple(one for one in rules if one.namespaces.partition("/")[0] == namespace)


def _sorted(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda one: (one.who, one.namespaces)))


def _rows(rules: Iterable[Grant]) -> list[dict[str, object]]:
    return [{"who": one.who, "namespaces": one.namespaces, "permissions": sorted(one.permissions)} for one in rules]


def _parsed(rows: Iterable[dict[str, Any]], kind: type[Rule]) -> tuple[Rule, ...]:
    return tuple(kind(str(one["who"]), str(one["namespaces"]), _known(one["permissions"])) for one in rows)


def _together(grants: Iterable[Grant]) -> frozenset[str]:
    """Return the permissions of all these grants or denials; `admin` stands for all permissions."""
    found = {permission for grant in grants for permission in grant.permissions}
    return frozenset(PERMISSIONS) if "admin" in found else frozenset(found)


def _includes(pattern: str, other: str) -> bool:
    """Return whether every name that matches the other pattern (or name) matches this one; False if unclear."""
    if pattern in ("*", other):
        return True
    simple = not any(letter in pattern for letter in "?[]") and "[" not in other
    return simple and fnmatchcase(other, pattern)


def _known(permissions: Iterable[str]) -> frozenset[str]:
    found = frozenset(permissions)
    if not found <= set(PERMISSIONS):
        raise ValueError(f"unknown permissions {sorted(found - set(PERMISSIONS))}")
    return found


def check_granted(name: str) -> str:
    """Return the name that a grant is to be for: a namespace, a stream or objects, or a pattern of them.

    Raises InvalidArgument for any other text.
    """
    namespace, slash, rest = name.partition("/")
    if namespace and rest.startswith(f"{OBJECTS}/"):
        check_range(rest)
    elif not namespace or (slash and not rest) or "/" in rest:
        raise InvalidArgument(
            f"{name!r}: needs NAMESPACE, NAMESPACE/STREAM, or a pattern such as 'shop/o*'; for objects "
            "NAMESPACE/objects/NAME, or 'NAMESPACE/objects/PREFIX*'"
        )
    return name
