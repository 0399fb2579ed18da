"""The seam of authorisation for keys of the metadata: may who is on this connection do this to that key?"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from buckram.core.security.principal import Principal


class KeyUse(Enum):
    """What an operation does with a key. Listing a parent is LIST of the parent."""

    READ = "read"
    LIST = "list"
    CREATE = "create"
    SET = "set"
    DELETE = "delete"


class KeyRules(Protocol):
    """Decides for one principal, without waiting: whatever it needs is in memory, or it says that it does not know."""

    def refusal(self, key: str, use: KeyUse, value: bytes | None = None) -> str | None:
        """Return why that is not allowed, "" if it is, and None where it depends on what is not known yet. `value`:
        what the key is to hold, or holds."""
        ...

    def learn(self, key: str, value: bytes) -> None:
        """This is what the key holds."""
        ...

    def is_ledger(self, key: str) -> bool:
        """Return whether the key is a ledger's record."""
        ...

    def name_of(self, uid: str) -> str | None:
        """Return the full name of the stream with this uid; None if it is not known."""
        ...

    def trial(self) -> KeyRules:
        """Return rules that believe what `learn` tells them, and keep it to themselves."""
        ...


class KeyAccess(Protocol):
    def rules(self, principal: Principal) -> KeyRules | None:
        """Return the rules for a principal; None if it may do everything."""
        ...


class OpenAccess:
    """Everybody may do everything: a cluster without authorisation."""

    def rules(self, principal: Principal) -> KeyRules | None:
        return None
