"""The one seam of authorisation for keys of the metadata: may this principal do this to that key?"""

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


class KeyAccess(Protocol):
    """Decides without waiting: whatever it needs is in memory."""

    def refusal(self, principal: Principal, key: str, use: KeyUse) -> str:
        """Return why the principal must not do that; "" if it may."""
        ...


class OpenAccess:
    """Everybody may do everything: a cluster without authorisation."""

    def refusal(self, principal: Principal, key: str, use: KeyUse) -> str:
        return ""
