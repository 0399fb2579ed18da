"""Limits on changes of a stream's head by principals who are no administrators, beyond the ledgers that it names. Pure.

The janitor has all rights and acts on a head as it is: it deletes a stream that is marked as being deleted, and a fork
that is never completed. So setting these marks is a deletion. It also reads the heads of all streams, so a head that no
program could process is refused.

Not here: the ledgers that a head names (`core/security/ledger_claims.py`), the owner of a uid
(`bookie/service/metadata/change_gate.py`), the purpose of a stream (`core/streams/metadata/purposes.py`).
"""

from __future__ import annotations

import re

from buckram.core.streams.metadata.head import Head
from buckram.core.streams.policy import check_overrides
from buckram.errors import InvalidArgument

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


__all__ = ["begins_deletion", "head_change_refusal", "head_creation_refusal"]
