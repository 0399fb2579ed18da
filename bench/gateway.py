"""A gateway under load: appends of many connections in each form, single appends at a rate, many tails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.harness import Bench, cluster
from bench.machine import cpu_seconds, memory

CONNECTIONS, BATCH, SIZE = 8, 100, 100
SINGLE_RATE = 500
TAILS, TAIL_RATE = 1000, 100
PATH = "/v2/namespaces/default/streams/{stream}/records?create=true"
_VALUE = b"x" * SIZE


class Sender:
    """One connection, which sends the same append again and again."""

    def __init__(self, port: int, stream: str, media: str, body: bytes) -> None:
        head = (
            f"POST {PATH.format(stream=stream)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {media}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._port, self._request = port, head.encode() + body
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self) -> None:
        """Append once and wait for the acknowledgement. Raises RuntimeError for any status but 200."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(size)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head.splitlines()[0]!r} {body[:300]!r}")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def bodies() -> dict[str, tuple[str, bytes]]:
    """Return a batch in each form: its media type and its bytes."""
    import pyarrow as pa

    batch = pa.record_batch({"value": pa.array([_VALUE] * BATCH, pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    line = json.dumps({"value": _VALUE.decode()}).encode() + b"\n"
    return {
        "raw": ("application/vnd.buckram.values", (struct.pack(">I", SIZE) + _VALUE) * BATCH),
        "arrow": ("application/vnd.apache.arrow.stream", bytes(sink.getvalue())),
        "ndjson": ("application/x-ndjson", line * BATCH),
    }


async def batches(port: int, form: str, seconds: float) -> float:
    """Records a second of 8 connections, each with one batch in flight."""
    media, body = bodies()[form]
    senders = [Sender(port, form, media, body) for _ in range(CONNECTIONS)]
    loop = asyncio.get_running_loop()
    await senders[0].send()
    began, sent = loop.time(), 0

    async def work(sender: Sender) -> None:
        nonlocal sent
        while loop.time() < began + seconds:
            await sender.send()
            sent += BATCH

    await asyncio.gather(*map(work, senders))
    took = loop.time() - began
    for sender in senders:
        sender.close()
    return sent / took


async def singles(port: int, seconds: float) -> list[float]:
    """Latencies in ms of single appends, each from the moment when it was due."""
    idle = [Sender(port, "single", "application/octet-stream", _VALUE) for _ in range(32)]
    await idle[0].send()
    loop = asyncio.get_running_loop()
    found: list[float] = []

    async def one(sender: Sender, due: float) -> None:
        await sender.send()
        found.append((loop.time() - due) * 1000)
        idle.append(sender)

    tasks: list[asyncio.Task[None]] = []
    began = loop.time()
    for number in range(int(seconds * SINGLE_RATE)):
        due = began + number / SINGLE_RATE
        await asyncio.sleep(max(0.0, due - loop.time()))
        sender = idle.pop() if idle else Sender(port, "single", "application/octet-stream", _VALUE)
        tasks.append(asyncio.ensure_future(one(sender, due)))
    await asyncio.gather(*tasks)
    for sender in idle:
        sender.close()
    return sorted(found)


class _Tail(asyncio.Protocol):
    """Counts the events of a tail, and throws them away."""

    def __init__(self, port: int) -> None:
        self._port, self.events = port, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        path = "/v2/namespaces/default/streams/tailed/tail"
        transport.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"id: ")


async def tails(port: int, pid: int, seconds: float) -> dict[str, Any]:
    """Measure the gateway's cost of 1,000 tails of one stream at 100 records a second."""
    loop = asyncio.get_running_loop()
    sender = Sender(port, "tailed", "application/octet-stream", _VALUE)
    await sender.send()
    made = [await loop.create_connection(lambda: _Tail(port), "127.0.0.1", port) for _ in range(TAILS)]
    for _ in range(TAIL_RATE):  # until all of them follow
        await sender.send()
    while not all(protocol.events for _, protocol in made):
        await sender.send()
        await asyncio.sleep(1 / TAIL_RATE)
    before, began, cpu = sum(protocol.events for _, protocol in made), loop.time(), cpu_seconds(pid)
    sent = 0
    while loop.time() < began + seconds:
        await asyncio.sleep(max(0.0, began + sent / TAIL_RATE - loop.time()))
        await sender.send()
        sent += 1
    took, spent = loop.time() - began, cpu_seconds(pid) - cpu
    events = sum(protocol.events for _, protocol in made) - before
    for transport, _ in made:
        transport.close()
    sender.close()
    return {
        "tails": TAILS,
        "tail_cores": round(spent / took, 3),
        "tail_events_per_s": round(events / took),
        "tail_rss_mb": round(memory(pid)["peak"] / 1e6),
    }


@contextlib.contextmanager
def running(bench: Bench) -> Iterator[tuple[int, int]]:
    """`buckram gateway` as a process; its port and its process id."""
    command = [sys.executable, "-m", "buckram", "gateway", "--metadata", bench.uri, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"buckram gateway ended with {process.wait()}")
            yield int(json.loads(line)["url"].rpartition(":")[2]), process.pid
        finally:
            process.terminate()


def _form(form: str, bench: Bench, port: int, pid: int, seconds: float) -> dict[str, Any]:
    """Records a second, and microseconds of CPU for a record: of the gateway, the bookies and the load."""

    def taken() -> list[float]:
        return [cpu_seconds(pid), sum(map(cpu_seconds, bench.pids)), time.process_time()]

    before, began = taken(), time.perf_counter()
    rate = asyncio.run(batches(port, form, seconds))
    took = time.perf_counter() - began
    spent = [now - was for now, was in zip(taken(), before, strict=True)]
    whose = zip(("gateway", "bookies", "load"), spent, strict=True)
    return {
        f"{form}_records_per_s": round(rate),
        f"{form}_gateway_cores": round(spent[0] / took, 2),
        **{f"{form}_{who}_cpu_us": round(one / (rate * took) * 1e6, 2) for who, one in whose},
        f"{form}_records_per_cpu_s": round(rate * took / sum(spent)),
    }


def measure(seconds: float) -> dict[str, Any]:
    """Return all figures of the case."""
    figures: dict[str, Any] = {}
    with cluster() as bench, running(bench) as (port, pid):
        for form in bodies():
            figures |= _form(form, bench, port, pid, seconds)
        found = asyncio.run(singles(port, seconds))
        figures["single_p50_ms"] = round(statistics.median(found), 2)
        figures["single_p99_ms"] = round(found[int(len(found) * 0.99)], 2)
        figures |= asyncio.run(tails(port, pid, seconds))
    return figures


__all__ = ["measure"]
