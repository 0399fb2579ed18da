"""The local door of a TCP address: taken where it is there and ours, and nothing changes where it is not."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from buckram.runtime.net import local_sockets
from buckram.runtime.net.tcp import TcpListener, TcpNetwork
from buckram.runtime.process.process_setup import loop_factory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract Unix sockets are Linux's")
HOST = "127.0.0.1"


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Receiver(asyncio.Protocol):
    """Hears until it has `wanted` bytes, or the end."""

    def __init__(self, wanted: int = 0) -> None:
        self.heard, self.wanted = bytearray(), wanted
        self.enough, self.over = asyncio.Event(), asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.heard += data
        if len(self.heard) >= self.wanted:
            self.enough.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()


@asynccontextmanager
async def echoing(network: TcpNetwork) -> AsyncIterator[TcpListener]:
    listener = await network.listen(HOST, 0, Echo)
    try:
        yield listener
    finally:
        await listener.close()


async def family(network: TcpNetwork, port: int) -> int:
    """Of the socket of a connection that works."""
    transport, protocol = await network.connect(HOST, port, lambda: Receiver(5))
    transport.write(b"hello")
    async with asyncio.timeout(5):
        await cast("Receiver", protocol).enough.wait()
    found: int = transport.get_extra_info("socket").family
    transport.abort()
    return found


@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_megabytes_come_back_through_it(kind: str) -> None:
    async def run() -> None:
        network, data = TcpNetwork(), os.urandom(6_000_000)
        async with echoing(network) as listener:
            transport, protocol = await network.connect(HOST, listener.port, lambda: Receiver(len(data)))
            receiver = cast("Receiver", protocol)
            assert transport.get_extra_info("socket").family == socket.AF_UNIX
            transport.write(data)
            async with asyncio.timeout(20):
                await receiver.enough.wait()
            assert receiver.heard == data
            transport.close()
            async with asyncio.timeout(5):
                await receiver.over.wait()

    with asyncio.Runner(loop_factory=loop_factory({"BUCKRAM_LOOP": kind})) as runner:
        runner.run(run())


async def test_tcp_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with echoing(TcpNetwork()) as listener:
        assert await family(TcpNetwork(), listener.port) == socket.AF_UNIX
        assert await family(TcpNetwork(local=False), listener.port) == socket.AF_INET
        monkeypatch.setenv(local_sockets.VARIABLE, "tcp")
        assert await family(TcpNetwork(), listener.port) == socket.AF_INET
    async with echoing(TcpNetwork()) as listener:
        monkeypatch.delenv(local_sockets.VARIABLE)
        assert await family(TcpNetwork(), listener.port) == socket.AF_INET  # it has no local door


async def test_who_else_listens_there_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with echoing(TcpNetwork()) as listener:
        monkeypatch.setattr(local_sockets, "_CREDENTIALS", _Others())
        assert await family(TcpNetwork(), listener.port) == socket.AF_INET


class _Others:
    """Credentials that always say another user."""

    size = local_sockets._CREDENTIALS.size

    def unpack(self, data: bytes) -> tuple[int, int, int]:
        pid, _, group = struct.unpack("3i", data)
        return pid, 4712, group


@pytest.mark.parametrize("spoiled", ["open to others", "a link", "none"])
async def test_a_directory_that_others_may_enter_leaves_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    """Whoever could make a socket there, or come through ours, would be taken for this user."""
    place = tmp_path / "sockets"
    monkeypatch.setenv(local_sockets.VARIABLE, str(place))
    async with echoing(TcpNetwork()) as listener:
        assert await family(TcpNetwork(), listener.port) == socket.AF_UNIX
        assert place.stat().st_mode & 0o777 == 0o700
        if spoiled == "open to others":
            place.chmod(0o755)
        elif spoiled == "a link":
            place.symlink_to(place.rename(tmp_path / "elsewhere"))
        assert (await family(TcpNetwork(), listener.port) == socket.AF_UNIX) == (spoiled == "none")
        assert (local_sockets.listening(HOST, 1, 1) is not None) == (spoiled == "none")


async def test_no_socket_is_an_abstract_one() -> None:
    """All containers of a network namespace share those, and the numbers of their users."""
    async with echoing(TcpNetwork()) as listener:
        held = _unix_sockets()
        name = local_sockets.name_of(HOST, listener.port)
        assert name.startswith("/")
        assert name in held
        assert f":{listener.port}" not in held.replace(name, "")


def _unix_sockets() -> str:
    return Path("/proc/net/unix").read_text()


def test_the_socket_of_a_process_that_was_killed_is_made_anew() -> None:
    port = 1
    left = local_sockets.listening(HOST, port, 1)
    assert left is not None
    left.close()
    assert local_sockets.connected(HOST, port) is None
    again = local_sockets.listening(HOST, port, 1)
    assert again is not None
    local_sockets.forget(again)
    again.close()
    assert not Path(local_sockets.name_of(HOST, port)).exists()


async def test_both_doors_close_and_what_is_open_stays() -> None:
    network = TcpNetwork()
    async with echoing(network) as listener:
        port = listener.port
        transport, protocol = await network.connect(HOST, port, lambda: Receiver(5))
        receiver = cast("Receiver", protocol)
        transport.write(b"first")
        async with asyncio.timeout(5):
            await receiver.enough.wait()  # it is accepted
        receiver.wanted, receiver.enough = 10, asyncio.Event()
    assert local_sockets.connected(HOST, port) is None
    with pytest.raises(OSError, match="onnect"):
        await network.connect(HOST, port, Receiver)
    transport.write(b"still")
    async with asyncio.timeout(5):
        await receiver.enough.wait()
    transport.abort()


async def test_a_taken_name_leaves_tcp() -> None:
    async with echoing(TcpNetwork(local=False)) as listener:
        port = listener.port
    door = local_sockets.listening(HOST, port, 1)
    assert door is not None
    with door:
        assert local_sockets.listening(HOST, port, 1) is None
        listener = await TcpNetwork().listen(HOST, port, Echo)
        try:
            assert await family(TcpNetwork(local=False), port) == socket.AF_INET
        finally:
            await listener.close()


def test_names_that_are_none_and_failures_leave_no_descriptor_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for host in ("nobody-listens-here", "h" * 300, "null\0inside"):
        assert local_sockets.connected(host, 1) is None
    assert local_sockets.listening("h" * 300, 1, 1) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_full_door_is_passed_by() -> None:
    """More wait before it than it admits: TCP, which waits by itself."""
    door = local_sockets.listening(HOST, 1, 0)
    assert door is not None
    held = []
    with door:
        while (one := local_sockets.connected(HOST, 1)) is not None:
            held.append(one)
            assert len(held) < 100
    for one in held:
        one.close()
