"""Changes that are judged without a look at the store, because nothing that the judgement depends on is there: a cursor
is made, set or deleted, and so is the intent of a ledger whose id this connection was given; a namespace is made.

What is not allowed here is not refused: the whole judgement does that, and says why
(`bookie/service/metadata/change_gate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from buckram.core.security.key_access import KeyRules, KeyUse
from buckram.core.security.ledger_claims import LedgerKeyKind, NamingKey, naming_key, uid_and_ids
from buckram.core.security.namespace_rules import ClusterKeys
from buckram.core.security.write_limits import NAMESPACE, Bound, bound_of, name_refusal
from buckram.errors import InvalidArgument, MalformedRecord, ValueTooLarge
from buckram.metadata.tree.key_grammar import check_op
from buckram.types import CheckVersion, Create, KeyOp, LedgerId, SetValue

_MOST_PLAIN = 1000


class AtOnce:
    """`has_unused`: whether an id was given to this connection, which never tried to make a ledger with it. `room`:
    number of keys that may still be created below each parent before they are counted anew."""

    def __init__(
        self, places: ClusterKeys, rules: KeyRules, has_unused: Callable[[LedgerId], bool], room: dict[str, int]
    ) -> None:
        self._places, self._rules, self._has_unused, self._room = places, rules, has_unused, room
        self._known_plain: dict[str, tuple[Bound | None]] = {}
        self._records = f"{places.namespaces}/"

    def allows(self, ops: Sequence[KeyOp]) -> bool:
        """Return whether a change may be made that is about one key of a stream's data, or makes a namespace."""
        if ops and isinstance(ops[0], Create) and ops[0].key.startswith(self._records):
            return self._makes_namespace(ops[0], ops[1:])
        if len(ops) != 1:
            return False
        op = ops[0]
        if not op.key.startswith(f"{self._places.data}/"):
            return False
        if isinstance(op, SetValue):
            return self._sets(op)
        # The key of the uid itself stays as long as its stream.
        if isinstance(op, CheckVersion) or op.key.count("/") < self._places.data.count("/") + 2:
            return False
        if self._rules.is_ledger(op.key) or self._places.is_share(op.key):
            return False
        at = naming_key(self._places, op.key)
        if at is not None and at.kind is not LedgerKeyKind.INTENT:
            return False
        if not _has_form(op):
            return False
        if isinstance(op, Create):
            return self._creates(op, at)
        return self._rules.refusal(op.key, KeyUse.DELETE) == ""

    def plain(self, key: str) -> tuple[Bound | None] | None:
        """Return the bound of a key that names no ledger and is none, such as a cursor or a session's key; None for
        other keys. Remembered, because such keys are set again and again."""
        if (known := self._known_plain.get(key)) is not None:
            return known
        found = self.plain_anew(key)
        if found is not None:
            if len(self._known_plain) >= _MOST_PLAIN:
                self._known_plain.clear()
            self._known_plain[key] = found
        return found

    def plain_anew(self, key: str) -> tuple[Bound | None] | None:
        """Return the same of a key that is not used again."""
        places = self._places
        names = naming_key(places, key) is not None or self._rules.is_ledger(key) or places.is_share(key)
        return None if names or key.startswith(places.told) else (bound_of(places, key),)

    def _makes_namespace(self, op: Create, conditions: Sequence[KeyOp]) -> bool:
        """Return whether a namespace may be made, on condition that the record of another one is as its maker read
        it."""
        if op.ephemeral or len(conditions) > 1 or len(op.value) > NAMESPACE.most_bytes:
            return False
        if bound_of(self._places, op.key) is not NAMESPACE or name_refusal(self._places, op.key, NAMESPACE):
            return False
        for same in conditions:
            if not (isinstance(same, CheckVersion) and same.key.startswith(self._records) and _has_form(same)):
                return False
            if self._rules.refusal(same.key, KeyUse.READ) != "":
                return False
        return _has_form(op) and self._rules.refusal(op.key, KeyUse.CREATE, op.value) == ""

    def _sets(self, op: SetValue) -> bool:
        plain = self.plain(op.key)
        if plain is None or (plain[0] is not None and len(op.value) > plain[0].most_bytes):
            return False
        return self._rules.refusal(op.key, KeyUse.SET, op.value) == ""

    def _creates(self, op: Create, at: NamingKey | None) -> bool:
        bound = bound_of(self._places, op.key)
        if op.ephemeral or bound is None or len(op.value) > bound.most_bytes:
            return False
        if name_refusal(self._places, op.key, bound) or not self._may_name(op, at):
            return False
        return self._rules.refusal(op.key, KeyUse.CREATE, op.value) == "" and self._takes_room(op.key, bound)

    def _may_name(self, op: Create, at: NamingKey | None) -> bool:
        """Return whether the ledger that a new intent names can be nobody else's."""
        if at is None:
            return True
        try:
            return all(map(self._has_unused, uid_and_ids(at, op.key, op.value)[1]))
        except MalformedRecord:
            return False

    def _takes_room(self, key: str, bound: Bound) -> bool:
        if bound.siblings is None:
            return True
        parent = key.rpartition("/")[0]
        if self._room.get(parent, 0) < 1:  # or it is time to count
            return False
        self._room[parent] -= 1
        return True


def _has_form(op: KeyOp) -> bool:
    """Return whether every store takes the operation. If not, that is refused, which the audit trail is to have."""
    try:
        check_op(op)
    except (InvalidArgument, ValueTooLarge):
        return False
    return True


__all__ = ["AtOnce"]
