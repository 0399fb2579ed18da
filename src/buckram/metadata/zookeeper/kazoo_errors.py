"""Translates kazoo's exceptions into errors of the operation that met them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo import exceptions as kazoo

from buckram.errors import (
    AccessRefused,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    MetadataUnavailable,
    NoSuchKey,
    VersionConflict,
)
from buckram.metadata.tree.key_grammar import split
from buckram.metadata.zookeeper.session import READS
from buckram.types import Create, KeyOp

CONNECTION_ERRORS = (
    kazoo.ConnectionLoss,
    kazoo.ConnectionClosedError,
    kazoo.OperationTimeoutError,
    kazoo.SessionExpiredError,
    kazoo.SessionMovedError,
)


def translate(error: Exception, kind: str, key: str, version: int, hosts: str) -> Exception:
    """Return the error of Buckram's tree for an operation `kind` on `key` that named `version`."""
    match error:
        case kazoo.NoNodeError():
            return NoSuchKey(split(key)[0] if kind == "create" else key)
        case kazoo.NodeExistsError():
            return KeyExists(key)
        case kazoo.BadVersionError():
            return VersionConflict(key, version)
        case kazoo.NotEmptyError():
            return KeyNotEmpty(key)
        case kazoo.NoAuthError():
            where = key if kind in READS or kind == "set" else f"{key} or its parent"
            return AccessRefused(where, f"the access list does not allow this session to {_VERBS.get(kind, kind)} it")
        case kazoo.InvalidACLError():
            return AccessRefused(key, "the servers do not know the credentials that its access list needs")
        case kazoo.NoChildrenForEphemeralsError():
            return InvalidArgument(f"key {key}: {split(key)[0]} is bound to a session and cannot have children")
        case kazoo.BadArgumentsError():
            return InvalidArgument(f"key {key}: ZooKeeper does not take it")
        case kazoo.AuthFailedError():
            return AccessRefused(hosts, "the servers refuse this session's credentials")
    return unanswered(kind, key, hosts, type(error).__name__)


def unanswered(kind: str, key: str, hosts: str, why: str) -> MetadataUnavailable:
    unsure = "" if kind in READS else "; whether it happened is not known"
    return MetadataUnavailable(f"{key}: {kind} at ZooKeeper {hosts}: {why}{unsure}")


def first_failure(ops: Sequence[KeyOp], results: Sequence[Any], hosts: str) -> Exception | None:
    """Return why a multi did not happen, None if it did; kazoo gives a result or an exception for each operation."""
    failures = [(op, result) for op, result in zip(ops, results, strict=False) if isinstance(result, Exception)]
    for op, failure in failures:
        # Operations around the failed one only report that they were rolled back or not tried.
        if not isinstance(failure, kazoo.RolledBackError | kazoo.RuntimeInconsistency):
            if isinstance(op, Create):
                return translate(failure, "create", op.key, -1, hosts)
            return translate(failure, "multi", op.key, op.version, hosts)
    if failures or len(results) != len(ops):
        return unanswered("multi", ops[0].key, hosts, "an answer that names no reason")
    return None


_VERBS = {"get": "read", "exists": "read", "children": "list", "set": "change", "multi": "change"}
