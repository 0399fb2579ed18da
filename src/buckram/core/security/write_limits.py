"""Limits on what principals who are no administrators write into the metadata store: keys, heads and records. Pure.

The limits on keys (size of the value, length of the name, and number) are in one table, well above what honest programs
write, and below what would harm a metadata store: ZooKeeper reads a node, and a list of names, of at most 1 MB.

Changes of a stream's head have limits beyond the ledgers that it names. The janitor has all rights and acts on a head
as it is: it deletes a stream that is marked as being deleted, and a fork that is never completed, so setting these
marks is a deletion. It also reads the heads of all streams, so a head that no program could process is refused.
A ledger's record has limits at its creation and in changes.

Not here: counting keys, and the owner of a stream's uid (`bookie/service/metadata/change_gate.py`), the ledgers that a
head names (`core/security/ledger_claims.py`), the purpose of a stream (`core/streams/metadata/purposes.py`), the
changes of a record that are legal at all (`core/ledgers/metadata.py`), the permissions to make them
(`core/security/namespace_rules.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from buckram.core.healing.absences import parse_note
from buckram.core.ledgers.metadata import birth_of, is_certain
from buckram.core.security.ledger_claims import MAX_PAGES
from buckram.core.security.namespace_rules import ClusterKeys, record_in
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import MAX_NAME_BYTES, check_name
from buckram.core.streams.policy import check_overrides
from buckram.errors import InvalidArgument, MalformedRecord
from buckram.types import LedgerMetadata

KB = 1024

STORED = 512 * KB
"""Maximum bytes of a value that every metadata store accepts (`seams.MAX_VALUE_BYTES`)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Limits of one kind of keys."""

    what: str
    """Name of the kind in messages."""
    most_bytes: int
    """Maximum bytes of a value."""
    siblings: int | None = None
    """Maximum number of keys of this kind below the same parent; None: a quota limits them, or there is only one."""
    session_key: bool = False
    """True if it may be a key that is removed with the session that made it."""
    name_bytes: int = MAX_NAME_BYTES
    """Maximum bytes of the last part of a key."""


HEAD = Bound("the head of a stream", STORED)
"""Head of a stream: 512 tail rows, 1,000 transactions, 64 KB of properties; the maximum that stores accept."""

NAMESPACE = Bound("the record of a namespace", 64 * KB)
"""Record of a namespace: a policy of some dozen settings, or a link to another cluster."""

FOLDER = Bound("the parent of a stream's keys", KB)
"""Parent of a stream's keys; it is empty, and a stream has a dozen kinds of keys."""

SHARE = Bound("the key by which a stream holds a ledger", KB, 10_000)
"""Key by which a stream holds a ledger: a name, one for each fork."""

BEHIND = Bound("the note of a member that lacks entries", KB, 100_000, name_bytes=2 * MAX_NAME_BYTES)
"""Note of a member that lacks entries: empty, one for each ledger with a failed member, until that was checked."""

DEGRADED = Bound("a client's report of a slow bookie", 4 * KB, 10_000, session_key=True, name_bytes=2 * MAX_NAME_BYTES)
"""Report of a client on a slow bookie: a sentence, one for each client and slow bookie."""

OF_STREAM: dict[str, Bound] = {
    # Keys that are alone.
    "lease": Bound("the lease of a stream", 4 * KB, session_key=True),  # the writer's name, at most 200 bytes
    "insertion": Bound("the request of a bulk step to a writer", 128 * KB, session_key=True),  # 100 ledgers
    "progress": Bound("the progress of a mirror", 64 * KB),
    "backup": Bound("the record of a stream's backups", 64 * KB),
    "backing-up": Bound("the claim of a backup", KB, session_key=True),
    # Keys below a folder.
    "pages/": Bound("a page of segments", STORED, MAX_PAGES),  # 256 rows; of files 1 KB each
    "intents/": Bound("the intent of a ledger", 16 * KB, 40_000),  # a query and a place; a bulk step has 2,000
    "shared/": Bound("the mark of a shared ledger", KB, 40_000),  # empty; one for each segment of a fork
    "cursors/": Bound("a cursor", KB, 5_000),  # two numbers
    "writers/": Bound("the presence of a writer of objects", KB, 5_000, session_key=True),
    "replicas/": Bound("the presence of a replica", 16 * KB, 1_000, session_key=True),
    "exports/": Bound("the record of an export", STORED, 100),  # 40,000 ids; one for each directory
    "imports/": Bound("the record of an import", STORED, 1_000),  # 30,000 files; one for each source
}


