"""What whoever is held to grants may make of a stream's head, beyond the ledgers that it names. Pure.

The janitor acts by a head with all rights: it deletes a stream that is marked as being deleted, and a fork that nobody
completes. So these marks are deletions. And it goes through the heads of all streams: what no program can work with
stays out.

Not here: which ledgers a head names (`core/security/naming.py`), which uid is whose (`bookie/service/gate.py`), what a
stream is for (`core/streams/purposes.py`).
"""

from __future__ import annotations

import re

from buckram.core.streams.head import Head
from buckram.core.streams.policy import check_overrides
from buckram.errors import InvalidArgument

_UID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Paths of keys and of files have it as one part. Ours have 16 hexadecimal digits."""


def creation_refusal(head: Head) -> str:
    """Return why nobody who is held to grants may create a stream with this head; "" if that is allowed."""
    if _UID.fullmatch(head.uid) is None:
        return f"its uid {head.uid[:70]!r} is not of 1 to 64 letters, digits, dashes and underscores"
    return _policy_refusal(head)


def change_refusal(before: Head, after: Head) -> str:
    """Return why one head may not take another's place; "" if it may."""
    if after.uid != before.uid:
        return "it keeps its own, and uses no uid of another stream"
    if before.deleting and not after.deleting:
        return "a stream that is being deleted stays so: some of it may be gone"
    if after.incomplete and not before.incomplete:
        return "a stream that is complete stays so: a fork that nobody completes is deleted"
    return "" if after.policy == before.policy else _policy_refusal(after)


def begins_deletion(before: Head, after: Head) -> bool:
    """Whether the change has the stream deleted, by whoever comes. Giving up a fork that is not complete is none."""
    return after.deleting and not before.deleting and not before.incomplete


def _policy_refusal(head: Head) -> str:
    try:
        check_overrides(head.policy)
    except InvalidArgument as error:
        return str(error)
    return ""


__all__ = ["begins_deletion", "change_refusal", "creation_refusal"]
