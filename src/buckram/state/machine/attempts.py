"""How long attempts to become a machine's leader have failed, and whether that may last.

Not here: the attempts themselves and who is told (`state/machine/replica.py`), the pauses between them
(`core/backoff.py`).
"""

from __future__ import annotations

import asyncio

from buckram.client.shared.services import Services
from buckram.errors import BuckramError, NotEnoughBookies

_TROUBLE_S = 30.0
"""Who waits for the leadership hears of an error that every attempt for so long has met."""


class Attempts:
    """The attempts of one replica. Times are those of the running loop, in seconds."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._failing_since: float | None = None
        """Since when no attempt has ended otherwise than by an error."""

    def begin_anew(self) -> None:
        """Forget the failures so far: one attempt succeeded, or somebody asks again."""
        self._failing_since = None

    async def hopeless(self, error: BuckramError, began: float) -> bool:
        """Whether who waits for the leadership hears of the error that ended the attempt begun then.

        So it is after half a minute of errors, when no bookie runs, or when the log needs more than the cluster has.
        """
        now = self._loop.time()
        if self._failing_since is None or now - began >= _TROUBLE_S:  # so long it waited for another leader
            self._failing_since = now
        if now - self._failing_since >= _TROUBLE_S or self._services.bookies.nobody() is not None:
            return True
        if not isinstance(error, NotEnoughBookies):
            return False
        try:
            store = self._services.store
            known, current = await store.known_bookies(), await store.bookies()
        except BuckramError:
            return False
        return error.needed > len({*known, *current.writable, *current.readonly})


__all__ = ["Attempts"]
