"""The namespace or stream that a key or a ledger belongs to, and the decision whether a principal may use it.

The default is no: a key that is not known here is for administrators. Pure. Not here: the permissions that the use of
a key needs (`core/security/required_permissions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from buckram.core.ledgers.metadata_codec import parse
from buckram.core.objects.rows import LOG
from buckram.core.security.acl import Acl
from buckram.core.security.key_access import KeyUse
from buckram.core.security.principal import Principal
from buckram.core.security.required_permissions import NEEDS, OF_KEYS, Effect, KeyContents, lacking, on_log_of_objects
from buckram.core.streams.metadata.head import Head, decode_head
from buckram.core.streams.names import DEFAULT_NAMESPACE, owner_of
from buckram.errors import BuckramError
from buckram.types import LedgerMetadata

LEDGER_NAMESPACE = "buckram.namespace"
"""Key in the custom metadata of a ledger that is no stream's: its namespace; without it, it is in `default`."""
_READ = (KeyUse.READ, KeyUse.LIST)
_ADMINISTRATORS = "it is for administrators"
UNSEEN = (
    "it belongs to no stream and no namespace on which the caller has a permission (`buckram acl grant` gives some)"
)
"""Refusal for what does not exist, and for what belongs to others, so that their names are not disclosed."""
_MOST_KNOWN = 100_000


def namespace_of_ledger(custom_metadata: Mapping[str, bytes]) -> str:
    """Return the namespace of a ledger, which is set when it is created and never changes."""
    owner = owner_of(custom_metadata)
    if owner is not None:
        return owner[0].partition("/")[0]
    found = custom_metadata.get(LEDGER_NAMESPACE)
    return DEFAULT_NAMESPACE if found is None else found.decode(errors="replace")


def is_log_of_objects(name: str) -> bool:
    """Return whether a stream's full name is that of the log of all objects of its namespace."""
    return name.partition("/")[2] == LOG


def allowed_on_entries(name: str, allowed: frozenset[str]) -> frozenset[str]:
    """Return the permissions on the entries of a stream or namespace: the given ones, but without `append` on the log
    of all objects if they are not enough to replace objects."""
    lacks = is_log_of_objects(name) and lacking(on_log_of_objects(Effect.ADD), allowed)
    return allowed - NEEDS[Effect.ADD] if lacks else allowed


def granted_name_of_ledger(custom_metadata: Mapping[str, bytes]) -> str:
    """Return the name of a ledger in grants: the full name of its stream, or its namespace if it is no stream's."""
    owner = owner_of(custom_metadata)
    return namespace_of_ledger(custom_metadata) if owner is None else owner[0]


class ClusterKeys:
    """Keys of a cluster in the metadata store. `root`: Apache's part of the tree, `own`: ours; `is_ledger`: whether a
    key is a ledger's record."""

    def __init__(self, root: str, own: str, is_ledger: Callable[[str], bool]) -> None:
        self.root, self.own, self.is_ledger = root, own, is_ledger
        self.heads, self.data = f"{own}/streams/heads", f"{own}/streams/data"
        self.namespaces, self.links = f"{own}/streams/namespaces", f"{own}/streams/replication"
        self.quotas = f"{own}/tenants/quotas"
        self.told = f"{own}/healing/behind/", f"{own}/healing/degraded/"
        """Folders of the notes and reports that writers make of ledgers and bookies."""
        folders = [f"{own}/{name}" for name in ("convicted", "topology", "slow", "times")]
        folders += [f"{root}/available", f"{root}/cookies"]
        self._common = frozenset((f"{root}/INSTANCEID", f"{own}/require-identity", f"{own}/history", *folders))
        self._heads, self._data = f"{self.heads}/", f"{self.data}/"
        self._common_below = tuple(f"{folder}/" for folder in folders)

    def is_common(self, key: str) -> bool:
        """Return whether every client has to read the key: the identity of the cluster, its bookies, and the times that
        these recorded."""
        return key in self._common or key.startswith(self._common_below)

    def is_share(self, key: str) -> bool:
        """Return whether it is a key by which a stream holds a ledger together with others."""
        return self.is_ledger(key.rpartition("/")[0])

    def uid(self, key: str) -> str:
        """Return the uid of the stream that a key below `data` belongs to; "" for any other key."""
        return key[len(self._data) :].partition("/")[0] if key.startswith(self._data) else ""

    @property
    def listed(self) -> tuple[str, ...]:
        """Return the keys whose children are named by namespaces."""
        return self.heads, self.namespaces, self.links

    def called(self, key: str) -> str:
        """Return the name of a key in a refusal, without any path of the store, or any name beyond the key's own."""
        for folder in (*self.listed, self.quotas):
            name = key.removeprefix(f"{folder}/")
            if name != key:
                return _what(name)
        if key in self.listed:
            return "the list of namespaces"
        return "a stream's data" if self.uid(key) else "what this asks for"

    def head_of(self, key: str) -> str:
        """Return the full name of the stream whose head the key is; "" for any other key."""
        if not key.startswith(self._heads):
            return ""
        name = key[len(self._heads) :]
        return name if name.partition("/")[2] else ""


