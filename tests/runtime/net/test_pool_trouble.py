"""The pool over real TCP: peers that are away, silent, slow, moved, or talk nonsense."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest
from tests.support.clock import pass_time
from tests.support.net_kit import KEY, Peer, Sink, framed
from tests.support.polling import until
from tests.support.pool_kit import QUICK, Make, store

from buckram.config import NetConfig
from buckram.core.wire.messages import (
    Force,
    Read,
)
from buckram.errors import (
    BookieTooBusy,
    BookieUnavailable,
    Code,
    HandleClosed,
    ProtocolError,
    RequestTimeout,
)
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.production import production_runtime
from buckram.seams import Listener
from buckram.types import BookieAddress, Slot


async def test_nobody_listens(peer: Peer, make: Make) -> None:
    await peer.stop()
    pool, sink = make(), Sink()
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 0, 0, 2)])
    assert sink.said == {}
    with pytest.raises(BookieUnavailable, match=rf"127\.0\.0\.1:{peer.port}"):
        await pool.call("b1", Read(7, 0))
    await sink.count(3)
    assert set(map(tuple, sink.said.values())) == {("BookieUnavailable",)}
    # The next request tries again, without a pause.
    await Peer(peer.port, entries=peer.entries).start()
    assert (await pool.call("b1", Read(7, 0))).code is Code.NO_ENTRY


async def test_not_registered(make: Make) -> None:
    pool, sink = make(), Sink()
    pool.lane("nobody").send(*framed(7, 0, 3), [(sink, 0, 0, 2)])
    assert sink.said == {}
    with pytest.raises(BookieUnavailable, match="not registered"):
        await pool.call("nobody", Force(7))
    await sink.count(3)


async def test_a_lost_connection_fails_everything_once_and_is_made_again(peer: Peer, make: Make) -> None:
    pool, sink = make(), Sink()
    await pool.call("b1", Read(7, 0))
    peer.hold = True
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 0, 0, 2)])
    call = asyncio.create_task(pool.call("b1", Read(7, 1)))
    await until(lambda: len(peer.held) == 2)
    peer.hang_up()
    with pytest.raises(BookieUnavailable):
        await call
    await sink.count(3)
    assert set(map(tuple, sink.said.values())) == {("BookieUnavailable",)}
    peer.hold = False
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 1, 0, 2)])
    await sink.count(6)
    assert sink.said[1, 2] == ["ok"]


async def test_timeouts_and_late_answers(peer: Peer, make: Make) -> None:
    store(peer, 7, 1)
    # Something is heard all the time, so the connection is not taken for dead.
    pool, sink = make(dataclasses.replace(QUICK, request_timeout_s=0.4)), Sink()
    peer.hold = True
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 0, 0, 2)])
    call = asyncio.create_task(pool.call("b1", Read(7, 0)))
    await until(lambda: len(peer.held) == 2)
    peer.hold = False
    while not call.done():
        assert (await pool.call("b1", Read(7, 5))).code is Code.NO_ENTRY
        await pass_time(0.02)
    with pytest.raises(RequestTimeout):
        await call
    await sink.count(3)
    assert set(map(tuple, sink.said.values())) == {("RequestTimeout",)}
    assert peer.lost == 0
    peer.release()
    assert (await pool.call("b1", Read(7, 0))).code is Code.OK
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 1, 0, 2)])
    await sink.count(6)
    assert [sink.said[1, entry] for entry in range(3)] == [["ok"]] * 3
    assert [sink.said[0, entry] for entry in range(3)] == [["RequestTimeout"]] * 3


async def test_a_silent_peer_is_replaced(peer: Peer, make: Make) -> None:
    pool = make(QUICK)
    await pool.call("b1", Read(7, 0))
    peer.hold = True
    with pytest.raises(RequestTimeout):
        await pool.call("b1", Read(7, 0))
    await until(lambda: peer.lost == 1)
    peer.hold = False
    assert (await pool.call("b1", Read(7, 0))).code is Code.NO_ENTRY


async def test_a_short_timeout_does_not_cost_an_idle_connection(peer: Peer, make: Make) -> None:
    pool = make(dataclasses.replace(QUICK, request_timeout_s=5.0))
    await pool.call("b1", Read(7, 0))
    peer.hold = True
    with pytest.raises(RequestTimeout):
        await pool.call("b1", Read(7, 0), timeout_s=0.01)
    peer.release()
    assert (await pool.call("b1", Read(7, 0))).code is Code.NO_ENTRY
    assert peer.lost == 0


async def test_a_forced_v2_request_that_could_be_confused_is_refused_here(peer: Peer, make: Make) -> None:
    pool = make()
    peer.hold = True
    call = asyncio.create_task(pool.call("b1", Read(7, 0)))
    await until(lambda: len(peer.held) == 1)
    with pytest.raises(BookieTooBusy, match="protocol 3"):
        await pool.call("b1", Read(7, 0, True, KEY), protocol=2)
    peer.release()
    assert (await call).code is Code.NO_ENTRY
    assert (await pool.call("b1", Read(7, 0, True, KEY), protocol=2)).code is Code.NO_ENTRY


async def test_cancelling_abandons_the_wait_only(peer: Peer, make: Make) -> None:
    store(peer, 7, 2)
    pool = make()
    connecting = asyncio.create_task(pool.call("b1", Read(7, 0)))
    await asyncio.sleep(0)
    connecting.cancel()
    assert (await pool.call("b1", Read(7, 0))).code is Code.OK
    peer.hold = True
    call = asyncio.create_task(pool.call("b1", Read(7, 0)))
    await until(lambda: len(peer.held) == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    peer.release()
    assert (await pool.call("b1", Read(7, 1))).code is Code.OK
    assert peer.lost == 0


async def test_a_bookie_that_moved(peer: Peer) -> None:
    other = await Peer().start()
    store(other, 7, 1)
    addresses = {"b1": peer.address}
    pool, sink = BookiePool(production_runtime(), NetConfig(), addresses.get), Sink()
    peer.hold = True
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 0, 0, 2)])
    await until(lambda: len(peer.held) == 1)
    addresses["b1"] = other.address
    assert (await pool.call("b1", Read(7, 0))).code is Code.OK
    pool.lane("b1").send(*framed(7, 3, 3), [(sink, 0, 3, 5)])
    await sink.count(3)
    assert set(sink.said) == {(0, 3), (0, 4), (0, 5)}
    # What the old connection still owes is taken, then it is closed.
    peer.release()
    await sink.count(6)
    assert set(map(tuple, sink.said.values())) == {("ok",)}
    await until(lambda: peer.lost == 1)
    # Where it is no longer known, or another one lives: nothing goes there any more.
    del addresses["b1"]
    with pytest.raises(BookieUnavailable, match="not registered"):
        await pool.call("b1", Read(7, 0))
    await until(lambda: other.lost == 1)
    await pool.close()
    await other.stop()


async def test_bytes_that_are_no_protocol(peer: Peer, make: Make) -> None:
    pool = make()
    peer.hold = True
    call = asyncio.create_task(pool.call("b1", Read(7, 0)))
    await until(lambda: len(peer.held) == 1)
    peer.transports[0].write(b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolError, match="limit"):
        await call
    await until(lambda: peer.lost == 1)


async def test_close_fails_what_is_outstanding_and_leaves_no_task(peer: Peer, make: Make) -> None:
    before = asyncio.all_tasks()
    pool, sink = make(), Sink()
    await pool.call("b1", Read(7, 0))
    peer.hold = True
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 0, 0, 2)])
    calls = [asyncio.create_task(pool.call("b1", request)) for request in (Read(7, 1), Force(7))]
    await asyncio.sleep(0)
    await pool.close()
    for call in calls:
        with pytest.raises(HandleClosed):
            await call
    assert sink.said == {(0, entry): ["HandleClosed"] for entry in range(3)}
    with pytest.raises(HandleClosed):
        await pool.call("b1", Read(7, 1))
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 1, 0, 2)])
    assert len(sink.said) == 3
    await sink.count(6)
    await pool.close()
    assert asyncio.all_tasks() == before


class Hanging:
    """A network that never answers."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> Listener:
        raise AssertionError


