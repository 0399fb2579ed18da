"""The simulated network with plain asyncio protocols: order, backpressure, blocked links, resets, crashes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from simulator.engine.loop import SimLoop
from simulator.engine.network import Fabric
from simulator.engine.trace import Trace
from simulator.engine.transport import Connection


class Peer(asyncio.Protocol):
    def __init__(self, echo: bool = False) -> None:
        self.echo, self.got, self.lost, self.paused = echo, bytearray(), [], 0
        self.chunks: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.chunks.append(len(data))
        if self.echo:
            self.transport.write(data)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.paused -= 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loop = SimLoop(self.rng, Trace(), max_steps=200_000)
        self.fabric = Fabric(self.loop, self.rng)
        self.client, self.server = self.loop.process("c"), self.loop.process("s")
        self.accepted: list[Peer] = []

    async def open(self, echo: bool = True) -> Peer:
        def accept() -> Peer:
            self.accepted.append(Peer(echo))
            return self.accepted[-1]

        async def serve() -> None:
            await self.fabric.face(self.server).listen("s", 99, accept)

        await self.server.spawn(serve())
        return await self.dial()

    async def dial(self) -> Peer:
        _, protocol = await self.client.spawn(self.fabric.face(self.client).connect("s", 99, Peer))
        assert isinstance(protocol, Peer)
        return protocol


def play(seed: int, scenario: Callable[[World], Awaitable[None]]) -> str:
    world = World(seed)

    async def main() -> None:
        await scenario(world)

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()
    return world.loop.trace.digest


@pytest.mark.parametrize("seed", range(5))
def test_bytes_keep_their_order_but_not_their_chunks(seed: int) -> None:
    async def scenario(world: World) -> None:
        peer = await world.open()
        sent = bytearray()
        for n in range(200):
            data = bytes([n]) * (1 + n % 37)
            sent += data
            peer.transport.write(data)
            if n % 10 == 0:
                await asyncio.sleep(0.0005)
        await asyncio.sleep(1)
        assert peer.got == sent
        assert len(peer.chunks) != 200 or len(world.accepted[0].chunks) != 200

    assert play(seed, scenario) == play(seed, scenario)


def test_backpressure_reaches_the_writer_and_ends() -> None:
    async def scenario(world: World) -> None:
        peer = await world.open(echo=False)
        await asyncio.sleep(0.1)
        world.accepted[0].transport.pause_reading()
        for _ in range(40):
            peer.transport.write(bytes(8192))
        assert peer.paused == 1
        await asyncio.sleep(1)
        assert peer.transport.get_write_buffer_size() > 64 * 1024
        assert not world.accepted[0].got
        world.accepted[0].transport.resume_reading()
        await asyncio.sleep(1)
        assert peer.paused == 0
        assert peer.transport.get_write_buffer_size() == 0
        assert len(world.accepted[0].got) == 40 * 8192

    play(1, scenario)


def test_blocked_link_is_one_way_and_loses_nothing() -> None:
    async def scenario(world: World) -> None:
        peer = await world.open()
        world.fabric.block("s", "c")
        peer.transport.write(b"hello")
        await asyncio.sleep(100)
        assert bytes(world.accepted[0].got) == b"hello"
        assert not peer.got
        world.fabric.heal()
        await asyncio.sleep(1)
        assert bytes(peer.got) == b"hello"

    play(1, scenario)


def test_peer_sees_close_after_the_last_byte() -> None:
    async def scenario(world: World) -> None:
        peer = await world.open(echo=False)
        peer.transport.write(b"x" * 1000)
        peer.transport.close()
        await asyncio.sleep(1)
        assert peer.lost == [None]
        assert len(world.accepted[0].got) == 1000
        assert world.accepted[0].lost == [None]

    play(1, scenario)


def test_reset_delivers_a_prefix_and_ends_both_sides() -> None:
    lengths = []
    for seed in range(20):

        async def scenario(world: World) -> None:
            peer = await world.open(echo=False)
            await asyncio.sleep(0.1)
            for _ in range(10):
                peer.transport.write(b"y" * 100)
            world.fabric.reset(world.fabric.connections[0])
            await asyncio.sleep(10)
            assert len(peer.lost) == len(world.accepted[0].lost) == 1
            lengths.append(len(world.accepted[0].got))

        play(seed, scenario)
    assert min(lengths) < 300
    assert max(lengths) > 700


def test_crash_of_the_server_resets_and_then_refuses() -> None:
    async def scenario(world: World) -> None:
        peer = await world.open()
        world.server.crash()
        await asyncio.sleep(1)
        assert isinstance(peer.lost[0], ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await world.dial()

    play(1, scenario)


def test_host_without_power_does_not_answer() -> None:
    async def scenario(world: World) -> None:
        peer = await world.open()
        world.fabric.set_dark("s", True)
        world.server.crash()
        peer.transport.write(b"a")
        await asyncio.sleep(100)
        assert not peer.lost
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await world.dial()
        world.fabric.set_dark("s", False)
        peer.transport.write(b"a")
        await asyncio.sleep(1)
        assert len(peer.lost) == 1

    play(1, scenario)


def test_observers_see_each_frame_once() -> None:
    class Observer:
        def __init__(self) -> None:
            self.sent: list[tuple[bool, bytes]] = []
            self.delivered: list[tuple[bool, bytes]] = []

        def frame_sent(self, conn: Connection, to_server: bool, frame: bytes) -> None:
            self.sent.append((to_server, frame))

        def frame_delivered(self, conn: Connection, to_server: bool, frame: bytes) -> None:
            self.delivered.append((to_server, frame))

    async def scenario(world: World) -> None:
        observer = Observer()
        world.fabric.observers.append(observer)
        peer = await world.open()
        frames = [len(data).to_bytes(4, "big") + data for data in (b"one", b"", b"three" * 50)]
        peer.transport.write(frames[0] + frames[1] + frames[2][:7])
        peer.transport.write(frames[2][7:])
        await asyncio.sleep(1)
        assert [frame for to_server, frame in observer.sent if to_server] == frames
        assert [frame for to_server, frame in observer.delivered if to_server] == frames
        assert [frame for to_server, frame in observer.delivered if not to_server] == frames

    play(4, scenario)
