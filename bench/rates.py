"""Calls of many clients, one after the other for each: how many a second, how long they take, what CPU they cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from bench.machine import cpu_seconds

Call = Callable[[int], Coroutine[Any, Any, object]]
"""One call of the client with this number."""


@dataclass(frozen=True)
class Rate:
    """Measured rate of calls. CPU is in microseconds for each call, of this process and of the servers."""

    per_s: float
    p50_ms: float
    p99_ms: float
    client_us: float
    servers_us: float

    def figures(self, what: str, suffix: str = "") -> dict[str, Any]:
        """Return the figures of calls named `what`, such as tx."""
        return {
            f"{what}_per_s{suffix}": round(self.per_s),
            f"{what}_p50_ms{suffix}": round(self.p50_ms, 3),
            f"{what}_p99_ms{suffix}": round(self.p99_ms, 3),
            f"{what}_client_cpu_us{suffix}": round(self.client_us, 1),
            f"{what}_servers_cpu_us{suffix}": round(self.servers_us, 1),
        }


async def rate(clients: int, seconds: float, call: Call, servers: Sequence[int] = ()) -> Rate:
    """Have `clients` clients call for `seconds` seconds; `servers` are the processes that do the work for them."""
    took = list[float]()
    spent = sum(map(cpu_seconds, servers))
    began, cpu = time.perf_counter(), time.process_time()

    async def one(number: int) -> None:
        while (now := time.perf_counter()) - began < seconds:
            await call(number)
            took.append(time.perf_counter() - now)

    await asyncio.gather(*map(one, range(clients)))
    lasted, cpu = time.perf_counter() - began, time.process_time() - cpu
    spent = sum(map(cpu_seconds, servers)) - spent
    took.sort()
    done = len(took)
    return Rate(
        done / lasted, took[done // 2] * 1e3, took[done * 99 // 100] * 1e3, cpu / done * 1e6, spent / done * 1e6
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all does not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


__all__ = ["Call", "Rate", "percentile", "rate"]
