"""Effects of operations on data, and the permissions that each needs, the same in every interface.

Interfaces name their operations differently (`CREATE` with `overwrite`, `PUT`, `completeUpload`, a write of SQL); the
permission depends only on the effect on the data. Pure. Not here: the owner of the data
(`core/security/namespace_rules.py`, and for objects `core/security/object_names.py`), and the permissions of principals
(`core/security/acl.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from buckram.core.security.key_access import KeyUse
from buckram.core.wire.messages import (
    OP_ADD,
    OP_AUTH,
    OP_BATCH_READ,
    OP_BOOKIE_INFO,
    OP_FORCE,
    OP_LIST_ENTRIES,
    OP_PULL,
    OP_READ,
    OP_READ_LAC,
    OP_START_TLS,
    OP_WRITE_LAC,
)


class Effect(Enum):
    """Effects of an operation on a stream, a ledger, an object, a database or a namespace."""

    LIST = "its name, size and times are seen"
    READ = "what is in it is seen"
    ADD = "there is something more, and nothing else has changed"
    REPLACE = "something else is under its name"
    WRITE = "rows of a database are others"
    REMOVE = "it is there no more"
    TRIM = "its oldest records are gone, by its policy or by hand"
    SET = "it has another policy, other properties or its end"
    FOLLOW = "a reader's place in it is kept, moved or forgotten"
    MAKE = "there is a new stream or database"
    ADMINISTER = "the namespace has another policy, other quotas, or another side"


NEEDS: Mapping[Effect, frozenset[str]] = {
    Effect.LIST: frozenset({"read"}),
    Effect.READ: frozenset({"read"}),
    Effect.ADD: frozenset({"append"}),
    Effect.REPLACE: frozenset({"append", "delete"}),
    Effect.WRITE: frozenset({"append"}),
    Effect.REMOVE: frozenset({"delete"}),
    Effect.TRIM: frozenset({"append"}),
    Effect.SET: frozenset({"append"}),
    Effect.FOLLOW: frozenset({"read"}),
    Effect.MAKE: frozenset({"create"}),
    Effect.ADMINISTER: frozenset({"admin"}),
}
"""Permissions that each effect needs. A rename is READ and REMOVE of the old name, and ADD or REPLACE of the new one.
Writers change their own stream, as by retention, and make ledgers for it with the permission that they have, `append`.
Rows of a database are changed with `append` alone: its log only grows, and a writer of SQL may write all of it. A
statement is always READ as well."""

OF_OPERATIONS: Mapping[int, Effect | None] = {
    OP_ADD: Effect.ADD,
    OP_PULL: Effect.ADD,
    OP_WRITE_LAC: Effect.ADD,
    OP_FORCE: Effect.ADD,
    OP_READ: Effect.READ,
    OP_BATCH_READ: Effect.READ,
    OP_READ_LAC: Effect.READ,
    OP_LIST_ENTRIES: Effect.LIST,
    OP_BOOKIE_INFO: None,
    OP_AUTH: None,
    OP_START_TLS: None,
}
"""Effect of each operation of the bookie protocols on the ledger that it names; None: it names no ledger."""
FENCING = Effect.SET
"""Effect of a read with fencing, which ends the ledger for its writer."""


class KeyContents(Enum):
    """Kinds of keys of the metadata store that principals with grants may use, by their contents."""

    LEDGER = "a ledger's record"
    SHARE = "that a stream holds a ledger"
    NAMESPACE = "a namespace's policy, or its replication"
    QUOTA = "a namespace's quotas"
    STREAMS = "the streams of a namespace"
    HEAD = "a stream's head"
    DATA = "what a stream's writers know"
    DATA_ROOT = "that a uid is taken"
    CURSOR = "a reader's place"


_SEEN = {KeyUse.READ: Effect.LIST, KeyUse.LIST: Effect.LIST}
_CHANGES = (KeyUse.CREATE, KeyUse.SET, KeyUse.DELETE)
OF_KEYS: Mapping[KeyContents, Mapping[KeyUse, Effect]] = {
    KeyContents.LEDGER: {**_SEEN, KeyUse.CREATE: Effect.ADD, KeyUse.SET: Effect.SET, KeyUse.DELETE: Effect.REMOVE},
    KeyContents.SHARE: {**_SEEN, **dict.fromkeys(_CHANGES, Effect.SET)},
    KeyContents.NAMESPACE: {**_SEEN, **dict.fromkeys(_CHANGES, Effect.ADMINISTER)},
    KeyContents.QUOTA: {KeyUse.READ: Effect.LIST},
    KeyContents.STREAMS: {**_SEEN, **dict.fromkeys(_CHANGES, Effect.MAKE)},
    KeyContents.HEAD: {**_SEEN, KeyUse.CREATE: Effect.MAKE, KeyUse.SET: Effect.SET, KeyUse.DELETE: Effect.REMOVE},
    KeyContents.DATA: {**_SEEN, **dict.fromkeys(_CHANGES, Effect.SET)},
    KeyContents.DATA_ROOT: {**_SEEN, KeyUse.CREATE: Effect.MAKE, KeyUse.SET: Effect.SET, KeyUse.DELETE: Effect.SET},
    KeyContents.CURSOR: {**_SEEN, **dict.fromkeys(_CHANGES, Effect.FOLLOW)},
}
"""Effect of each use of each kind of key. A use without a row, and a key of no such kind, is for administrators."""


def on_log_of_objects(effect: Effect) -> Effect:
    """Return the effect that a direct write to the log of all objects is judged as: `append` is not enough, since each
    record of the log can replace or remove an object."""
    return Effect.REPLACE if NEEDS[effect] == NEEDS[Effect.ADD] else effect


def lacking(effect: Effect, granted: Collection[str]) -> list[str]:
    """Return the permissions that an effect needs and that were not granted, sorted."""
    return sorted(NEEDS[effect] - set(granted))