async def test_a_connection_that_takes_too_long(make: Make) -> None:
    runtime = dataclasses.replace(production_runtime(), network=Hanging())
    pool, sink = make(QUICK, runtime=runtime), Sink()
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 0, 0, 2)])
    assert pool.pending_bytes("b1") > 0
    with pytest.raises(BookieUnavailable, match=r"within 0\.3 s"):
        await pool.call("b1", Read(7, 0))
    await sink.count(3)
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 1, 0, 2)])
    call = asyncio.create_task(pool.call("b1", Read(7, 0)))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(HandleClosed):
        await call
    assert sink.said[1, 2] == ["HandleClosed"]


@pytest.mark.parametrize("address", [BookieAddress("127.0.0.1", 99999), BookieAddress("a" * 70 + ".invalid", 1)])
async def test_addresses_that_make_no_sense(address: BookieAddress) -> None:
    pool = BookiePool(production_runtime(), NetConfig(), lambda bookie: address)
    with pytest.raises(BookieUnavailable):
        await pool.call("b1", Read(7, 0))
    await pool.close()


class Bursting(Hanging):
    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        raise RuntimeError("the loop's own trouble")


async def test_whatever_goes_wrong_while_connecting_is_told_to_those_who_wait(make: Make) -> None:
    runtime = dataclasses.replace(production_runtime(), network=Bursting())
    pool, sink = make(QUICK, runtime=runtime), Sink()
    pool.lane("b1").send(*framed(7, 0, 3), [(sink, 0, 0, 2)])
    async with asyncio.timeout(2):
        with pytest.raises(BookieUnavailable, match="own trouble"):
            await pool.call("b1", Read(7, 0))
        await sink.count(3)


class Broken(Sink):
    def acked(self, slot: Slot, bookie_id: str, first: int, last: int) -> None:
        super().acked(slot, bookie_id, first, last)
        raise RuntimeError("a broken sink")


async def test_a_broken_sink_costs_the_others_nothing(peer: Peer, make: Make) -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    pool, broken, good = make(), Broken(), Sink()
    peer.hold = True
    for sink, ledger in ((broken, 7), (good, 8), (broken, 9), (good, 10)):
        pool.lane("b1").send(*framed(ledger, 0, 2), [(sink, ledger, 0, 1)])
    await until(lambda: len(peer.held) == 4)
    answers = b"".join(data for _, data in peer.held)
    peer.held = [(peer.held[0][0], answers)]
    peer.release()
    await good.count(4)
    await broken.count(4)
    assert set(map(tuple, [*good.said.values(), *broken.said.values()])) == {("ok",)}
    await until(lambda: bool(errors))
