"""Tracks failing attempts to become a machine's leader, and decides when callers must learn of the error.

Not here: the attempts themselves and passing the error on (`state/machine/replica.py`), the pauses between them
(`core/backoff.py`).
"""

from __future__ import annotations

import asyncio

from buckram.client.shared.services import Services
from buckram.errors import BuckramError, NotEnoughBookies

_TROUBLE_S = 30.0
"""Time of uninterrupted failures after which callers that wait for the leadership get the error, seconds."""


class Attempts:
    """The attempts of one replica. Times are those of the running loop, in seconds."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._failing_since: float | None = None
        """Time of the first of the failures so far, None after a success."""

    def begin_anew(self) -> None:
        """Forget the failures so far: one attempt succeeded, or a caller asks again."""
        self._failing_since = None

    async def hopeless(self, error: BuckramError, began: float) -> bool:
        """Return whether callers that wait for the leadership get the error of the attempt that began at `began`.

        They do after half a minute of errors, when no bookie runs, or when the log needs more bookies than the cluster
        has.
        """
        now = self._loop.time()
        if self._failing_since is None or now - began >= _TROUBLE_S:  # it waited that long for another leader
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
