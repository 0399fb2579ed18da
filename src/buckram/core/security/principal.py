"""The principal of a connection: a name with the scheme by which it was authenticated, and roles.

Not here: authentication (`bookie/service/security/connection_gate.py`), authorisation (`core/security/key_access.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A principal. `name`: `token:alice`, `oidc:alice`, `cert:CN=alice`, `sasl:alice`, `unix:alice` or `anonymous`."""

    name: str
    roles: tuple[str, ...] = ()
    admin: bool = False

    def __str__(self) -> str:
        return self.name


ANONYMOUS = Principal("anonymous")
"""Principal of a connection without a login."""
EVERYBODY = Principal("anonymous", admin=True)
"""Principal of every connection to a bookie that requires no login."""
