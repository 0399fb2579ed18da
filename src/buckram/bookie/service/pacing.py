"""GivingWay: paces the tenants that use much while one that uses little competes with them.

Not here: how fast (`core/tenants/pacing.py`), what waits and goes on (`bookie/service/rate_limiter.py`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping

from buckram.bookie.service.tenant import Tenant
from buckram.core.tenants.pacing import TICK_S, Headroom

LINE_S = 2.0
"""Longest wait in a paced line, seconds: pacing never makes a line slower than that, because clients give adds up."""


class TenantPacer:
    """Paces the larger tenants while tenants compete for the bookie, as `contended` tells."""

    def __init__(self, tenants: Mapping[str, Tenant], contended: Callable[[], bool]) -> None:
        self._tenants, self._contended = tenants, contended
        self._loop = asyncio.get_running_loop()
        self._headroom = Headroom[Tenant]()
        self._before: dict[Tenant, int] = {}
        self._paced: dict[Tenant, None] = {}
        self._took_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = 0.0

    @property
    def active(self) -> bool:
        """Return whether usage is being measured; the adds of all tenants have to be looked at then."""
        return self._timer is not None

    def begin(self) -> None:
        """Begin to measure usage, because tenants compete now. Idempotent."""
        if self._timer is None:
            self._before = {tenant: tenant.bytes_used for tenant in self._tenants.values()}
            self._rest()

    def _rest(self) -> None:
        self._looked_at = self._loop.time()
        self._took_s = None
        self._timer = self._loop.call_later(TICK_S, self._look)

    def durable(self, tenants: Iterable[Tenant], took_s: float) -> None:
        """Record the time that adds of these tenants took from their arrival until they were durable."""
        longest = self._timer is not None and (self._took_s is None or took_s > self._took_s)
        if longest and any(map(self._headroom.is_small, tenants)):
            self._took_s = took_s

    def _look(self) -> None:
        now = self._loop.time()
        elapsed = now - self._looked_at
        used = {}
        for tenant in self._tenants.values():
            bytes_used = tenant.bytes_used
            used[tenant] = bytes_used - self._before.get(tenant, bytes_used)
            self._before[tenant] = bytes_used
        if not self._contended() and len(self._headroom) < 2:
            self._timer = None
            self._headroom.forget()
        else:
            # An add that comes while the loop is busy waits before it is seen.
            took_s = None if self._took_s is None else self._took_s + elapsed - TICK_S
            seen = {tenant: size for tenant, size in used.items() if size or tenant in self._headroom}
            self._headroom.look(now, elapsed, seen, took_s)
            self._rest()
        self._pace(now)

    def _pace(self, now: float) -> None:
        headroom, large = self._headroom, dict[Tenant, None]()
        if headroom.pace < math.inf:
            large = dict.fromkeys(t for t in self._tenants.values() if t in headroom and not headroom.is_small(t))
        for tenant in self._paced.keys() - large.keys():
            tenant.pace(None, now)
        for tenant in large:
            tenant.pace(max(headroom.pace / len(large), tenant.adds.held_bytes / LINE_S), now)
        self._paced = large

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
