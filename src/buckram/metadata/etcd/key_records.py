"""The pure part of keys in etcd: their places, the format of records, and a multi as etcd can do it.

/a/b is kept at ROOT/002/a/b: with the depth in front, the children of a key are one range, whatever is below them. The
value is the key's version in decimal digits, a space, and what the caller stored: etcd's own count of changes does not
begin anew when a key is deleted and made again in one step.

etcd's transactions take each key once and do not see their own changes; ours are in order, each seeing the ones before.
So the operations of a multi are carried out here on a view of the keys concerned, and what is sent is their outcome, on
condition that nothing of that view has changed.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from buckram.errors import InvalidArgument, KeyExists, KeyNotEmpty, MalformedRecord, NoSuchKey, VersionConflict
from buckram.metadata.tree.key_grammar import split
from buckram.types import Create, Delete, KeyOp, SetValue

Range = tuple[str, str]
"""First key of a range, and the first behind it: both as etcd has them."""


@dataclass(frozen=True, slots=True)
class Record:
    """Record of a key that exists. `mod` is the revision that wrote it, UNREAD if it was not read; `lease` is 0 if it
    is bound to no session.
    """

    value: bytes
    version: int
    mod: int
    lease: int = 0


UNREAD = -1
ASSUMED = Record(b"", 0, UNREAD)
"""Placeholder for a key that should exist and be bound to no session; the transaction checks that."""


class Found(NamedTuple):
    key: str
    record: Record


class EtcdKeySpace:
    """The keys of one cluster, below `root`."""

    def __init__(self, root: str) -> None:
        self.root = root

    def of(self, key: str) -> str:
        return f"{self.root}/{key.count('/'):03d}{key}"

    def key(self, place: str) -> str:
        """Return the key of a place. Raises MalformedRecord for a place that is none of ours."""
        depth, slash, rest = place.removeprefix(f"{self.root}/").partition("/")
        if not place.startswith(f"{self.root}/") or not slash or depth != f"{rest.count('/') + 1:03d}":
            raise MalformedRecord(f"{place!r}: no key of a cluster at {self.root}; find out which program writes there")
        return f"/{rest}"

    def children(self, parent: str, after: str = "") -> Range:
        """Return the range of a key's direct children, those behind `after`."""
        above = "" if parent == "/" else parent
        folder = f"{self.root}/{above.count('/') + 1:03d}{above}"
        return (f"{folder}/{after}\0" if after else f"{folder}/"), f"{folder}0"

    @property
    def everything(self) -> Range:
        return f"{self.root}/001/", f"{self.root}/999/"

    def session(self, lease: int) -> str:
        return f"{self.root}/session/{lease:016x}"

    def found(self, kv: dict[str, Any]) -> Found:
        """Return the key and the record of one of etcd's pairs."""
        place = _place(kv)
        return Found(self.key(place), _record(place, kv))

    def name(self, kv: dict[str, Any]) -> str:
        """Return the last part of a pair's key."""
        return self.key(_place(kv)).rpartition("/")[2]


def _place(kv: dict[str, Any]) -> str:
    return base64.b64decode(kv["key"]).decode("utf-8", "replace")


def _record(place: str, kv: dict[str, Any]) -> Record:
    """Parse a record. Raises MalformedRecord for a value that somebody else wrote."""
    mod, lease = int(kv.get("mod_revision", 0)), int(kv.get("lease", 0))
    version, space, value = base64.b64decode(kv.get("value", "")).partition(b" ")
    if not space or not version.isdigit() or len(version) > 19:
        raise MalformedRecord(f"{place!r}: the value does not begin with a version; restore it from a backup")
    return Record(value, int(version), mod, lease)


def coded(text: str | bytes) -> str:
    """Return bytes as JSON carries them."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def put(place: str, one: Record) -> dict[str, Any]:
    request = {"key": coded(place), "value": coded(b"%d " % one.version + one.value)}
    return {"request_put": request | ({"lease": str(one.lease)} if one.lease else {})}


def delete(place: str) -> dict[str, Any]:
    return {"request_delete_range": {"key": coded(place)}}


def read(wanted: Range | str, *, limit: int = 0, names_only: bool = False, revision: int = 0) -> dict[str, Any]:
    """Return the request that reads a range or one key as of `revision`, 0 for now."""
    first, end = (wanted, "") if isinstance(wanted, str) else wanted
    request: dict[str, Any] = {"key": coded(first)}
    if end:
        request["range_end"] = coded(end)
    if limit:
        request["limit"] = str(limit)
    if names_only:
        request["keys_only"] = True
    if revision:
        request["revision"] = str(revision)
    return request


def condition(where: Range | str, target: str, result: str, number: int) -> dict[str, Any]:
    """Return a condition that must hold for every key of a range, or for one key; a key that does not exist counts as
    0.
    """
    first, end = (where, "") if isinstance(where, str) else where
    field = {"VERSION": "version", "MOD": "mod_revision", "CREATE": "create_revision", "LEASE": "lease"}[target]
    made = {"key": coded(first), "target": target, "result": result, field: str(number)}
    return made | ({"range_end": coded(end)} if end else {})


_LEVELS = ((1, 120), (2, 60), (3, 40))
"""Depths of nested transactions, and the width of each level: etcd counts 128 from the outermost to the innermost, and
the session's condition is added to ours.
"""


@dataclass(slots=True)
class KnownState:
    """The state that a plan is made on. `keys` has everything that the operations touch and the parents of what they
    create; `children` the first names below what they delete. `revision` is etcd's, 0 for a state that is assumed."""

    keys: dict[str, Record | None] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    revision: int = 0


