"""The grammar and limits that every key store enforces before it does anything: paths, sizes and versions.

Not here: trees and sessions (`metadata/tree/memory.py`, `metadata/sqlite/keys.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, Protocol, runtime_checkable

from buckram.errors import InvalidArgument, NoSuchKey, ValueTooLarge
from buckram.seams import MAX_MULTI_BYTES, MAX_VALUE_BYTES, KeyStore
from buckram.types import Create, KeyOp, KeyValue, SetValue

MAX_KEY_BYTES = 1024
MAX_MULTI_OPS = 10_000
MAX_PAGE = 10_000


def check_key(key: str) -> None:
    """Raise InvalidArgument unless `key` is "/a/b": no empty, "." or ".." part, no control character, at most 1024
    bytes.
    """
    badly = not key.startswith("/") or key.endswith("/") or "//" in key
    if badly or ("/." in key and not {".", ".."}.isdisjoint(key.split("/"))):
        raise InvalidArgument(f"key {key[:200]!r}: must be like /a/b, without empty parts, '.' or '..'")
    # ZooKeeper refuses these characters, so no store takes them.
    odd = not key.isascii() and any("\ud800" <= c <= "\uf8ff" or c >= "\ufff0" for c in key)
    if odd or not key.isprintable():
        raise InvalidArgument(f"key {key[:200]!r}: holds a character that not every store can keep; use printable ones")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidArgument(f"key {key[:40]!r}...: {len(key.encode())} bytes, the limit is {MAX_KEY_BYTES}")


def check_parent(parent: str, limit: int) -> None:
    """Check the argument of a listing like `check_key`; "/" is allowed too."""
    if parent != "/":
        check_key(parent)
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidArgument(f"limit {limit}: ask for 1 to {MAX_PAGE} names at a time and go on after the last")


def check_op(op: KeyOp) -> int:
    """Return the bytes that the operation counts for. Raises InvalidArgument, ValueTooLarge."""
    check_key(op.key)
    size = 0
    if isinstance(op, Create | SetValue):
        size = len(op.value)
        if size > MAX_VALUE_BYTES:
            raise ValueTooLarge(op.key, size, MAX_VALUE_BYTES)
    if not isinstance(op, Create) and op.version < 0:
        raise InvalidArgument(f"key {op.key}: version {op.version}: name the version that was read (0 or more)")
    return size + len(op.key.encode())


def check_multi(ops: Sequence[KeyOp]) -> None:
    """Check each operation with `check_op`; raise ValueTooLarge if keys and values together are too large."""
    if len(ops) > MAX_MULTI_OPS:
        raise InvalidArgument(f"{len(ops)} operations in one multi, the limit is {MAX_MULTI_OPS}")
    size = sum(check_op(op) for op in ops)
    if size > MAX_MULTI_BYTES:
        raise ValueTooLarge(f"multi of {len(ops)} operations", size, MAX_MULTI_BYTES)


class Absent(Enum):
    """Says that there is no such key."""

    ABSENT = "absent"


ABSENT: Final[Literal[Absent.ABSENT]] = Absent.ABSENT


@runtime_checkable
class PromptKeys(Protocol):
    """Optional methods of a KeyStore, for a process that answers many requests in one loop: `peek` and `begin` wait for
    no other thread.
    """

    def peek(self, keys: Sequence[str]) -> Sequence[KeyValue | Absent | None]:
        """Return what keys hold, or that they do not exist, as of one moment, up to MAX_PAGE_BYTES of values.

        None: use `get`, which knows more, or raises the reason. So it is for keys that are bound to a session.
        """
        ...

    async def look(self, keys: Sequence[str]) -> list[KeyValue | None]:
        """Return what keys hold, as `get` does, in one turn of the thread that reads; None for one that does not exist.

        Raises MetadataError.
        """
        ...

    def begin(self, ops: Sequence[KeyOp]) -> asyncio.Future[list[int]]:
        """Begin a `multi`; the future gives the version of each key. Operations are carried out in the order of their
        beginning.

        Raises what `multi` raises for operations that no store takes.
        """
        ...


async def prompt_get(keys: KeyStore, prompt: PromptKeys | None, key: str) -> KeyValue:
    """Return what a key holds, without waiting where `prompt`, which is `keys`, knows it. Raises as `get` does."""
    found = None if prompt is None else prompt.peek([key])[0]
    if isinstance(found, Absent):
        raise NoSuchKey(key)
    return await keys.get(key) if found is None else found


def split(key: str) -> tuple[str, str]:
    """Return (parent, name); the parent of /a is /."""
    parent, _, name = key.rpartition("/")
    return parent or "/", name
