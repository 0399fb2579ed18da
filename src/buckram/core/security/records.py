"""Limits on a ledger's record for principals who are no administrators: at its creation, and in changes. Pure.

Not here: the changes of a record that are legal at all (`core/ledgers/metadata.py`), and the permissions to make them
(`core/security/namespaces.py`).
"""

from __future__ import annotations

from buckram.core.ledgers.metadata import birth_of, is_certain
from buckram.core.security.namespaces import record_in
from buckram.errors import MalformedRecord
from buckram.types import LedgerMetadata

CHANGING = ("fragments", "state", "last_entry", "length")
"""Fields that writers, recovery and repair change. The creator token may be removed; all others never change."""
MOST_ENTRIES, MOST_BYTES = 10**10, 1 << 44
"""Limits on the entries and bytes that a record may claim, above any ledger that fits on a disk."""
_LASTING = ("ensemble_size", "write_quorum", "ack_quorum", "digest_type", "password", "creation_time_ms",
            "format_version")  # fmt: skip


def creation_refusal(value: bytes) -> str:
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


def change_refusal(before: bytes, after: bytes) -> str:
    """Return why a record may not be changed so; "" if it may."""
    try:
        record = record_in(after)
        changed = lasting_change(record_in(before), record)
    except MalformedRecord as error:
        return str(error)
    if not changed:
        return _step_refusal(record_in(before), record) or _size_refusal(record)
    return f"{changed} of a ledger's record never changes; only {', '.join(CHANGING)} do"


__all__ = ["CHANGING", "change_refusal", "creation_refusal", "lasting_change"]
