"""Loads by our client, in a process that stays: the counterpart of src/bench/Load.java, with the same requests.

A JSON request a line on standard input; on standard output {"phase": "begin"} and {"phase": "end"} around the measured
period, then {"result": ...} or {"error": ...}.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from buckram import Client, connect
from buckram.cli.bench.load import Tally, WriteLoad, write
from buckram.config import ClientConfig
from buckram.runtime.net.tcp import TcpNetwork
from buckram.runtime.process.process_setup import loop_factory
from buckram.runtime.production import production_runtime

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999)
"""Percentiles of the latency plot; the same as in Load.java."""


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


@contextlib.contextmanager
def counting() -> Iterator[None]:
    say(phase="begin")
    yield
    say(phase="end")


async def run(request: dict[str, Any]) -> dict[str, Any]:
    config, runtime = None, None
    if request.get("remote"):
        config = ClientConfig(local_read_bytes=0)
        runtime = replace(production_runtime(), network=TcpNetwork(local=False))
    async with connect(request["uri"], config=config, runtime=runtime) as client:
        match request["load"]:
            case "write" | "paced":
                return await _write(client, request)
            case "fill":
                return await _fill(client, request)
            case "sequential":
                return await _sequential(client, request)
            case "random":
                return await _random(client, request)
            case "drop":
                for ledger in request["ledgers"]:
                    await client.delete(ledger)
                return {}
        raise ValueError(f"no load {request['load']!r}")


async def _write(client: Client, request: dict[str, Any]) -> dict[str, Any]:
    shape = "/".join(str(request.get(*part)) for part in (("e", 3), ("qw", 3), ("qa", 2)))
    load = WriteLoad(
        request.get("ledgers", 1), request.get("size", 1024), shape, request.get("seconds", 20.0),
        rate=request.get("rate", 5000.0) if request["load"] == "paced" else 0.0,
        outstanding=request.get("outstanding", 4000), run=request.get("run", 0),
    )  # fmt: skip
    tallies: list[Tally] = []
    began = 0.0

    @contextlib.contextmanager
    def measured(tally: Tally) -> Iterator[None]:
        nonlocal began
        tallies.append(tally)
        began = time.perf_counter()
        with counting():
            yield

    figures = await write(client, load, measured=measured)
    if figures["errors"] or figures["degraded"]:
        raise RuntimeError(f"{figures['errors']} failed adds, degraded: {figures['degraded']}")
    found = tallies[0].quantiles(SHARES)
    entries = 0
    for ledger in figures["ledgers"]:
        async with client.open(ledger) as reader:
            entries += reader.last_confirmed + 1
    return {
        "ledgers": figures["ledgers"], "entries": figures["acked"], "all_entries": entries,
        "per_s": figures["adds_per_s"], "p50_ms": figures["p50_ms"], "p99_ms": figures["p99_ms"],
        "p999_ms": figures["p999_ms"], "max_ms": round(max(wait for wait, _ in tallies[0].waits) * 1000, 3),
        "latency_ms": dict(zip(map(str, SHARES), found, strict=True)),
    }  # fmt: skip


async def _fill(client: Client, request: dict[str, Any]) -> dict[str, Any]:
    """Write a given number of entries over all ledgers, without a time limit."""
    body = random.Random(7).randbytes(request.get("size", 1024))
    shape = "/".join(str(request.get(*part)) for part in (("e", 3), ("qw", 3), ("qa", 2)))
    writers = [await client.create(ensemble=shape) for _ in range(request.get("ledgers", 1))]
    total, batch = request["entries"], 1000
    sizes = iter([min(batch, total - at) for at in range(0, total, batch)])

    async def chain(number: int) -> None:
        for size in sizes:
            await writers[number % len(writers)].append_many([body] * size)

    began = time.perf_counter()
    with counting():
        await asyncio.gather(*(chain(number) for number in range(max(4, len(writers)))))
    took = time.perf_counter() - began
    for writer in writers:
        await writer.close()
    ledgers = [writer.ledger_id for writer in writers]
    return {"ledgers": ledgers, "entries": total, "all_entries": total, "per_s": total / took}


async def _sequential(client: Client, request: dict[str, Any]) -> dict[str, Any]:
    """Read one ledger from end to end, again and again, by one reader; digests are checked."""
    size = request.get("size", 1024)
    async with client.open(request["ledgers"][0]) as reader:
        expected = reader.last_confirmed + 1

        async def reading(seconds: float) -> int:
            until = time.perf_counter() + seconds
            read = 0
            while True:
                passed = 0
                async with contextlib.aclosing(reader.payload_chunks()) as chunks:
                    async for payloads in chunks:
                        if len(payloads[0]) != size or len(payloads[-1]) != size:
                            raise RuntimeError(f"entry {passed} has {len(payloads[0])} bytes")
                        passed += len(payloads)
                        if time.perf_counter() > until:
                            return read + passed
                if passed != expected:
                    raise RuntimeError(f"{passed} entries of {expected}")
                read += passed

        await reading(request.get("warm", 2.0))
        began = time.perf_counter()
        with counting():
            read = await reading(request.get("seconds", 10.0))
        took = time.perf_counter() - began
    return {"entries": read, "per_s": read / took}


async def _random(client: Client, request: dict[str, Any]) -> dict[str, Any]:
    """Single entries at random places of several ledgers, `outstanding` at a time."""
    chosen = random.Random(request.get("seed", 1))
    async with contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(client.open(ledger)) for ledger in request["ledgers"]]
        tally = Tally()

        async def chain(until: float) -> None:
            while (began := time.perf_counter()) < until:
                reader = chosen.choice(readers)
                await reader.get(chosen.randint(0, reader.last_confirmed))
                tally.add(time.perf_counter() - began, 1)

        async def chains(seconds: float) -> None:
            until = time.perf_counter() + seconds
            await asyncio.gather(*(chain(until) for _ in range(request.get("outstanding", 64))))

        await chains(request.get("warm", 2.0))
        tally, began = Tally(), time.perf_counter()
        with counting():
            await chains(request.get("seconds", 20.0))
        took = time.perf_counter() - began
    return {"entries": tally.acked, "per_s": tally.acked / took, **tally.percentiles()}


def main() -> None:
    gc.collect()
    gc.freeze()  # a look at every module's objects takes 8 ms, which the adds of that time would wait
    for line in sys.stdin:
        try:
            with asyncio.Runner(loop_factory=loop_factory(os.environ)) as runner:
                result = runner.run(run(json.loads(line)))
            say(result=result)
        except Exception:  # told to whoever asked
            say(error=traceback.format_exc())
        gc.collect()


if __name__ == "__main__":
    main()
