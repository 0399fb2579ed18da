"""A proxy to a real ZooKeeper that loses requests and replies, and sessions through it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from buckram.metadata.zookeeper.kazoo_session import KazooSession

DEADLINE_S = 20.0
_roots = itertools.count()


class Proxy:
    """A proxy between sessions and a server. A packet is 4 bytes of length, then the xid (-2 is a ping)."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._open: dict[asyncio.StreamWriter, None] = {}
        self.lose = ""
        """"request" or "answer": the next packet of that kind is lost, and the connection with it."""
        self.silent = False
        """While this is set the proxy forwards no replies."""
        self.rewrite: Callable[[bytes], bytes] | None = None
        """Changes the bytes of the next reply."""
        self.requests = 0
        self.tasks: dict[asyncio.Task[None], None] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def listen(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    def cut(self) -> None:
        for writer in list(self._open):
            writer.close()

    async def stop(self) -> None:
        """Stop listening and cut all connections, as if the server were away."""
        assert self._listener is not None
        self._listener.close()
        self.cut()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks[task] = None
        there, back = await asyncio.open_connection(*self._server)
        both = (writer, back)
        self._open |= dict.fromkeys(both)
        try:
            await asyncio.gather(self._pump(reader, back, True), self._pump(there, writer, False))
        except (OSError, EOFError):
            pass
        finally:
            for end in both:
                self._open.pop(end, None)
                end.close()
            self.tasks.pop(task, None)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, request: bool) -> None:
        first = True
        while True:
            packet = await source.readexactly(int.from_bytes(await source.readexactly(4), "big"))
            operation = not first and int.from_bytes(packet[:4], "big", signed=True) > 0
            if operation:
                self.requests += request
                if self.lose == ("request" if request else "answer"):
                    self.lose = ""
                    raise EOFError
                if not request and self.rewrite is not None:
                    packet, self.rewrite = self.rewrite(packet), None
            if self.silent and not request:
                continue
            target.write(len(packet).to_bytes(4, "big") + packet)
            await target.drain()
            first = False


@asynccontextmanager
async def proxied(server: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(server)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.stop()


@asynccontextmanager
async def session(hosts: str, **options: object) -> AsyncIterator[KazooSession]:
    opened = KazooSession(hosts, **options)  # type: ignore[arg-type]  # tests pass what they like
    try:
        yield opened
    finally:
        await opened.close()


async def folder(hosts: str) -> str:
    """Create a node for one test; its path."""
    async with session(hosts) as zk:
        path, _ = await zk.create(f"/test-{next(_roots)}-", sequence=True)
        return path
