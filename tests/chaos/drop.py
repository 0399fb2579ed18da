"""A namespace with very many ledgers is dropped: how long until its space is back at the bookies?

`python -m tests.chaos.drop --ledgers 100000` fills streams of a namespace with segments of four kilobytes, in some
processes, and deletes the streams one after the other, and then the namespace. The last line is JSON; exit code 0 only
if every bookie had given the space back within five minutes of the beginning, for 100,000 ledgers, or the share of that
time for fewer. What is left of it then are log files that are written now or wait to be written again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.churn import BOOKIES, MIB, bytes_used

from buckram.cluster import connect
from buckram.launch.processes import BookieProcess, stop_all
from chaos.processes import PYTHON, clean_environment

SPACE = "dropped"
SEGMENTS = 1000
"""Of a stream."""
RECORD = b"x" * 4000
FULL, WITHIN_S = 100_000, 300.0
_AT_ONCE = 24
_LOOK_S = 1.0


async def play(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    uri = f"sqlite://{root / 'metadata.db'}"
    environment = {**clean_environment(), "BUCKRAM_STORE_SEGMENT_BYTES": str(options.segment_bytes)}
    http = ("--http", "127.0.0.1:0")
    bookies = [BookieProcess(uri, root / f"b{one}", options=http, environment=environment) for one in range(BOOKIES)]
    for bookie in bookies:
        bookie.start()
        bookie.wait_ready()
    try:
        began = time.monotonic()
        await _fill(uri, options)
        filled_s = time.monotonic() - began
        full = min(bytes_used(one).logs for one in bookies)
        if full <= 2 * options.segment_bytes:
            print("so few ledgers leave nothing to give back: choose a smaller --segment-bytes", file=sys.stderr)
        began = time.monotonic()
        deleted_s, ledgers = await _drop(uri, began)
        back_s = await _given_back(bookies, began, options.segment_bytes)
    finally:
        stop_all(bookies)
    within_s = WITHIN_S * max(ledgers, FULL // 10) / FULL
    return {
        "held": back_s <= within_s,
        "ledgers": ledgers,
        "filled_s": round(filled_s, 1),
        "full_mib": round(full / MIB, 1),
        "deleted_s": round(deleted_s, 1),
        "back_s": round(back_s, 1),
        "within_s": within_s,
    }


async def _fill(uri: str, options: argparse.Namespace) -> None:
    async with connect(uri) as client:
        await client.namespaces.create(SPACE)
        streams = -(-options.ledgers // SEGMENTS)
        for number in range(streams):
            await client.namespace(SPACE).create(f"s{number}")
    shares = [range(one, streams, options.fillers) for one in range(options.fillers)]
    command = (PYTHON, "-m", "tests.chaos.drop", "--uri", uri, "--ledgers", str(options.ledgers), "--streams")
    fillers = [
        await asyncio.create_subprocess_exec(*command, *map(str, share), env=clean_environment())
        for share in shares
        if share
    ]
    if any(await asyncio.gather(*(one.wait() for one in fillers))):
        raise RuntimeError("a filler failed; its last words are above")


async def _fill_streams(uri: str, streams: list[int], ledgers: int) -> None:
    """In a process of its own."""
    async with connect(uri) as client:
        for number in streams:
            count, room = min(SEGMENTS, ledgers - number * SEGMENTS), asyncio.Semaphore(_AT_ONCE)
            bulk = await client.namespace(SPACE).bulk(f"s{number}", application="fill", version=0)

            async def make() -> Any:
                async with room:  # noqa: B023 - awaited in this round
                    ledger = await bulk.create_ledger()  # noqa: B023 - the same
                    await ledger.append_many([RECORD])
                    return await ledger.close()

            await bulk.publish(await asyncio.gather(*(make() for _ in range(count))))


async def _drop(uri: str, began: float) -> tuple[float, int]:
    """How long it took to delete everything, and how many ledgers there were."""
    async with connect(uri) as client:
        ledgers = [one async for one in client.list()]
        space = client.namespace(SPACE)
        for stream in await space.list():
            await space.delete(stream)
            print(f"{stream} deleted after {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        await client.namespaces.delete(SPACE)
        assert [one async for one in client.list()] == [], "ledgers are left"
    return time.monotonic() - began, len(ledgers)


async def _given_back(bookies: list[BookieProcess], began: float, file_bytes: int) -> float:
    """Wait until no bookie has more than the log file that it writes and one that is not dead as a whole."""
    while True:
        used = await asyncio.to_thread(lambda: [bytes_used(one).logs for one in bookies])
        took = time.monotonic() - began
        if max(used) <= 2 * file_bytes or took > 4 * WITHIN_S:
            return took
        await asyncio.sleep(_LOOK_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=FULL)
    parser.add_argument("--fillers", type=int, default=2, help="processes that fill the namespace")
    parser.add_argument("--segment-bytes", type=int, default=8 * MIB, help="of a bookie's log file")
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.uri:
        asyncio.run(_fill_streams(options.uri, options.streams, options.ledgers))
        return 0
    root = Path(tempfile.mkdtemp(prefix="buckram-drop-"))
    print(f"files: {root}", file=sys.stderr, flush=True)
    found = asyncio.run(play(options, root))
    if found["held"]:
        shutil.rmtree(root)
    print(json.dumps(found))
    return 0 if found["held"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
