"""Ten clients that together ask more of one bookie than it can do; four send requests and never read an answer.

`python -m bench.overload URI HOST PORT SECONDS`. Last line: what the six that read got done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import sys
import threading
import time

from buckram import BuckramError, connect
from buckram.core.entries.entry import Digest, master_key
from buckram.core.wire.adds import frame_adds
from buckram.core.wire.messages import Read
from buckram.core.wire.v2 import encode_request
from buckram.types import DigestType

DEAF, WRITERS, READERS = 4, 3, 3
ENTRY = 1024
LEDGER_OF_THE_DEAF = 2**40


def deaf(host: str, port: int, ledger: int, number: int, end: float, sent: list[int]) -> None:
    """Adds and reads as fast as the socket takes them; the answers stay in the socket."""
    payloads = [random.randbytes(ENTRY)] * 64
    key = master_key(b"")
    reads = b"".join(encode_request(Read(ledger, n)) for n in range(64))
    first = 0
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as connection:
            connection.settimeout(0.2)
            while time.monotonic() < end:
                frames, *_ = frame_adds(
                    Digest(DigestType.CRC32C, b""), key, LEDGER_OF_THE_DEAF + number, first, first - 1, 0, payloads
                )
                first += len(payloads)
                # A frame cut in half would be a malformed one: the rest stays to be sent.
                left = memoryview(frames + reads)
                while left and time.monotonic() < end:
                    with contextlib.suppress(TimeoutError):
                        taken = connection.send(left)
                        sent[number] += taken
                        left = left[taken:]
        time.sleep(0.05)


async def main(uri: str, host: str, port: int, seconds: float) -> dict[str, object]:
    counts = {"adds": 0, "reads": 0, "errors": 0}
    slowest = 0.0
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(uri)) for _ in range(WRITERS + READERS)]
        writer = await clients[0].create(ensemble=1)
        await writer.append_many([random.randbytes(ENTRY)] * 20_000)
        await writer.close()
        end = time.monotonic() + seconds
        sent = [0] * DEAF
        jobs = [(host, port, writer.ledger_id, n, end, sent) for n in range(DEAF)]
        threads = [threading.Thread(target=deaf, args=job, daemon=True) for job in jobs]
        for thread in threads:
            thread.start()

        async def write(number: int) -> None:
            nonlocal slowest
            async with clients[number].create(ensemble=1) as writer:
                while (began := time.monotonic()) < end:
                    await writer.append_many([b"x" * ENTRY] * 1000)
                    counts["adds"] += 1000
                    slowest = max(slowest, time.monotonic() - began)

        async def read(number: int) -> None:
            async with clients[number].open(writer.ledger_id) as reader:
                while time.monotonic() < end:
                    try:
                        counts["reads"] += len(await reader.read_payloads(0, 9_999))
                    except BuckramError:
                        counts["errors"] += 1

        async with asyncio.TaskGroup() as group:
            for n in range(WRITERS):
                group.create_task(write(n))
            for n in range(WRITERS, WRITERS + READERS):
                group.create_task(read(n))
        for thread in threads:
            thread.join()
    return {
        "adds_per_s": round(counts["adds"] / seconds),
        "reads_per_s": round(counts["reads"] / seconds),
        "read_errors": counts["errors"],
        "deaf_mb_sent": round(sum(sent) / 1e6, 1),
        "slowest_thousand_adds_s": round(slowest, 2),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))))
