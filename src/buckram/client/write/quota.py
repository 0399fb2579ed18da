"""The details of a used-up quota, which a writer asks a bookie for: an answer to an add has only a code.

Not here: who holds to quotas (`bookie/service/rate_limiter.py`).
"""

from __future__ import annotations

from buckram.core.wire.messages import QUOTAS, BookieInfoReply, GetBookieInfo
from buckram.errors import BuckramError, QuotaExceeded
from buckram.runtime.net.pool import BookiePool
from buckram.types import BookieId

_WITHIN_S = 2.0


async def used_up(pool: BookiePool, bookie: BookieId, namespace: str) -> QuotaExceeded:
    """Return the error for a namespace that a bookie answered QUOTA_EXCEEDED for, with figures if the bookie gives
    them."""
    unknown = QuotaExceeded(namespace, "stored_bytes or connections")
    try:
        reply = await pool.call(bookie, GetBookieInfo(QUOTAS), timeout_s=_WITHIN_S)
    except BuckramError:
        return unknown
    figures = reply.figures if isinstance(reply, BookieInfoReply) else {}
    used, limit = (figures.get(f"{namespace}/stored_bytes/{what}") for what in ("used", "limit"))
    return unknown if used is None or limit is None else QuotaExceeded(namespace, "stored_bytes", used, limit)
