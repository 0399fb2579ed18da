"""The pool makes sure who answers: nothing is sent before, and nothing counts that somebody else says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import pytest
from tests.support.clock import pass_time
from tests.support.net_kit import Peer, Sink, framed
from tests.support.polling import until
from tests.support.pool_kit import QUICK, store

from buckram.core.ledgers.answers import Unknown, classify
from buckram.core.wire.introduction import Expected, Identity, Introduction
from buckram.core.wire.messages import Force, GetBookieInfo, Read
from buckram.errors import BookieUnavailable, BuckramError, Code, MetadataError, WrongBookie
from buckram.runtime.net.introductions import Introductions
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.production import production_runtime
from buckram.types import BookieAddress, BookieId

MINE = Identity("c", "b1", "i")
EXPECTED = Expected(Introduction("c", "b1", "i", 3), must_answer=True)


@dataclass
class Known:
    """What a client knows of b1."""

    address: BookieAddress | None
    expect: Expected = EXPECTED
    met: list[Identity] = field(default_factory=list)
    strangers: list[BookieId] = field(default_factory=list)
    refuse: BuckramError | None = None

    def expected(self, bookie_id: BookieId) -> Expected:
        return self.expect

    def on_identity(self, bookie_id: BookieId, identity: Identity) -> None:
        self.met.append(identity)
        if self.refuse is not None:
            raise self.refuse

    def on_wrong_bookie(self, bookie_id: BookieId) -> None:
        self.strangers.append(bookie_id)


Pool = tuple[BookiePool, Known]


@pytest.fixture
async def make(peer: Peer) -> AsyncIterator[Callable[..., Pool]]:
    pools: list[BookiePool] = []

    def build(identity: Identity | None = MINE, wire: int = 2) -> Pool:
        peer.identity = identity
        known = Known(peer.address)
        introductions = Introductions(known)
        pool = BookiePool(
            production_runtime(1), QUICK, lambda _: known.address, wire_protocol=wire, introductions=introductions
        )
        pools.append(pool)
        return pool, known

    yield build
    for pool in pools:
        await pool.close()


def introductions_in(peer: Peer) -> int:
    return sum(isinstance(request, GetBookieInfo) for _, request in peer.seen)


@pytest.mark.parametrize("wire", [2, 3])
async def test_the_introduction_comes_first_on_every_connection(
    peer: Peer, make: Callable[..., Pool], wire: int
) -> None:
    pool, known = make(wire=wire)
    store(peer, 7, 1)
    sink = Sink()
    pool.lane("b1").send(*framed(7, 1, 3), [(sink, 0, 1, 3)])
    assert (await pool.call("b1", Read(7, 0))).code is Code.OK
    assert (await pool.call("b1", Force(7))).code is Code.OK
    await sink.count(3)
    assert set(map(tuple, sink.said.values())) == {("ok",)}
    connections = 2 if wire == 2 else 1
    assert introductions_in(peer) == connections
    assert isinstance(peer.seen[0][1], GetBookieInfo)
    assert peer.seen[0][1].introduction == known.expect.introduction
    assert known.met == [MINE] * connections


async def test_nothing_is_sent_before_the_answer(peer: Peer, make: Callable[..., Pool]) -> None:
    pool, _ = make()
    store(peer, 7, 1)
    sink = Sink()
    peer.hold = True
    pool.lane("b1").send(*framed(7, 1, 3), [(sink, 0, 1, 3)])
    call = asyncio.create_task(pool.call("b1", Read(7, 0)))
    await until(lambda: len(peer.held) == 1)
    await pass_time(0.05)
    assert [type(request) for _, request in peer.seen] == [GetBookieInfo]
    peer.release()
    assert (await call).code is Code.OK
    await sink.count(3)


async def test_the_time_to_connect_covers_the_exchange(peer: Peer, make: Callable[..., Pool]) -> None:
    pool, known = make()
    sink = Sink()
    peer.hold = True
    pool.lane("b1").send(*framed(7, 1, 3), [(sink, 0, 1, 3)])
    with pytest.raises(BookieUnavailable, match=r"within 0\.3 s"):
        await pool.call("b1", Read(7, 0))
    await sink.count(3)
    assert {type(error) for error in sink.errors} == {BookieUnavailable}
    await until(lambda: peer.lost == 1)
    assert not peer.entries
    assert not known.strangers


@pytest.mark.parametrize(
    "other",
    [Identity("d", "b1", "i"), Identity("c", "b2", "i"), Identity("c", "b1", "j"), None],
    ids=["cluster", "bookie", "incarnation", "says nothing"],
)
@pytest.mark.parametrize("wire", [2, 3])
async def test_a_stranger_is_not_there(
    peer: Peer, make: Callable[..., Pool], other: Identity | None, wire: int
) -> None:
    pool, known = make(other, wire)
    store(peer, 7, 1)
    before, sink = dict(peer.entries), Sink()
    pool.lane("b1").send(*framed(7, 1, 3), [(sink, 0, 1, 3)])
    for request in (Read(7, 0), Read(7, 0, True, bytes(20)), Force(7)):
        with pytest.raises(WrongBookie) as wrong:
            await pool.call("b1", request)
        assert isinstance(classify("b1", wrong.value, lambda: 0), Unknown)
    await sink.count(3)
    assert {type(error) for error in sink.errors} == {WrongBookie}
    await until(lambda: peer.lost >= 2)
    assert {type(request) for _, request in peer.seen} == {GetBookieInfo}
    assert peer.entries == before
    assert set(known.strangers) == {"b1"}
    assert not known.met


async def test_who_need_not_answer_is_served_without(peer: Peer, make: Callable[..., Pool]) -> None:
    pool, known = make(None)
    known.expect = replace(known.expect, must_answer=False)
    store(peer, 7, 1)
    assert (await pool.call("b1", Read(7, 0))).code is Code.OK
    peer.identity = Identity("d", "b1", "i")
    with pytest.raises(WrongBookie, match="cluster d"):
        await pool.call("b1", Force(7))
    # The cluster requires it from now on: an open connection to who never said it ends.
    known.expect = replace(known.expect, must_answer=True)
    pool.review()
    await until(lambda: peer.lost == 2)
    peer.identity = None
    with pytest.raises(WrongBookie, match="does not say who it is"):
        await pool.call("b1", Read(7, 0))


async def sent_and_held(peer: Peer, pool: BookiePool, sink: Sink) -> None:
    """Three adds are outstanding on an open connection."""
    store(peer, 7, 1)
    await pool.call("b1", Read(7, 0))
    peer.hold = True
    pool.lane("b1").send(*framed(7, 1, 3), [(sink, 0, 1, 3)])
    await until(lambda: len(peer.held) == 1)


@pytest.mark.parametrize("noticed", ["by the list", "by the next request"])
async def test_an_open_connection_of_who_is_no_longer_there_acknowledges_nothing(
    peer: Peer, make: Callable[..., Pool], noticed: str
) -> None:
    pool, known = make()
    sink = Sink()
    await sent_and_held(peer, pool, sink)
    known.address = None
    if noticed == "by the list":
        pool.review()
    else:
        pool.lane("b1").send(*framed(7, 4, 1), [(sink, 0, 4, 4)])
    # What arrives in the same turn counts no more, and nobody is called from inside the call that noticed it.
    assert not sink.said
    peer.release()
    await sink.count(3 if noticed == "by the list" else 4)
    assert {type(error) for error in sink.errors} == {BookieUnavailable}
    await until(lambda: peer.lost == 1)


async def test_connection_ends_when_the_registration_has_another_incarnation(
    peer: Peer, make: Callable[..., Pool]
) -> None:
    pool, known = make()
    sink = Sink()
    await sent_and_held(peer, pool, sink)
    known.expect = Expected(Introduction("c", "b1", "reborn"), must_answer=True)
    known.address = BookieAddress(peer.address.host, peer.address.port)  # as in a list that was read anew
    pool.lane("b1").send(*framed(7, 4, 1), [(sink, 0, 4, 4)])
    peer.release()
    await sink.count(4)
    assert {type(error) for error in sink.errors} == {WrongBookie}
    peer.identity = Identity("c", "b1", "reborn")
    assert (await pool.call("b1", Read(7, 0))).code is Code.OK


async def test_what_waits_for_a_bookie_does_not_go_to_one_that_was_born_again(
    peer: Peer, make: Callable[..., Pool]
) -> None:
    pool, known = make()
    sink = Sink()
    pool.lane("b1").send(*framed(7, 1, 3), [(sink, 0, 1, 3)])
    call = asyncio.create_task(pool.call("b1", Force(7)))
    await asyncio.sleep(0)
    # Registered anew while they wait for the connection: right is who answers, but they were for another one.
    known.expect = Expected(Introduction("c", "b1", "reborn"), must_answer=True)
    peer.identity = Identity("c", "b1", "reborn")
    with pytest.raises(WrongBookie, match="incarnation reborn by now, and this was for i"):
        await call
    await sink.count(3)
    assert {type(error) for error in sink.errors} == {WrongBookie}
    assert not peer.entries
    pool.lane("b1").send(*framed(7, 4, 1), [(sink, 0, 4, 4)])
    await sink.count(4)
    assert sink.said[0, 4] == ["ok"], "what is sent now is for the bookie that is there"
    assert not known.strangers


async def test_waiting_adds_go_to_the_last_incarnation_if_none_is_registered(
    peer: Peer, make: Callable[..., Pool]
) -> None:
    pool, known = make()
    known.expect = Expected(Introduction("c", "b1"), must_answer=True)
    sink = Sink()
    pool.lane("b1").send(*framed(7, 1, 1), [(sink, 0, 1, 1)])
    await sink.count(1)
    peer.hang_up()
    await until(lambda: pool.endpoint("b1", 2).connection is None)
    peer.identity = Identity("c", "b1", "reborn")
    for entry in (2, 3):
        pool.lane("b1").send(*framed(7, entry, 1), [(sink, 0, entry, entry)])
        await sink.count(entry)
    assert list(sink.said.values()) == [["ok"], ["WrongBookie"], ["ok"]]


async def test_one_that_proved_nothing_is_not_waited_for_where_it_was(peer: Peer, make: Callable[..., Pool]) -> None:
    pool, known = make(None)
    known.expect = replace(known.expect, must_answer=False)
    sink = Sink()
    await sent_and_held(peer, pool, sink)
    known.address = BookieAddress("127.0.0.1", 1)
    pool.review()
    peer.release()
    await sink.count(3)
    assert {type(error) for error in sink.errors} == {BookieUnavailable}


async def test_the_same_bookie_elsewhere_finishes_where_it_was(peer: Peer, make: Callable[..., Pool]) -> None:
    pool, known = make()
    sink = Sink()
    await sent_and_held(peer, pool, sink)
    known.address = BookieAddress("127.0.0.1", 1)
    pool.review()
    peer.release()
    await sink.count(3)
    assert set(map(tuple, sink.said.values())) == {("ok",)}
    await until(lambda: peer.lost == 1)


async def test_who_hears_of_identities_may_refuse_one(peer: Peer, make: Callable[..., Pool]) -> None:
    pool, known = make()
    known.refuse = MetadataError("the store is behind this bookie")
    with pytest.raises(MetadataError, match="behind"):
        await pool.call("b1", Read(7, 0))
    await until(lambda: peer.lost == 1)
    assert not known.strangers
