"""A wire to a gateway, which counts what goes over it and lets something happen at a given byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class Wire:
    """Stands before HOST:PORT at `address`. `async with`."""

    def __init__(self, gateway: str) -> None:
        self.gateway, self.address = gateway, ""
        self.there = self.back = 0
        """Bytes that went to the gateway, and came from it."""
        self.held = asyncio.Event()
        """While this is clear, nothing comes back."""
        self.held.set()
        self._there: tuple[int, Callable[[], object]] | None = None
        self._back: tuple[int, Callable[[], object]] | None = None
        self._open: set[asyncio.StreamWriter] = set()

    def after_sent(self, size: int, happen: Callable[[], object]) -> None:
        """Once: when so many bytes more have gone to the gateway, this happens, and all connections end."""
        self._there = (self.there + size, happen)

    def after_answered(self, size: int, happen: Callable[[], object] = lambda: None) -> None:
        """The same when so many have come from it; the last of them are not passed on."""
        self._back = (self.back + size, happen)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        host, _, port = self.gateway.rpartition(":")
        with suppress(OSError):
            there, back = await asyncio.open_connection(host, int(port))
            self._open.add(back)
            await asyncio.gather(self._pump(reader, back, True), self._pump(there, writer, False))
            back.close()
        writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, forth: bool) -> None:
        while piece := await reader.read(64 * 1024):
            if forth:
                self.there += len(piece)
                due = self._there if self._there is not None and self.there >= self._there[0] else None
            else:
                await self.held.wait()
                self.back += len(piece)
                due = self._back if self._back is not None and self.back >= self._back[0] else None
            if due is not None:
                self._there = self._back = None
                due[1]()
                self.cut()
                return
            writer.write(piece)
            await writer.drain()
        writer.close()

    def cut(self) -> None:
        """End all connections."""
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.held.set()
        self.cut()