@dataclass(slots=True)
class Needs:
    """Keys that a view has to have. `folders`: how many names of each."""

    keys: list[str]
    folders: dict[str, int]


@dataclass(slots=True)
class Plan:
    """The outcome to send. `written`: new record of each key, None for a deleted one; `versions`: of each operation."""

    conditions: list[dict[str, Any]]
    requests: list[dict[str, Any]]
    written: dict[str, Record | None]
    versions: list[int]


def needs_of(ops: Sequence[KeyOp]) -> Needs:
    keys: dict[str, None] = {}
    for op in ops:
        keys[op.key] = None
        if isinstance(op, Create):
            parent = split(op.key)[0]
            while parent != "/":
                keys[parent] = None
                parent = split(parent)[0]
    gone = [op.key for op in ops if isinstance(op, Delete)]
    below = [split(key)[0] for key in gone]
    return Needs(list(keys), {key: below.count(key) + 1 for key in gone})


def make_plan(ops: Sequence[KeyOp], view: KnownState, places: EtcdKeySpace, lease: int) -> Plan:
    """Carry the operations out on the view; return the plan. Raises the error of the first that fails.

    `lease` is the session's.
    """
    work = _Work(view, lease)
    versions = [work.apply(op) for op in ops]
    written = {key: one for key, one in work.state.items() if one is not view.keys.get(key)}
    requests = [delete(places.of(key)) if one is None else put(places.of(key), one) for key, one in written.items()]
    width = _width(len(requests))
    return Plan(_conditions(work, places, width), _nested(requests, width), written, versions)


class _Work:
    """The state while operations are carried out on it, and the parts of the view that were relied on."""

    def __init__(self, view: KnownState, lease: int) -> None:
        self.view, self.lease = view, lease
        self.state = dict(view.keys)
        self.relied: dict[str, bool] = {}
        """Keys whose state matters; True if it is enough that they exist and are bound to no session."""
        self.emptied: dict[str, None] = {}

    def apply(self, op: KeyOp) -> int:
        if isinstance(op, Create):
            return self._create(op)
        self.relied[op.key] = False
        found = self.state[op.key]
        if found is None:
            raise NoSuchKey(op.key)
        if found.version != op.version:
            raise VersionConflict(op.key, op.version)
        if isinstance(op, SetValue):
            self.state[op.key] = Record(bytes(op.value), op.version + 1, UNREAD, found.lease)
            return op.version + 1
        if isinstance(op, Delete):
            self._check_empty(op.key)
            self.state[op.key] = None
        return op.version

    def _create(self, op: Create) -> int:
        self.relied[op.key] = False
        if self.state[op.key] is not None:
            raise KeyExists(op.key)
        missing: list[str] = []
        parent = split(op.key)[0]
        while parent != "/" and self.state[parent] is None:
            missing.append(parent)
            parent = split(parent)[0]
        if parent != "/":
            above = self.state[parent]
            assert above is not None
            if above.lease:
                raise InvalidArgument(f"key {op.key}: {parent} is bound to a session and cannot have children")
            self.relied.setdefault(parent, True)
        for key in missing:
            self.relied[key] = False
            self.state[key] = Record(b"", 0, UNREAD)
        self.state[op.key] = Record(bytes(op.value), 0, UNREAD, self.lease if op.ephemeral else 0)
        return 0

    def _check_empty(self, key: str) -> None:
        self.emptied[key] = None
        below = [f"{key}/{name}" for name in self.view.children[key]]
        left = [one for one in below if one not in self.state or self.state[one] is not None]
        made = [one for one, found in self.state.items() if found is not None and split(one)[0] == key]
        if left or made:
            raise KeyNotEmpty(key)


def _conditions(work: _Work, places: EtcdKeySpace, most: int) -> list[dict[str, Any]]:
    """Return the conditions of a plan, at most `most` if possible.

    Absent keys can be checked together as a range, because what appears among them is newer than the view. A key that
    exists cannot: its deletion would not be seen.
    """
    made, absent = _of_present(work, places), [key for key in work.relied if work.view.keys[key] is None]
    room = most - len(made)
    if len(absent) <= room or not work.view.revision or room < 1:
        return made + [condition(places.of(key), "VERSION", "EQUAL", 0) for key in absent]
    where = sorted(map(places.of, absent))
    size = -(-len(where) // room)
    for start in range(0, len(where), size):
        group = where[start : start + size]
        made.append(condition((group[0], group[-1] + "\0"), "MOD", "LESS", work.view.revision + 1))
    return made


def _of_present(work: _Work, places: EtcdKeySpace) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for key, only_there in work.relied.items():
        place, found = places.of(key), work.view.keys[key]
        if found is None:
            continue
        if only_there or found.mod == UNREAD:
            made.append(condition(place, "VERSION", "GREATER", 0))
            made.append(condition(place, "LEASE", "EQUAL", 0))
        else:
            made.append(condition(place, "MOD", "EQUAL", found.mod))
    for key in work.emptied:
        below = places.children(key)
        if work.view.children[key]:  # children deleted in this plan have their own conditions; none may have been added
            made.append(condition(below, "MOD", "LESS", work.view.revision + 1))
        else:
            made.append(condition(below, "CREATE", "EQUAL", 0))
    return made


def _width(requests: int) -> int:
    """Return the maximum number of requests and conditions of each level of the transaction."""
    return next((width for levels, width in _LEVELS if requests <= width**levels), _LEVELS[-1][1])


def _nested(requests: list[dict[str, Any]], width: int) -> list[dict[str, Any]]:
    while len(requests) > width:
        parts = [requests[start : start + width] for start in range(0, len(requests), width)]
        requests = [{"request_txn": {"success": part}} for part in parts]
    return requests
