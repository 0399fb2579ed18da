"""Identification of bookies: the first exchange of a client's connection, and the answer that it requires.

Not here: which bookie to expect (`client/cluster/identities.py`), connections (`runtime/net/pool.py`, which calls this
module), and the bookie's answer (`bookie/service/dispatch.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from buckram.core.wire.introduction import Expected, Identity, refusal
from buckram.errors import BuckramError, LoginRequired, WrongBookie
from buckram.runtime.net.connection import Connection
from buckram.types import BookieId

NO_TOKEN = (
    "it asks for a login, and there is no token: set one (BUCKRAM_TOKEN, BUCKRAM_AUTH_TOKEN_FILE, or a context's), "
    "and BUCKRAM_CA for the file of the cluster's authority where it speaks TLS only"
)


class ExpectedIdentities(Protocol):
    """Known identities of bookies, and callbacks for the identities with which they answer."""

    def expected(self, bookie_id: BookieId) -> Expected | None:
        """Return the identity that the bookie must have; None if any bookie at that address is accepted."""
        ...

    def on_identity(self, bookie_id: BookieId, identity: Identity) -> None:
        """The expected bookie answered. May raise a BuckramError, which keeps the connection from being used."""
        ...

    def on_wrong_bookie(self, bookie_id: BookieId) -> None:
        """Another bookie than the expected one answered in its place."""
        ...


class FixedIdentities:
    """Identities that are known from the start; a bookie without one may be any bookie. Answers change nothing."""

    def __init__(self, expected: Mapping[BookieId, Expected | None]) -> None:
        self._expected = expected

    def expected(self, bookie_id: BookieId) -> Expected | None:
        return self._expected.get(bookie_id)

    def on_identity(self, bookie_id: BookieId, identity: Identity) -> None:
        """Do nothing: no later answer depends on it."""

    def on_wrong_bookie(self, bookie_id: BookieId) -> None:
        """Do nothing: the connection is refused by its caller."""


class Introductions:
    """Comparison of the identity that each new connection's peer claims with the one that `identities` expects."""

    def __init__(self, identities: ExpectedIdentities) -> None:
        self._identities = identities

    def incarnation(self, bookie_id: BookieId) -> str:
        """Return the incarnation that is expected now; "" if any is accepted."""
        expected = self._identities.expected(bookie_id)
        return "" if expected is None else expected.introduction.incarnation

    async def exchange(self, connection: Connection) -> None:
        """Make the first exchange of a connection. Raises WrongBookie, and what `on_identity` raises."""
        bookie_id = connection.bookie_id
        expected = self._identities.expected(bookie_id)
        if expected is None:
            return
        await connection.introduce(expected.introduction)
        # Compared with what is known now: that may have changed meanwhile.
        wrong = self.mismatch(connection)
        if wrong is not None:
            self._identities.on_wrong_bookie(bookie_id)
            raise wrong
        if connection.identity is not None:
            self._identities.on_identity(bookie_id, connection.identity)

    def mismatch(self, connection: Connection) -> BuckramError | None:
        """Return the error because of which this connection must not be used, by present knowledge; None if it may be
        used."""
        said, bookie_id = connection.introduction, connection.bookie_id
        expected = self._identities.expected(bookie_id)
        if expected is None or said is None:
            return None
        why = refusal(expected, connection.identity)
        if why and connection.asks_login:
            return LoginRequired(bookie_id, f"not to be found at {connection.address}: {NO_TOKEN}")
        if not why and connection.identity is None and "" != said.incarnation != expected.introduction.incarnation:
            why = f"it has another incarnation by now, {expected.introduction.incarnation}"
        return WrongBookie(bookie_id, f"not to be found at {connection.address}: {why}") if why else None
