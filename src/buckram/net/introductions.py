"""Making sure who answers: what a client's connections say before anything else, and what has to be answered.

Not here: which bookie to expect (`client/shared/identities.py`), connections (`net/pool.py`, which calls this
module), and the bookie's answer (`bookie/service/dispatch.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from buckram.core.wire.introduction import Expected, Identity, objection
from buckram.errors import BuckramError, WrongBookie
from buckram.net.connection import Connection
from buckram.types import BookieId


def unheard(*_: object) -> None:
    """Nobody wants to hear of it."""


class Introductions:
    """`expect` says whom to expect, and None where whoever is there will do.

    `on_identity` hears of each bookie that proved to be the right one and may raise what keeps it from being used;
    `on_stranger` of each whose place another one has taken.
    """

    def __init__(
        self,
        expect: Callable[[BookieId], Expected | None],
        on_identity: Callable[[BookieId, Identity], None] = unheard,
        on_stranger: Callable[[BookieId], None] = unheard,
    ) -> None:
        self._expect, self._on_identity, self._on_stranger = expect, on_identity, on_stranger

    def incarnation(self, bookie_id: BookieId) -> str:
        """The one that is expected now; "": any."""
        expected = self._expect(bookie_id)
        return "" if expected is None else expected.introduction.incarnation

    async def exchange(self, connection: Connection) -> None:
        """The first exchange of a connection. WrongBookie, and what `on_identity` raises."""
        bookie_id = connection.bookie_id
        expected = self._expect(bookie_id)
        if expected is None:
            return
        await connection.introduce(expected.introduction)
        # Compared with what is known now: that may have changed meanwhile.
        wrong = self.mismatch(connection)
        if wrong is not None:
            self._on_stranger(bookie_id)
            raise wrong
        if connection.identity is not None:
            self._on_identity(bookie_id, connection.identity)

    def mismatch(self, connection: Connection) -> BuckramError | None:
        """Return the error that says why this connection must not be used, by what is known now; None if it may be."""
        said, bookie_id = connection.introduction, connection.bookie_id
        expected = self._expect(bookie_id)
        if expected is None or said is None:
            return None
        why = objection(expected, connection.identity)
        if not why and connection.identity is None and "" != said.incarnation != expected.introduction.incarnation:
            why = f"it has another incarnation by now, {expected.introduction.incarnation}"
        return WrongBookie(bookie_id, f"not to be found at {connection.address}: {why}") if why else None
