"""Free space of bookies, for placements with weights: asked before a ledger is made, at most once a minute."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from buckram.core.wire.messages import FREE_DISK_SPACE, BookieInfoReply, GetBookieInfo
from buckram.errors import BuckramError, Code

if TYPE_CHECKING:
    from buckram.client.shared.services import Services
    from buckram.types import BookieId

_FRESH_S = 60.0
_ANSWERS_S = 1.0
"""Time bookies get to answer, seconds; one that does not keeps the weight it had, or gets the smallest."""


class Weights:
    """The age of the known weights, and their refresh."""

    def __init__(self) -> None:
        self._asked_at: float | None = None

    async def refresh(self, services: Services) -> None:
        now = asyncio.get_running_loop().time()
        if self._asked_at is not None and now - self._asked_at < _FRESH_S:
            return
        self._asked_at = now
        await asyncio.gather(*(_ask(services, bookie) for bookie in sorted(services.bookies.bookies.writable)))


async def _ask(services: Services, bookie: BookieId) -> None:
    with suppress(BuckramError):
        reply = await services.pool.call(bookie, GetBookieInfo(FREE_DISK_SPACE), timeout_s=_ANSWERS_S)
        if isinstance(reply, BookieInfoReply) and reply.code is Code.OK and reply.free_bytes is not None:
            services.bookies.free_bytes[bookie] = reply.free_bytes


__all__ = ["Weights"]