@dataclass(slots=True)
class Known:
    """Cache of names that were read: full names of streams by their uids, names of ledgers in grants by their keys."""

    uids: dict[str, str] = field(default_factory=dict)
    ledgers: dict[str, str] = field(default_factory=dict)
    below: Known | None = None
    """Cache to look in for what is not in this one; None: there is none."""

    def of_uid(self, uid: str) -> str | None:
        return self.uids.get(uid) or (None if self.below is None else self.below.of_uid(uid))

    def of_ledger(self, key: str) -> str | None:
        return self.ledgers.get(key) or (None if self.below is None else self.below.of_ledger(key))

    def note(self, where: dict[str, str], what: str, name: str) -> None:
        if len(where) >= _MOST_KNOWN:
            where.clear()  # names are read again when they are needed
        where[what] = name


class NamespaceRules:
    """KeyRules by grants. `acl` returns the present grants."""

    def __init__(self, places: ClusterKeys, acl: Callable[[], Acl], principal: Principal, known: Known) -> None:
        self.places, self._acl, self._principal, self.known = places, acl, principal, known

    def trial(self) -> NamespaceRules:
        """Return the same rules, whose `learn` does not change these."""
        return NamespaceRules(self.places, self._acl, self._principal, Known(below=self.known))

    def is_ledger(self, key: str) -> bool:
        return self.places.is_ledger(key)

    def name_of(self, uid: str) -> str | None:
        return self.known.of_uid(uid)

    def learn(self, key: str, value: bytes) -> None:
        stream = self.places.head_of(key)
        if stream:
            uid = uid_in(key, value)
            if uid:
                self.known.note(self.known.uids, uid, stream)
        elif self.places.is_ledger(key):
            found = _ledger_name(value)
            if found is not None:
                self.known.note(self.known.ledgers, key, found)

    def refusal(self, key: str, use: KeyUse, value: bytes | None = None) -> str | None:
        places = self.places
        if places.is_common(key):
            return "" if use in _READ else _ADMINISTRATORS
        if places.is_ledger(key):
            return self._of_ledger(key, use, value)
        if places.is_share(key):
            return self._of_share(key, use)
        for records in (places.namespaces, places.links):
            if _is_below(key, records):
                return self._of_record(key.removeprefix(records).lstrip("/"), use)
        if key.startswith(f"{places.quotas}/"):
            return self._needs_within(key.removeprefix(f"{places.quotas}/"), KeyContents.QUOTA, use)
        if _is_below(key, places.heads):
            return self._of_head(key, use)
        uid = places.uid(key)
        if uid:
            stream = self.known.of_uid(uid)
            return None if stream is None else self._needs_of_owner(stream, _data_kind(key, places, uid), use)
        if key.startswith(places.told):  # writers may note what lacks copies and who is slow, and remove no note
            usable = use in (KeyUse.CREATE, KeyUse.READ, KeyUse.SET) and self._acl().concern(self._principal)
            return "" if usable else _ADMINISTRATORS
        if key == places.root:  # ids of new ledgers
            usable = use in (KeyUse.CREATE, KeyUse.READ) and self._acl().concern(self._principal)
            return "" if usable else _ADMINISTRATORS
        return _ADMINISTRATORS

    def _of_ledger(self, key: str, use: KeyUse, value: bytes | None) -> str | None:
        said = None if value is None else _ledger_name(value)
        if use is KeyUse.CREATE:
            return _ADMINISTRATORS if said is None else self._needs(said, KeyContents.LEDGER, use)
        known = self.known.of_ledger(key) if use is not KeyUse.READ or value is None else said
        if known is None:
            return None if value is None or use is KeyUse.SET else _ADMINISTRATORS
        why = self._needs_of_owner(known, KeyContents.LEDGER, use)
        return why or (f"a ledger of {_what(known)} stays one" if use is KeyUse.SET and said != known else "")

    def _of_share(self, key: str, use: KeyUse) -> str | None:
        """Judge the use of a key by which a stream holds a ledger together with others. To create one, a principal
        needs the right to read the ledger, and the right to change the stream that is to hold it."""
        ledger, _, uid = key.rpartition("/")
        owner, holder = self.known.of_ledger(ledger), self.known.of_uid(uid)
        if holder is None or (owner is None and use is KeyUse.CREATE):
            return None
        if owner is None or use is not KeyUse.CREATE:
            return self._needs_of_owner(holder, KeyContents.SHARE, use)
        why = self._needs_of_owner(owner, KeyContents.LEDGER, KeyUse.READ)
        if not why and owner.partition("/")[0] != holder.partition("/")[0]:
            return f"a ledger of {_what(owner)} is for streams of its namespace only"
        return why or (self._needs_of_owner(holder, KeyContents.SHARE, use) if holder != owner else "")

    def _of_record(self, namespace: str, use: KeyUse) -> str:
        if not namespace:
            return "" if use is KeyUse.LIST else _ADMINISTRATORS
        needs = self._needs_within if use in _READ else self._needs
        return needs(namespace, KeyContents.NAMESPACE, use)

    def _of_head(self, key: str, use: KeyUse) -> str:
        namespace, _, stream = key.removeprefix(self.places.heads).lstrip("/").partition("/")
        if not namespace:
            return "" if use is KeyUse.LIST else _ADMINISTRATORS
        if not stream:
            needs = self._needs_within if use in _READ else self._needs
            return needs(namespace, KeyContents.STREAMS, use)
        return self._needs(f"{namespace}/{stream}", KeyContents.HEAD, use)

    def _needs(self, name: str, kept: KeyContents, use: KeyUse) -> str:
        return _refused(self._acl().allowed(self._principal, name), name, kept, use)

    def _needs_of_owner(self, name: str, kept: KeyContents, use: KeyUse) -> str:
        """Judge the use of a key by the owner of its ledger or uid. A principal without any permission on the owner
        does not learn its name."""
        allowed = self._acl().allowed(self._principal, name)
        return _refused(allowed, name, kept, use) if allowed else UNSEEN

    def _needs_within(self, namespace: str, kept: KeyContents, use: KeyUse) -> str:
        """Judge the use of a key of a namespace for which permissions on a single stream in it are enough."""
        return _refused(self._acl().within(self._principal, namespace), namespace, kept, use)


