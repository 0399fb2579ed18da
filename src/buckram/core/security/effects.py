"""What may be done by its effect, and which permissions it takes: the same behind every door.

Doors name their operations as they like (`CREATE` with `overwrite`, `PUT`, `completeUpload`, a write of SQL); what
counts is what becomes of the data. Pure. Not here: whose the data are (`core/security/namespaces.py`, and for objects
`core/security/object_names.py`), and who has which permission (`core/security/acl.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum


class Effect(Enum):
    """What becomes of a stream, a ledger, an object or a database."""

    LIST = "its name, size and times are seen"
    READ = "what is in it is seen"
    ADD = "there is something more, and nothing else has changed"
    REPLACE = "something else is under its name, or its rows are others"
    REMOVE = "it is there no more"
    TRIM = "its oldest records are gone, by its policy or by hand"
    SET = "it has another policy, other properties or its end"
    FOLLOW = "a reader's place in it is kept, moved or forgotten"
    MAKE = "there is a new stream, database or ledger"
    ADMINISTER = "the namespace has another policy, other quotas, or another side"


NEEDS: Mapping[Effect, frozenset[str]] = {
    Effect.LIST: frozenset({"read"}),
    Effect.READ: frozenset({"read"}),
    Effect.ADD: frozenset({"append"}),
    Effect.REPLACE: frozenset({"append", "delete"}),
    Effect.REMOVE: frozenset({"delete"}),
    Effect.TRIM: frozenset({"append"}),
    Effect.SET: frozenset({"append"}),
    Effect.FOLLOW: frozenset({"read"}),
    Effect.MAKE: frozenset({"create"}),
    Effect.ADMINISTER: frozenset({"admin"}),
}
"""A rename is READ and REMOVE of the one name, and ADD, or REPLACE, of the other. What writers do to their stream by
themselves, as retention does, takes what they have: `append`. Rows of a database are changed with `append` alone: its
log only grows, and who writes SQL may write all of it."""


def lacking(effect: Effect, granted: Collection[str]) -> list[str]:
    """The permissions that an effect takes and that were not granted, in order."""
    return sorted(NEEDS[effect] - set(granted))


__all__ = ["NEEDS", "Effect", "lacking"]
