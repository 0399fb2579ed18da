"""Functions of Buckram that run for one operation, counted and drawn in order, in one process with three bookies.

`python -m scripts.what_runs` prints for each operation how many functions ran, how often, and in how many files;
`--tree OPERATION` draws the calls, indented, with repeated ones folded; `--functions OPERATION` lists them by count;
`--json` prints the totals as JSON.
Each operation has run before, so that connections are open and modules loaded. It runs several times, and the run with
the median number of calls counts: timers of the cluster fall into some of them.

A call is the beginning of a function; a coroutine or generator that goes on is the same call. Functions of
`buckram.testing` do not count, which stands between the test cluster and its network.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import json
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import buckram
from buckram import Client
from buckram.config import ClientConfig
from buckram.serve.gateway.server import Gateway
from buckram.serve.http.server import bind
from buckram.testing import Cluster, cluster

ROOT = str(Path(buckram.__file__).parent) + "/"
_TESTING = ROOT + "testing/"
RUNS = 7
"""Runs that are recorded of each operation; the one with the median number of calls counts."""
WARM = 3
"""Runs before these."""
_ENTRIES = 20
_VALUE = b"x" * 100
_REST_S = 0.02
"""Time within which the rest of an operation begins whose caller has the answer: that of the third bookie, seconds."""
_APART_S = 0.1
"""Writers measure their bookies by an entry now and then (`PROBE_S`). Runs are so far apart that each has such an
entry, and not some of them."""
_CONFIG = ClientConfig(idle_lac_ms=60_000.0)
"""An explicit LAC follows an append that nothing follows. It is an operation of its own, and would fall into some runs.
"""

Step = Callable[[], Awaitable[object]]


@dataclass
class Call:
    """A call of a function, with the calls that it made."""

    code: CodeType
    calls: list[Call] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.code.co_filename.removeprefix(ROOT)}:{self.code.co_qualname}"


@dataclass(frozen=True)
class Totals:
    """Numbers of one operation: functions that ran, calls of them, and files that they are in."""

    functions: int
    calls: int
    files: int


class Recorder:
    """Keeps the calls of every thread that begins after `install`, while `recording`."""

    def __init__(self) -> None:
        self.recording = False
        self.roots: list[Call] = []
        self._stacks: dict[int, list[Call]] = {}
        self._known: dict[int, Call] = {}

    def install(self) -> None:
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def start(self) -> None:
        self.roots, self._stacks, self._known = [], {}, {}
        self.recording = True

    def stop(self) -> list[Call]:
        self.recording = False
        return self.roots

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.recording or (event != "call" and event != "return"):
            return
        code = frame.f_code
        if not code.co_filename.startswith(ROOT) or code.co_filename.startswith(_TESTING):
            return
        stack = self._stacks.setdefault(threading.get_ident(), [])
        if event == "return":
            if stack:
                stack.pop()
            return
        if frame.f_lasti <= first_instruction(code):
            call = Call(code)
            (stack[-1].calls if stack else self.roots).append(call)
            self._known[id(frame)] = call
        elif (known := self._known.get(id(frame))) is None or known.code is not code:
            # It began before the recording: a loop that always runs. What it calls now counts.
            call = Call(code)
            self.roots.append(call)
            self._known[id(frame)] = call
        else:
            call = known
        stack.append(call)


@cache
def first_instruction(code: CodeType) -> int:
    """Return the offset at which the frame of a new call reports itself; one that goes on is further."""
    return next(one.offset for one in dis.get_instructions(code) if one.opname == "RESUME")


def each(calls: list[Call]) -> Iterator[Call]:
    """Yield these calls and all that they made."""
    waiting = list(calls)
    while waiting:
        call = waiting.pop()
        yield call
        waiting.extend(call.calls)


def totals(calls: list[Call]) -> Totals:
    names = Counter(call.name for call in each(calls))
    return Totals(len(names), names.total(), len({name.partition(":")[0] for name in names}))


def drawn(calls: list[Call], depth: int = 0) -> Iterator[str]:
    """Yield the lines of the tree; calls that look alike and follow each other are one line with their number."""
    last, count = "", 0
    for call in [*calls, None]:
        lines = "" if call is None else "\n".join([f"{'  ' * depth}{call.name}", *drawn(call.calls, depth + 1)])
        if lines == last:
            count += 1
            continue
        if count:
            first, *rest = last.split("\n")
            yield first + (f"  x{count}" if count > 1 else "")
            yield from rest
        last, count = lines, 1


# -- the operations -------------------------------------------------------------------------------------------


class Http:
    """A connection that sends one request again and again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, head: str, body: bytes = b"") -> bytes:
        """Return the body of the answer. Raises RuntimeError for a status but 200."""
        media = "Content-Type: application/octet-stream\r\n" if body else ""
        lines = f"{head} HTTP/1.1\r\nHost: localhost\r\n{media}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(lines.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not answer.startswith(b"http/1.1 200"):
            raise RuntimeError(f"{head}: {answer!r}")
        if b"content-length: " in answer:
            return await self._reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        found = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            found += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")
        return found


