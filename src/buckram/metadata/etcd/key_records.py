"""The places of keys in etcd, and the format of records: pure.

/a/b is kept at ROOT/002/a/b: with the depth in front, the children of a key are one range, whatever is below them. The
value is the key's version in decimal digits, a space, and what the caller stored: etcd's own count of changes does not
begin anew when a key is deleted and made again in one step.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, NamedTuple

from buckram.errors import MalformedRecord

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
