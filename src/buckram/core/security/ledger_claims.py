"""Ledgers that a stream's keys name, and those that a change names anew.

Servers with all rights read and delete ledgers that a head, a page or an intent names. So a writer of such a key may
name only ledgers of the stream in it: docs/explanation/security-design.md, "What a key may name". Pure. Not here:
looking up the owner of a ledger, and refusing the change (`bookie/service/metadata/change_gate.py`).

Rows of kind HISTORY name files outside the cluster and not ledgers, so they neither need a proof here nor give one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from buckram.core.security.namespace_rules import ClusterKeys, head_in
from buckram.core.streams.external.exports import decode_export
from buckram.core.streams.json_values import is_int64
from buckram.core.streams.metadata.head import LEDGER, PAGE_SEGMENTS, Head, Segment, decode_page
from buckram.errors import MalformedRecord
from buckram.types import MAX_LEDGER_ID, CheckVersion, Create, Delete, KeyOp, LedgerId, SetValue

_ID_DIGITS, _PAGE_DIGITS = 19, 12
MAX_PAGES = 50_000
"""Maximum number of pages of one stream, 12.8 million segments: a deletion looks for each page that the head names."""


class LedgerKeyKind(Enum):
    """Kinds of keys that name ledgers."""

    HEAD = "head"
    PAGE = "page"
    EXPORT = "export"
    """The record of an export, with the ids of its copies; when copies are removed, these become ids of intents."""
    INTENT = "intent"
    """The intent of a ledger, which it names by its own name: `data/UID/intents/ID`."""
    MARK = "mark"
    """The mark of a shared ledger, which it names by its own name, `data/UID/shared/ID`: a fork finds the ledgers that
    it holds together with others by these."""


_BY_FOLDER = {
    "pages": LedgerKeyKind.PAGE,
    "exports": LedgerKeyKind.EXPORT,
    "intents": LedgerKeyKind.INTENT,
    "shared": LedgerKeyKind.MARK,
}


class NamingKey(NamedTuple):
    """A key that names ledgers. `uid`: that of the stream it is below; "" for a head, which has it in its value."""

    kind: LedgerKeyKind
    uid: str
    name: str


def naming_key(places: ClusterKeys, key: str) -> NamingKey | None:
    """Return the kind, uid and name of a key that names ledgers; None for any other key."""
    if places.head_of(key):
        return NamingKey(LedgerKeyKind.HEAD, "", places.head_of(key))
    uid = places.uid(key)
    folder, _, name = key.removeprefix(f"{places.data}/{uid}/").partition("/") if uid else ("", "", "")
    kind = _BY_FOLDER.get(folder)
    return NamingKey(kind, uid, name) if kind is not None and name else None


@dataclass(slots=True)
class Claims:
    """Ledgers that a change names anew for one stream, by the kind of key that names them."""

    rows: set[LedgerId] = field(default_factory=set)
    """Ledgers that are named in heads, pages and records of exports."""
    intents: set[LedgerId] = field(default_factory=set)
    marks: set[LedgerId] = field(default_factory=set)


def ids_of_head(head: Head) -> set[LedgerId]:
    table = () if head.table is None else (head.table,)
    return {*_ledgers((*head.tail, *table)), *(row.ledger for row in head.snapshots or ()), *head.garbage}


def uid_and_ids(at: NamingKey, key: str, value: bytes) -> tuple[str, set[LedgerId]]:
    """Return the uid of the stream that a key with this value belongs to, and the ledgers that it names. Raises
    MalformedRecord, which says what is wrong with the key or its value."""
    match at.kind:
        case LedgerKeyKind.HEAD:
            head = head_in(key, value)
            _check_pages(key, head)
            return head.uid, ids_of_head(head)
        case LedgerKeyKind.PAGE:
            page = decode_page(key, value)
            if at.name != f"{page.number:0{_PAGE_DIGITS}d}":
                raise MalformedRecord(f"{key}: holds page {page.number}, whose key has another name")
            return at.uid, _ledgers(page.segments)
        case LedgerKeyKind.EXPORT:
            return at.uid, set(decode_export(key, value, 0).copies)
        case LedgerKeyKind.INTENT:
            _check_intent(key, value)
    return at.uid, {_id(key, at.name)}


def newly_named(places: ClusterKeys, ops: Sequence[KeyOp], before: Mapping[str, bytes]) -> dict[str, Claims]:
    """Return by uid the ledgers that a change names, and that no old value of a key of that uid in the change names.

    Rows move from a head to a page, or to the garbage, within one change, so all old values count together. An intent
    that the change deletes, checks or sets proves its id, too: it exists before the change, which fails otherwise, and
    an intent can only exist for a ledger of the stream. `before`: the old values of the heads, pages and exports that
    the change touches, as far as they exist. Raises MalformedRecord for a new value that does not parse.
    """
    created = {op.key for op in ops if isinstance(op, Create)}
    named: dict[str, Claims] = {}
    proven: dict[str, set[LedgerId]] = {}
    for op in ops:
        at = naming_key(places, op.key)
        if at is None:
            continue
        uid, ids = _before(at, op, before.get(op.key), created)
        proven.setdefault(uid, set()).update(ids)
        if isinstance(op, Create | SetValue):
            uid, ids = uid_and_ids(at, op.key, op.value)
            claims = named.setdefault(uid, Claims())
            {LedgerKeyKind.INTENT: claims.intents, LedgerKeyKind.MARK: claims.marks}.get(at.kind, claims.rows).update(
                ids
            )
    for uid, claims in named.items():
        claims.rows -= proven.get(uid, set())
        claims.intents -= proven.get(uid, set())
    return {uid: claims for uid, claims in named.items() if claims.rows or claims.intents or claims.marks}


def touched(places: ClusterKeys, ops: Iterable[KeyOp]) -> list[str]:
    """Return the keys whose old values `newly_named` needs."""
    kinds = (LedgerKeyKind.HEAD, LedgerKeyKind.PAGE, LedgerKeyKind.EXPORT)
    changes = [op.key for op in ops if isinstance(op, Create | SetValue | Delete)]
    return [key for key in changes if (at := naming_key(places, key)) is not None and at.kind in kinds]


def _before(at: NamingKey, op: KeyOp, old: bytes | None, created: set[str]) -> tuple[str, set[LedgerId]]:
    """Return the uid and the ledgers that a key named before the change; none if its old value cannot be read."""
    with suppress(MalformedRecord):
        if at.kind is LedgerKeyKind.INTENT:
            return at.uid, set() if op.key in created else {_id(op.key, at.name)}
        if old is not None and at.kind is not LedgerKeyKind.MARK and not isinstance(op, CheckVersion):
            return uid_and_ids(at, op.key, old)
    return at.uid, set()


def _ledgers(rows: Iterable[Segment]) -> set[LedgerId]:
    return {row.ledger for row in rows if row.kind == LEDGER}


def _id(key: str, name: str) -> LedgerId:
    if len(name) != _ID_DIGITS or not (name.isascii() and name.isdigit()) or int(name) > MAX_LEDGER_ID:
        raise MalformedRecord(f"{key}: {name[:40]!r} is not a ledger id of {_ID_DIGITS} digits")
    return int(name)


def _check_pages(key: str, head: Head) -> None:
    """Raise MalformedRecord if a head claims too many pages: programs go through all from `first` to `paged`."""
    pages = (head.paged - head.first) // PAGE_SEGMENTS
    if head.first < 0 or pages > MAX_PAGES:
        raise MalformedRecord(
            f"{key}: pages from segment {head.first} to {head.paged} are {pages}, the limit is {MAX_PAGES}; delete old "
            "segments first"
        )


def _check_intent(key: str, value: bytes) -> None:
    """Raise MalformedRecord for an intent that servers could not read: they go through the intents of all streams."""
    try:
        raw = json.loads(value)
        fields = [raw["epoch"], raw["purpose"], raw["time"], raw["state"], raw.get("query", ""), raw.get("place", "")]
        "".join(one for one in fields if isinstance(one, str)).encode()  # half a character is never written again
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not a ledger's intent ({error!r})") from None
    if [is_int64(one) or type(one) for one in fields] != [True, str, True, str, str, str]:
        raise MalformedRecord(f"{key}: not a ledger's intent (a field has another type, or is too large)")
