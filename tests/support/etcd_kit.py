"""A proxy to a real etcd that holds back requests and loses replies."""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from buckram.metadata.etcd.keys import EtcdKeys

DEADLINE_S = 20.0
_roots = itertools.count()


def new_root() -> str:
    return f"/test-{next(_roots)}"


class Proxy:
    """A proxy between clients and a server. A request is a head, then a body of the length in the head."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        self.lose_answer = self.hold = ""
        """Part of a path: the next such request is carried out and its reply lost, or held back for `deliver`."""
        self.held = b""
        self.silent = False
        """While this is set the proxy forwards no replies."""
        self.on_time = asyncio.Event()
        """While this is clear the events of watches wait here."""
        self.on_time.set()
        self.paths: list[str] = []
        self.tasks: dict[asyncio.Task[None], None] = {}

    @property
    def address(self) -> str:
        assert self._listener is not None
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def listen(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def deliver(self) -> bytes:
        """Send the request that was held back, as a slow network would. Returns the reply."""
        reader, writer = await asyncio.open_connection(*self._server)
        writer.write(self.held)
        head = await reader.readuntil(b"\r\n\r\n")
        answer = await reader.readexactly(_length(head))
        writer.close()
        return answer

    def cut(self) -> None:
        for writer in list(self._open):
            writer.close()

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks[task] = None
        there, back = await asyncio.open_connection(*self._server)
        both = (writer, back)
        self._open |= dict.fromkeys(both)
        answers = asyncio.create_task(self._answers(there, writer))
        try:
            with suppress(OSError, EOFError):
                await self._requests(reader, back, there, answers)
        finally:
            answers.cancel()
            for end in both:
                self._open.pop(end, None)
                end.close()
            self.tasks.pop(task, None)

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        answers: asyncio.Task[None],
    ) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            request = head + await reader.readexactly(_length(head))
            path = head.split(b" ", 2)[1].decode()
            self.paths.append(path)
            if self.hold and self.hold in path:
                self.hold, self.held = "", request
                raise EOFError
            back.write(request)
            if self.lose_answer and self.lose_answer in path:
                self.lose_answer = ""
                answers.cancel()
                await asyncio.wait([answers])
                async with asyncio.timeout(DEADLINE_S):
                    await there.read(1)  # its answer has come: the server has carried it out
                raise EOFError

    async def _answers(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await there.read(65536):
            if b'"events"' in piece:
                await self.on_time.wait()
            if not self.silent:
                writer.write(piece)
        writer.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


@asynccontextmanager
async def proxied(server: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(server)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.stop()


@asynccontextmanager
async def opened(hosts: str, root: str = "", **options: Any) -> AsyncIterator[EtcdKeys]:
    keys = EtcdKeys(tuple(hosts.split(",")), root or new_root(), **options)
    try:
        yield keys
    finally:
        await keys.close()


def post(server: str, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    """Send a request to the gateway past the client under test. It blocks."""
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(f"http://{server}/v3/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found
