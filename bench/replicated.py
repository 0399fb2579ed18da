"""Performance of replicated machines: commands of 64 clients, reads of each consistency, and a take-over. 3/3/2."""

from __future__ import annotations

import os
import time
from typing import Any

from bench.harness import Bench, inside
from bench.rates import rate
from buckram import Client, connect

Figures = dict[str, Any]
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
CLIENTS = 64


class Counts:
    """A number by name; a command adds to one."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def apply(self, command: Any) -> Any:
        name, add = command
        found = self.counts[name] = self.counts.get(name, 0) + add
        return found

    def snapshot(self) -> bytes:
        return "\n".join(f"{name} {count}" for name, count in sorted(self.counts.items())).encode()

    def restore(self, data: bytes) -> None:
        rows = (line.rsplit(" ", 1) for line in data.decode().splitlines())
        self.counts = {name: int(count) for name, count in rows}


def len_of(state: Counts) -> int:
    return len(state.counts)


async def load(bench: Bench, client: Client) -> Figures:
    """Commands and linearizable reads of 64 clients, one alone, stale reads of a follower, and a take-over."""
    ns = client.namespace()
    async with ns.machine("counts", Counts) as machine, connect(client.uri) as other:
        await machine.lead()

        async def execute(number: int) -> None:
            await machine.execute([f"client-{number}", 1])

        async def read(number: int) -> None:
            await machine.read(lambda state: state.counts.get("client-0"))

        async def stale(number: int) -> None:
            await follower.read(lambda state: state.counts.get("client-0"), "stale", at_most_s=1.0)

        await rate(CLIENTS, min(2.0, SECONDS), execute)
        figures = (await rate(CLIENTS, SECONDS, execute, bench.pids)).figures("command")
        figures |= (await rate(1, SECONDS / 3, execute, bench.pids)).figures("command", "_alone")
        figures |= (await rate(CLIENTS, SECONDS / 3, read, bench.pids)).figures("linearizable_read")
        began = time.perf_counter()
        follower = await other.namespace().machine("counts", Counts, stand=False)
        await follower.read(len_of, "stale", after=machine.applied)
        figures["catch_up_s"] = round(time.perf_counter() - began, 3)
        figures["stale_reads_per_s"] = round((await rate(CLIENTS, SECONDS / 3, stale)).per_s)
        began = time.perf_counter()
        await follower.lead(takeover=True)
        total = await follower.read(lambda state: sum(state.counts.values()))
        figures["take_over_s"] = round(time.perf_counter() - began, 3)
        figures["commands"] = total
        await follower.close()
    return figures


def machine() -> Figures:
    return inside(load)
