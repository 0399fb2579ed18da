"""Which namespace a key of the metadata belongs to, and which permission an operation on it needs.

Default is no: a key that no row here knows is for administrators. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.core.security.access import KeyUse
from buckram.core.security.acl import Acl
from buckram.core.security.principal import Principal

_NEEDS = {
    KeyUse.READ: "read",
    KeyUse.LIST: "read",
    KeyUse.CREATE: "append",
    KeyUse.SET: "append",
    KeyUse.DELETE: "append",
}
_READ = (KeyUse.READ, KeyUse.LIST)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the keys of a cluster are."""

    root: str
    own: str


def key_refusal(places: Places, acl: Acl, principal: Principal, key: str, use: KeyUse) -> str:
    """Return why the principal must not do that; "" if it may."""
    if _is_below(key, f"{places.own}/security"):
        return "it is for administrators"
    if _is_common(places, key):
        return "" if use in _READ else "changes of it are for administrators"
    streams = f"{places.own}/streams"
    for folder, namespace_record in ((f"{streams}/namespaces", True), (f"{streams}/heads", False)):
        if _is_below(key, folder):
            return _of_namespace(acl, principal, key.removeprefix(folder).lstrip("/"), use, namespace_record)
    return "no grant covers it, and it belongs to no namespace"


def _of_namespace(acl: Acl, principal: Principal, rest: str, use: KeyUse, record: bool) -> str:
    namespace, _, stream = rest.partition("/")
    if not namespace:
        return "" if use is KeyUse.LIST else "it is for administrators"
    if record:
        needed = "read" if use in _READ else "admin"
    elif use in (KeyUse.CREATE, KeyUse.DELETE) and stream:
        needed = "create" if use is KeyUse.CREATE else "delete"
    else:
        needed = _NEEDS[use]
    allowed = acl.allowed(principal, namespace)
    if needed in allowed:
        return ""
    return f"it has no permission `{needed}` on namespace {namespace} (`buckram acl grant` gives it)"


def _is_common(places: Places, key: str) -> bool:
    """What every client has to read: which cluster this is, and its bookies."""
    folders = [
        f"{places.root}/available",
        f"{places.root}/cookies",
        f"{places.own}/convicted",
        f"{places.own}/topology",
    ]
    single = [f"{places.root}/INSTANCEID", f"{places.own}/require-identity", f"{places.own}/history"]
    return key in single or any(_is_below(key, folder) for folder in folders)


def _is_below(key: str, folder: str) -> bool:
    return key == folder or key.startswith(f"{folder}/")
