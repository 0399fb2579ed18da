"""Who speaks on a connection: a name that says how it was proved, and roles.

Not here: how it is proved (`bookie/service/login.py`), what it may do (`core/security/access.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """`name` is like `token:alice`, `oidc:alice`, `cert:CN=alice`, `sasl:alice`, `unix:alice` or `anonymous`."""

    name: str
    roles: tuple[str, ...] = ()
    admin: bool = False

    def __str__(self) -> str:
        return self.name


ANONYMOUS = Principal("anonymous")
"""Who has proved nothing."""
EVERYBODY = Principal("anonymous", admin=True)
"""The same on a bookie that asks nobody."""
