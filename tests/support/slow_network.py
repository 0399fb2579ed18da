"""A network on which the answers of some peers come late, in front of the real one."""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.runtime.net.tcp import TcpNetwork
from buckram.seams import Listener, ProtocolFactory


class SlowNetwork:
    """A seams.Network. `delay_s`: by port, how late what comes from there is handed on; `chunks`: how much came."""

    def __init__(self) -> None:
        self._inner = TcpNetwork()
        self.delay_s: dict[int, float] = {}
        self.chunks: dict[int, int] = {}

    async def connect(
        self, host: str, port: int, factory: ProtocolFactory
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        transport, late = await self._inner.connect(host, port, lambda: _Late(self, port, factory()))
        assert isinstance(late, _Late)
        return transport, late.inner

    async def listen(self, host: str, port: int, factory: ProtocolFactory) -> Listener:
        return await self._inner.listen(host, port, factory)


class _Late(asyncio.Protocol):
    """A net.tcp.Receiver in front of another."""

    def __init__(self, network: SlowNetwork, port: int, inner: Any) -> None:
        self._network, self._port, self.inner = network, port, inner
        self.connection_made = inner.connection_made
        self.connection_lost = inner.connection_lost
        self.pause_writing = inner.pause_writing
        self.resume_writing = inner.resume_writing
        self.eof_received = inner.eof_received

    def room(self) -> memoryview | None:
        return None

    def filled(self, count: int) -> None:
        raise AssertionError("nothing is received into a room that there is not")

    def data_received(self, data: bytes) -> None:
        network = self._network
        network.chunks[self._port] = network.chunks.get(self._port, 0) + 1
        delay_s = network.delay_s.get(self._port, 0.0)
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self.inner.data_received, data)
        else:
            self.inner.data_received(data)
