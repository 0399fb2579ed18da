"""Grants: which principal or role may do what with which namespaces, streams and objects. Nothing else is allowed.

Denials take away what grants would give, whoever gave it; only an administrator is not held to them. Pure. Not here:
where they are kept (`metadata/security.py`), what an operation needs (`core/security/namespaces.py`, and for objects
`serve/gateway/object_pages.py`).
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
"""`admin` of a namespace: all of these, and its policy."""
ROLE = "role:"
SERVERS = "system"
"""The namespace of what servers write, such as the audit trail."""
ACL_PROPERTY, ACL_VERSION = "buckram.acl", 2
"""In the registration of a bookie that judges grants, and in the key that shows a gateway or a server of databases:
which versions of their record it reads, up to this one. The first has no denials, so that a release which knows none
refuses the second in place of granting too much."""
LOGIN_PROPERTY = "buckram.login"
"""In the registration of a bookie that asks for a login: which ones it takes."""


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

    def is_in(self, namespace: str) -> bool:
        """Whether it is for the namespace, or for something in it."""
        return fnmatchcase(namespace, self.namespaces.partition("/")[0])

    def is_within(self, name: str) -> bool:
        """Whether it is for some objects of a namespace whose log of all names this is."""
        namespace, _, stream = name.partition("/")
        return stream == LOG and self.range_in(namespace) is not None

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
class Denial(Grant):
    """The same words, for what nobody of these may do whatever was granted. `admin`: nothing at all."""

    def takes_all_of(self, grant: Grant) -> bool:
        """Whether all streams that a grant is for are denied. Not said of a few patterns of which it is true."""
        first, deeper, rest = self.namespaces.partition("/")
        its_first, its_deeper, its_rest = grant.namespaces.partition("/")
        if not _includes(first, its_first):
            return False
        if not deeper:
            return True
        return bool(its_deeper) and not self.for_objects and _includes(rest, its_rest)


class Decision(NamedTuple):
    """Whether a permission is there, and the rule that decided: none for an administrator, and where nothing was
    granted."""

    allowed: bool
    rule: Grant | None


@dataclass(frozen=True, slots=True)
class Acl:
    """All grants and denials of a cluster."""

    grants: tuple[Grant, ...] = ()
    denials: tuple[Denial, ...] = ()

    def allowed(self, principal: Principal, name: str) -> frozenset[str]:
        """Return what the principal may do with a namespace, a stream by its full name, or an object, `shop/objects/a`:
        by grants on the namespace, and by those on the stream or object, less what is denied there."""
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
        # What servers write has to be granted by one of these names, not by a pattern, and for reading.
        named = (one for one in self.grants if one.names(principal) and one.namespaces in (SERVERS, name))
        return [Grant(one.who, one.namespaces, frozenset({"read"})) for one in named if "read" in _together((one,))]

    def _denying(self, principal: Principal, name: str) -> list[Denial]:
        """Denials by patterns reach what servers write, too."""
        return [one for one in self.denials if one.names(principal) and (one.covers(name) or one.is_within(name))]

    def within(self, principal: Principal, namespace: str) -> frozenset[str]:
        """Return what the principal may do with a namespace or with at least some streams in it. This is enough to
        know that the namespace is there, its policy and its quotas."""
        if principal.admin:
            return frozenset(PERMISSIONS)
        own = [grant for grant in self.grants if grant.names(principal) and not grant.for_objects]
        if namespace == SERVERS:
            names = {one.namespaces for one in own if one.namespaces.partition("/")[0] == SERVERS}
            return frozenset[str]().union(*(self.allowed(principal, name) for name in names))
        found = (self._left_of(principal, one, namespace) for one in own if one.is_in(namespace))
        return frozenset[str]().union(*found)

    def _left_of(self, principal: Principal, grant: Grant, namespace: str = "") -> frozenset[str]:
        """What denials leave of a grant, or of what it is for in one namespace."""
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
        """Whether the principal was granted anything that bookies check, and that is not denied."""
        own = (one for one in self.grants if one.names(principal) and not one.for_objects)
        return principal.admin or any(self._left_of(principal, one) for one in own)

    def granting(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """With these permissions more."""
        return self._with(_changed(self.grants, Grant, who, namespaces, lambda present: present | set(permissions)))

    def revoking(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """Without these permissions; only those that were granted for the same words."""
        return self._with(_changed(self.grants, Grant, who, namespaces, lambda present: present - set(permissions)))

    def denying(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """With these permissions denied as well."""
        made = _changed(self.denials, Denial, who, namespaces, lambda present: present | set(permissions))
        return Acl(self.grants, made)

    def undenying(self, who: str, namespaces: str, permissions: Iterable[str]) -> Acl:
        """Without the denial of these permissions; only of those that were denied by the same words."""
        made = _changed(self.denials, Denial, who, namespaces, lambda present: present - set(permissions))
        return Acl(self.grants, made)

    def of_namespace(self, namespace: str) -> Acl:
        """What is granted and denied in this namespace, and in no other one."""
        return Acl(_of(self.grants, namespace), _of(self.denials, namespace))

    def with_namespace(self, namespace: str, rules: Acl) -> Acl:
        """With these rules in the place of those for this namespace alone."""
        own = self.of_namespace(namespace)
        return Acl(
            _sorted((*(one for one in self.grants if one not in own.grants), *rules.grants)),
            _sorted((*(one for one in self.denials if one not in own.denials), *rules.denials)),
        )

    def _with(self, grants: tuple[Grant, ...]) -> Acl:
        return Acl(grants, self.denials)

    def encode(self) -> bytes:
        """A record without denials is one that releases read which know none; they refuse any other."""
        if not self.denials:
            return json.dumps({"version": 1, "grants": _rows(self.grants)}).encode()
        denials = _rows(self.denials)
        return json.dumps({"version": ACL_VERSION, "grants": _rows(self.grants), "denials": denials}).encode()

    @classmethod
    def parse(cls, value: bytes) -> Acl:
        """Raises ValueError for what `encode` did not make."""
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
    """What grants allow, or denials deny; `admin` is all."""
    found = {permission for grant in grants for permission in grant.permissions}
    return frozenset(PERMISSIONS) if "admin" in found else frozenset(found)


def _includes(pattern: str, other: str) -> bool:
    """Whether whatever fits the other pattern, which may be a name, fits this one."""
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
