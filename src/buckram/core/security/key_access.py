"""Interface of authorisation for keys of the metadata: whether the principal of a connection may use a key so."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from buckram.core.security.principal import Principal


class KeyUse(Enum):
    """Uses of a key by an operation. Listing the children of a key is LIST of that key."""

    READ = "read"
    LIST = "list"
    CREATE = "create"
    SET = "set"
    DELETE = "delete"


class KeyRules(Protocol):
    """Rules for one principal. They decide without waiting: the facts are in memory, or the decision is None."""

    def refusal(self, key: str, use: KeyUse, value: bytes | None = None) -> str | None:
        """Return why a use of a key is refused; "" if it is allowed, None if that depends on a value that `learn` was
        not given yet. `value`: the one that the key holds or is to hold."""
        ...

    def learn(self, key: str, value: bytes) -> None:
        """Take note of the value that a key holds."""
        ...

    def is_ledger(self, key: str) -> bool:
        """Return whether the key is a ledger's record."""
        ...

    def name_of(self, uid: str) -> str | None:
        """Return the full name of the stream with this uid; None if it is not known."""
        ...

    def trial(self) -> KeyRules:
        """Return a copy of the rules, whose `learn` does not change these."""
        ...


class KeyAccess(Protocol):
    def rules(self, principal: Principal) -> KeyRules | None:
        """Return the rules for a principal; None if it may do everything."""
        ...


class OpenAccess:
    """Access in a cluster without authorisation: every principal may do everything."""

    def rules(self, principal: Principal) -> KeyRules | None:
        return None