@lru_cache(maxsize=32)
def head_in(key: str, value: bytes) -> Head:
    """Return the decoded head, cached since several checks look at the same change. Raises MalformedRecord."""
    return decode_head(key, value)


@lru_cache(maxsize=32)
def record_in(value: bytes) -> LedgerMetadata:
    """Return the parsed record of a ledger, cached since several checks look at the same change. Raises
    MalformedRecord."""
    return parse(value)


def uid_in(key: str, value: bytes) -> str:
    """Return the uid of the stream with this head; "" if it does not parse."""
    try:
        return head_in(key, value).uid
    except BuckramError:
        return ""


def _refused(allowed: Collection[str], name: str, kept: KeyContents, use: KeyUse) -> str:
    effect = OF_KEYS[kept].get(use)
    if effect is None:
        return _ADMINISTRATORS
    lacks = lacking(on_log_of_objects(effect) if is_log_of_objects(name) else effect, allowed)
    if not lacks:
        return ""
    return f"it has no permission `{', '.join(lacks)}` on {_what(name)} (`buckram acl grant` gives it)"


def _what(name: str) -> str:
    return f"stream {name}" if "/" in name else f"namespace {name}"


def _ledger_name(value: bytes) -> str | None:
    try:
        return granted_name_of_ledger(record_in(value).custom_metadata)
    except BuckramError:
        return None


def _data_kind(key: str, places: ClusterKeys, uid: str) -> KeyContents:
    """Return the kind of a key below a stream's uid, or of the uid's own key, which is made with the stream. Cursors
    are kept by readers; all other keys belong to the writer."""
    if key == f"{places.data}/{uid}":
        return KeyContents.DATA_ROOT
    return KeyContents.CURSOR if key.startswith(f"{places.data}/{uid}/cursors") else KeyContents.DATA


def _is_below(key: str, folder: str) -> bool:
    return key.startswith(folder) and key[len(folder) : len(folder) + 1] in ("", "/")
