"""The pool over real TCP: which wire a request takes, lanes, codes, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from tests.support.net_kit import DIGEST, KEY, Peer, Sink, framed
from tests.support.polling import until
from tests.support.pool_kit import Make, store

from buckram.core.wire.messages import (
    Add,
    AddReply,
    BatchRead,
    BatchReadReply,
    Force,
    ForceReply,
    Read,
    ReadLac,
    ReadLacReply,
    ReadReply,
    Request,
)
from buckram.errors import (
    BookieUnavailable,
    BuckramError,
    Code,
    InvalidArgument,
    LedgerFenced,
)
from buckram.runtime.net.pool import MOST_LANES


async def test_calls_take_the_wire_that_suits_them(peer: Peer, make: Make) -> None:
    store(peer, 7, 3)
    pool = make()
    body = peer.entries[7, 1]
    lac = ReadLacReply(Code.OK, 7, DIGEST.seal_lac(1, 3))
    cases: list[tuple[Request, object, int]] = [
        (Read(7, 1), ReadReply(Code.OK, 7, 1, body), 2),
        (BatchRead(7, 0, 3, 1 << 20), BatchReadReply(Code.OK, 7, 0, [peer.entries[7, i] for i in range(3)]), 2),
        (Read(7, 9), ReadReply(Code.NO_ENTRY, 7, 9), 2),
        (Read(7, 1, True, KEY), ReadReply(Code.OK, 7, 1, body), 3),
        (Read(7, -1), ReadReply(Code.NO_ENTRY, 7, -1), 3),
        (ReadLac(7), lac, 3),
        (Force(7), ForceReply(Code.OK, 7), 3),
        (Add(7, 4, KEY, DIGEST.seal(7, 4, 3, 1, b"")), AddReply(Code.OK, 7, 4), 3),
    ]
    for request, reply, _ in cases:
        assert await pool.call("b1", request) == reply
    assert [protocol for protocol, _ in peer.seen] == [protocol for _, _, protocol in cases]
    assert len(peer.transports) == 2


async def test_a_wire_can_be_forced(peer: Peer, make: Make) -> None:
    store(peer, 7, 1)
    pool = make()
    for protocol in (2, 3):
        reply = await pool.call("b1", Read(7, 0, True, KEY), protocol=protocol)
        assert reply.code is Code.OK
        assert (
            await pool.call(
                "b1", Add(7, 1, KEY, peer.entries[7, 0][:8] + DIGEST.seal(7, 1, 0, 1, b"")[8:]), protocol=protocol
            )
        ).code is Code.OK
    assert [protocol for protocol, _ in peer.seen] == [2, 2, 3, 3]
    with pytest.raises(InvalidArgument):
        await pool.call("b1", BatchRead(7, 0, 1, 1), protocol=3)
    with pytest.raises(InvalidArgument):
        await pool.call("b1", Read(7, 0), protocol=1)
    with pytest.raises(InvalidArgument):
        make(wire_protocol=4)


async def test_wire_protocol_3_uses_one_connection(peer: Peer, make: Make) -> None:
    store(peer, 7, 1)
    pool, sink = make(wire_protocol=3), Sink()
    frames, acks = framed(7, 1, 5)
    pool.lane("b1").send(frames, acks, [(sink, 0, 1, 5)])
    await pool.call("b1", Read(7, 0))
    await pool.call("b1", Force(7))
    await sink.count(5)
    assert sink.said == {(0, entry): ["ok"] for entry in range(1, 6)}
    assert {protocol for protocol, _ in peer.seen} == {3}
    assert len(peer.transports) == 1


async def test_adds_of_a_lane_are_acknowledged(peer: Peer, make: Make) -> None:
    pool, sink = make(), Sink()
    lane = pool.lane("b1")
    assert pool.lane("b1") is lane
    for i in range(50):
        frames, acks = framed(7, i * 20, 20, size=300)
        before = len(sink.said)
        lane.send(frames, acks, [(sink, 1, i * 20, i * 20 + 9), (sink, 2, i * 20 + 10, i * 20 + 19)])
        assert len(sink.said) == before  # never from inside
        if i % 7 == 0:
            await asyncio.sleep(0)
    await sink.count(1000)
    assert all(words == ["ok"] for words in sink.said.values())
    assert len(peer.entries) == 1000
    assert (lane.pending_bytes, pool.pending_bytes("b1")) == (0, 0)


async def test_recovery_and_deferred_adds_travel_on_v3(peer: Peer, make: Make) -> None:
    pool, sink = make(), Sink()
    lane = pool.lane("b1")
    lane.send(*framed(7, 0, 2), [(sink, 0, 0, 1)])
    lane.send(*framed(7, 2, 2, 6), [(sink, 0, 2, 3)])
    lane.send(*framed(7, 4, 2), [(sink, 0, 4, 5)], deferred_sync=True)
    await sink.count(6)
    assert sorted(peer.seen, key=str) == [(2, (7, 0, 2, 0)), (3, (7, 2, 2, 6)), (3, (7, 4, 2, 0))]


async def test_codes_become_errors(peer: Peer, make: Make) -> None:
    pool = make()
    for code, name in (
        (Code.FENCED, "LedgerFenced"),
        (Code.UNAUTHORIZED, "Unauthorized"),
        (Code.READ_ONLY, "BookieReadOnly"),
        (Code.IO_ERROR, "BookieIOError"),
        (Code.TOO_MANY_REQUESTS, "BookieTooBusy"),
        (Code.BAD_REQUEST, "ProtocolError"),
    ):
        peer.code = code
        for flags in (0, 6):
            sink = Sink()
            pool.lane("b1").send(*framed(7, 0, 2, flags), [(sink, 0, 0, 1)])
            await sink.count(2)
            assert sink.said == {(0, 0): [name], (0, 1): [name]}
            if isinstance(sink.errors[0], LedgerFenced):
                assert sink.errors[0].ledger_id == 7


async def test_answers_in_another_order(peer: Peer, make: Make) -> None:
    pool, sink = make(), Sink()
    peer.hold = True
    for ledger in (7, 8, 9):
        pool.lane("b1").send(*framed(ledger, 0, 3), [(sink, ledger, 0, 2)])
    await until(lambda: len(peer.held) == 3)
    peer.held.reverse()
    peer.release()
    await sink.count(9)
    assert sink.said == {(ledger, entry): ["ok"] for ledger in (7, 8, 9) for entry in range(3)}


async def test_many_at_once(peer: Peer, make: Make) -> None:
    store(peer, 7, 100)
    pool = make()

    async def one(entry: int) -> Code:
        return (await pool.call("b1", Read(7, entry))).code

    jobs: list[Awaitable[Code]] = [one(i % 120) for i in range(2000)]
    codes = await asyncio.gather(*jobs)
    assert [code is Code.OK for code in codes] == [i % 120 < 100 for i in range(2000)]


async def test_errors_name_the_bookie(peer: Peer, make: Make) -> None:
    await peer.stop()
    pool = make()
    errors: list[BuckramError] = []
    for _ in range(2):
        try:
            await pool.call("b1", Read(7, 0))
        except BookieUnavailable as error:
            errors.append(error)
    assert [str(error).count("bookie b1:") for error in errors] == [1, 1]


async def test_lanes_with_names_have_connections_of_their_own(peer: Peer, make: Make) -> None:
    pool, sink = make(), Sink()
    lanes = [pool.lane("b1", name) for name in ("", "shop", "log")]
    assert pool.lane("b1", "shop") is lanes[1]
    for number, lane in enumerate(lanes):
        lane.send(*framed(7 + number, 0, 2), [(sink, number, 0, 1)])
    await sink.count(6)
    assert len(peer.transports) == 3
    many = {pool.lane("b1", f"ns-{number}") for number in range(1000)}
    assert len(many | set(lanes[1:])) == MOST_LANES
