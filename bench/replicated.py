"""What replicated machines do: commands of 64 clients, reads of each consistency, and a take-over. 3/3/2."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from bench.streams import measure
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


async def load(client: Client) -> Figures:
    """Commands and linearizable reads of 64 clients, one alone, stale reads of a follower, and a take-over."""
    ns = client.namespace()
    figures: Figures = {}
    async with ns.machine("counts", Counts) as machine, connect(client.uri) as other:
        await machine.lead()

        async def rate(clients: int, seconds: float, call: Any) -> tuple[float, float]:
            """Calls a second, and the median in milliseconds."""
            began, took = time.perf_counter(), []

            async def one(number: int) -> None:
                while (now := time.perf_counter()) - began < seconds:
                    await call(number)
                    took.append(time.perf_counter() - now)

            await asyncio.gather(*map(one, range(clients)))
            return len(took) / (time.perf_counter() - began), sorted(took)[len(took) // 2] * 1000

        async def execute(number: int) -> None:
            await machine.execute([f"client-{number}", 1])

        async def read(number: int) -> None:
            await machine.read(lambda state: state.counts.get("client-0"))

        async def stale(number: int) -> None:
            await follower.read(lambda state: state.counts.get("client-0"), "stale", at_most_s=1.0)

        await rate(CLIENTS, min(2.0, SECONDS), execute)
        cpu = time.process_time()
        began = time.perf_counter()
        commands, median = await rate(CLIENTS, SECONDS, execute)
        spent = (time.process_time() - cpu) / (time.perf_counter() - began)
        figures |= {"commands_per_s": round(commands), "command_p50_ms": round(median, 3)}
        figures["client_cpu_us_per_command"] = round(spent / commands * 1e6, 1)
        alone, median = await rate(1, SECONDS / 3, execute)
        figures |= {"commands_per_s_alone": round(alone), "command_p50_ms_alone": round(median, 3)}
        reads, median = await rate(CLIENTS, SECONDS / 3, read)
        figures |= {"linearizable_reads_per_s": round(reads), "linearizable_read_p50_ms": round(median, 3)}
        began = time.perf_counter()
        follower = await other.namespace().machine("counts", Counts, stand=False)
        await follower.read(len_of, "stale", after=machine.applied)
        figures["catch_up_s"] = round(time.perf_counter() - began, 3)
        figures["stale_reads_per_s"] = round((await rate(CLIENTS, SECONDS / 3, stale))[0])
        began = time.perf_counter()
        await follower.lead(takeover=True)
        total = await follower.read(lambda state: sum(state.counts.values()))
        figures["take_over_s"] = round(time.perf_counter() - began, 3)
        figures["commands"] = total
        await follower.close()
    return figures


def machine() -> Figures:
    return measure(load)