def bound_of(places: ClusterKeys, key: str) -> Bound | None:
    """Return the limits of a key; None for a key without a row in the table, and for records of ledgers, which a quota
    limits."""
    if places.is_share(key):
        return SHARE
    if places.is_ledger(key) or not key.startswith(f"{places.own}/"):
        return None
    if places.head_of(key):
        return HEAD
    uid = places.uid(key)
    if not uid:
        if key.startswith(tuple(f"{folder}/" for folder in places.listed)):
            return NAMESPACE
        behind, degraded = places.told
        return BEHIND if key.startswith(behind) else DEGRADED if key.startswith(degraded) else None
    rest = key.removeprefix(f"{places.data}/{uid}").lstrip("/")
    folder, below, _ = rest.partition("/")
    if below:
        return OF_STREAM.get(f"{folder}/")
    return FOLDER if not rest or f"{rest}/" in OF_STREAM else OF_STREAM.get(rest)


def name_refusal(places: ClusterKeys, key: str, bound: Bound | None) -> str:
    """Return why no key may be created under this name, given its `bound`; "" if it may."""
    name = key.rpartition("/")[2]
    if bound is None:
        return f"no key of a stream is below {places.data}/UID like that" if places.uid(key) else ""
    if len(name.encode()) > bound.name_bytes:
        return f"its name has {len(name.encode())} bytes, {bound.what} has at most {bound.name_bytes}: choose another"
    if bound in (NAMESPACE, BEHIND, DEGRADED) and key.rpartition("/")[0] not in _parents(places):
        return f"{bound.what} has none below it"
    if bound is BEHIND and parse_note(name) is None:
        return "notes are named LEDGER@BOOKIE"
    if bound is HEAD or (bound is NAMESPACE and not key.startswith(f"{places.heads}/")):
        below = places.head_of(key).partition("/")[2] if bound is HEAD else name
        try:
            check_name("stream" if bound is HEAD else "namespace", below)
        except InvalidArgument as error:
            return str(error)
    if places.uid(key) and key.count("/") > places.data.count("/") + 3:
        return f"no key of a stream is more than two below {places.data}/UID"
    return ""


def _parents(places: ClusterKeys) -> tuple[str, ...]:
    """Return the only parents of keys that are named by namespaces, and of notes and reports of clients."""
    return (*places.listed, *(folder.removesuffix("/") for folder in places.told))


# -- heads of streams -----------------------------------------------------------------------------------------