@asynccontextmanager
async def _http(client: Client) -> AsyncIterator[Http]:
    async with Gateway(client, bind("127.0.0.1", 0)) as gateway:
        host, _, port = gateway.url.partition("://")[2].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield Http(reader, writer)
        finally:
            writer.close()


async def _append(at: Cluster, client: Client, stack: AsyncExitStack) -> Step:
    writer = await stack.enter_async_context(client.create())
    return lambda: writer.append(_VALUE)


async def _read(at: Cluster, client: Client, stack: AsyncExitStack) -> Step:
    async with client.create() as writer:
        for _ in range(_ENTRIES):
            await writer.append(_VALUE)
    reader = await stack.enter_async_context(client.open(writer.ledger_id))
    return lambda: reader.read(3, 4)


async def _stream_append(at: Cluster, client: Client, stack: AsyncExitStack) -> Step:
    await client.namespace().create("one")
    writer = await stack.enter_async_context(client.namespace().writer("one"))
    return lambda: writer.append(_VALUE)


async def _http_append(at: Cluster, client: Client, stack: AsyncExitStack) -> Step:
    http = await stack.enter_async_context(_http(client))
    path = "POST /v2/namespaces/default/streams/two/records?create=true"
    return lambda: http.ask(path, _VALUE)


async def _http_read(at: Cluster, client: Client, stack: AsyncExitStack) -> Step:
    await client.namespace().create("three")
    async with client.namespace().writer("three") as writer:
        for _ in range(_ENTRIES):
            await writer.append(_VALUE)
    http = await stack.enter_async_context(_http(client))
    return lambda: http.ask("GET /v2/namespaces/default/streams/three/records?start=3&limit=2")


async def _object_put(at: Cluster, client: Client, stack: AsyncExitStack) -> Step:
    objects = await stack.enter_async_context(client.objects())
    return lambda: objects.put("a", _VALUE)


async def _sql_insert(at: Cluster, client: Client, stack: AsyncExitStack) -> Step:
    database = await stack.enter_async_context(client.namespace().database("main"))
    await database.lead()
    await database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
    return lambda: database.execute("INSERT INTO t (v) VALUES (?)", ("x",))


async def _repair(at: Cluster, client: Client, stack: AsyncExitStack) -> Step:
    gone = at.bookies[2]
    broken: list[int] = []
    while len(broken) < RUNS + WARM:
        async with client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            for _ in range(_ENTRIES):
                await writer.append(_VALUE)
        if gone in writer.metadata.last_fragment.ensemble:
            broken.append(writer.ledger_id)
    await at.kill(2)
    return lambda: client.repair(broken.pop())


OPERATIONS: dict[str, Callable[[Cluster, Client, AsyncExitStack], Awaitable[Step]]] = {
    "ledger-append": _append,
    "ledger-read": _read,
    "stream-append": _stream_append,
    "http-append": _http_append,
    "http-read": _http_read,
    "object-put": _object_put,
    "sql-insert": _sql_insert,
    "repair": _repair,
}


async def record(name: str, runs: int = RUNS) -> list[Call]:
    """Run the operation in a cluster of its own; return the calls of the median run."""
    recorder = Recorder()
    recorder.install()
    try:
        async with cluster(bookies=3) as running, running.client(_CONFIG) as client, AsyncExitStack() as stack:
            step = await OPERATIONS[name](running, client, stack)
            for _ in range(WARM):
                await step()
                await asyncio.sleep(_REST_S)
            found = []
            for _ in range(runs):
                await asyncio.sleep(_APART_S)
                recorder.start()
                await step()
                await asyncio.sleep(_REST_S)
                found.append(recorder.stop())
            found.sort(key=lambda calls: sum(1 for _ in each(calls)))
            return found[len(found) // 2]
    finally:
        recorder.remove()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.what_runs", description=__doc__.split("\n")[0])
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help=f"default all of: {', '.join(OPERATIONS)}")
    parser.add_argument("--tree", metavar="OPERATION", choices=OPERATIONS, help="draw the calls of this operation")
    parser.add_argument("--functions", metavar="OPERATION", choices=OPERATIONS, help="list its functions by calls")
    parser.add_argument("--json", action="store_true", help="print the totals as JSON")
    options = parser.parse_args(arguments)
    for name in options.operations:
        if name not in OPERATIONS:
            parser.error(f"there is no operation {name!r}: give some of {', '.join(OPERATIONS)}")
    if options.tree:
        print("\n".join(drawn(asyncio.run(record(options.tree)))))
        return 0
    if options.functions:
        names = Counter(call.name for call in each(asyncio.run(record(options.functions))))
        print("\n".join(f"{count:6} {name}" for name, count in names.most_common()))
        return 0
    found: dict[str, Any] = {}
    for name in options.operations or OPERATIONS:
        one = totals(asyncio.run(record(name)))
        found[name] = {"functions": one.functions, "calls": one.calls, "files": one.files}
        if not options.json:
            print(f"{name:14} {one.functions:5} functions {one.calls:6} calls {one.files:4} files", flush=True)
    if options.json:
        print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