_UID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Form of a uid, which is one part of the paths of keys and files. Uids of this software have 16 hexadecimal digits."""


def head_creation_refusal(head: Head) -> str:
    """Return why no principal but an administrator may create a stream with this head; "" if that is allowed."""
    if _UID.fullmatch(head.uid) is None:
        return f"its uid {head.uid[:70]!r} is not of 1 to 64 letters, digits, dashes and underscores"
    return _policy_refusal(head)


def head_change_refusal(before: Head, after: Head) -> str:
    """Return why the head may not be changed so; "" if it may."""
    if after.uid != before.uid:
        return "it keeps its own, and uses no uid of another stream"
    if before.deleting and not after.deleting:
        return "a stream that is being deleted stays so: some of it may be gone"
    if after.incomplete and not before.incomplete:
        return "a stream that is complete stays so: a fork that nobody completes is deleted"
    return "" if after.policy == before.policy else _policy_refusal(after)


def begins_deletion(before: Head, after: Head) -> bool:
    """Return whether the change marks the stream for deletion by the janitor. Giving up an incomplete fork is none."""
    return after.deleting and not before.deleting and not before.incomplete


def _policy_refusal(head: Head) -> str:
    try:
        check_overrides(head.policy)
    except InvalidArgument as error:
        return str(error)
    return ""


# -- records of ledgers ---------------------------------------------------------------------------------------

CHANGING = ("fragments", "state", "last_entry", "length")
"""Fields that writers, recovery and repair change. The creator token may be removed; all others never change."""

MOST_ENTRIES, MOST_BYTES = 10**10, 1 << 44
"""Limits on the entries and bytes that a record may claim, above any ledger that fits on a disk."""

_LASTING = ("ensemble_size", "write_quorum", "ack_quorum", "digest_type", "password", "creation_time_ms",
            "format_version")  # fmt: skip


def record_creation_refusal(value: bytes) -> str:
    """Return why no principal but an administrator may create a ledger with this record; "" if that is allowed.

    Entries are identified by id and birth. Without a birth of its own a ledger might pass for another one of its id.
    """
    try:
        record = record_in(value)
    except MalformedRecord as error:
        return str(error)
    if not is_certain(birth_of(record)):
        return "its record has no birth, 16 bytes that the client draws at random: upgrade the client"
    return _size_refusal(record)


def _size_refusal(record: LedgerMetadata) -> str:
    """Return why the record claims too many entries or bytes, which healing would look for one by one even if they were
    never written; "" if it does not."""
    last = max([record.last_entry or 0, *(fragment.first_entry for fragment in record.fragments)])
    if last >= MOST_ENTRIES:
        return f"it speaks of entry {last}, the limit is {MOST_ENTRIES} entries; begin another ledger"
    if (record.length or 0) > MOST_BYTES:
        return f"it speaks of {record.length} bytes, the limit is {MOST_BYTES}; begin another ledger"
    return ""


def lasting_change(before: LedgerMetadata, after: LedgerMetadata) -> str:
    """Return the name of a field that differs although it never changes in a ledger's life; "" if there is none."""
    for name in _LASTING:
        if getattr(before, name) != getattr(after, name):
            return name
    if dict(before.custom_metadata) != dict(after.custom_metadata):
        names = dict.fromkeys([*before.custom_metadata, *after.custom_metadata])
        changed = [one for one in names if before.custom_metadata.get(one) != after.custom_metadata.get(one)]
        return f"custom metadata {changed[0]!r}"
    if after.creator_token not in (0, before.creator_token):
        return "creator_token"
    return ""


def _step_refusal(before: LedgerMetadata, after: LedgerMetadata) -> str:
    """Return why no program leads from one record to the other; "" if one may.

    Healing and recovery rely on that: whoever repairs a closed ledger would find it open, and take that for a mistake
    of its own.
    """
    if after.state < before.state:
        return f"its state goes back from {before.state.name} to {after.state.name}"
    if before.closed and (after.last_entry, after.length) != (before.last_entry, before.length):
        return "the end of a ledger that is closed never changes"
    old, new = ([fragment.first_entry for fragment in one.fragments] for one in (before, after))
    if new[: len(old)] != old or (before.closed and len(new) > len(old)):
        return "where its ensembles begin never changes; new ones follow until it is closed"
    return ""


def record_change_refusal(before: bytes, after: bytes) -> str:
    """Return why a record may not be changed so; "" if it may."""
    try:
        record = record_in(after)
        changed = lasting_change(record_in(before), record)
    except MalformedRecord as error:
        return str(error)
    if not changed:
        return _step_refusal(record_in(before), record) or _size_refusal(record)
    return f"{changed} of a ledger's record never changes; only {', '.join(CHANGING)} do"
