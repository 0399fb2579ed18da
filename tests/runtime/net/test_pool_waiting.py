"""Sends that wait for a bookie that is away: they leave in their order once it is there, or each is told."""

from __future__ import annotations

import asyncio

from tests.support.net_kit import Peer, Sink, framed
from tests.support.polling import until
from tests.support.pool_kit import QUICK

from buckram.config import NetConfig
from buckram.core.wire.messages import Read
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.production import production_runtime


async def test_what_waited_for_a_connection_leaves_in_its_order(peer: Peer) -> None:
    pool, sink = BookiePool(production_runtime(), NetConfig(), {"b1": peer.address}.get), Sink()
    lane = pool.lane("b1")
    for first in range(0, 12, 3):
        lane.send(*framed(7, first, 3), [(sink, 0, first, first + 2)])
    assert lane.pending_bytes > 0
    await sink.count(12)
    assert [entry for _, entry in sink.said] == list(range(12))
    assert set(map(tuple, sink.said.values())) == {("ok",)}
    await until(lambda: lane.pending_bytes == 0)
    await pool.close()


async def test_failed_connect_fails_each_waiter_once_and_is_tried_anew(
    peer: Peer,
) -> None:
    addresses = {}
    pool, sink = BookiePool(production_runtime(), QUICK, addresses.get), Sink()
    lane = pool.lane("b1")
    for first in range(0, 9, 3):
        lane.send(*framed(7, first, 3), [(sink, 0, first, first + 2)])
    assert sink.said == {}, "never from inside send"
    await sink.count(9)
    assert lane.pending_bytes == 0
    addresses["b1"] = peer.address
    lane.send(*framed(7, 9, 3), [(sink, 0, 9, 11)])
    await sink.count(12)
    told = {entry: said[0] for (_, entry), said in sink.said.items()}
    assert [told[entry] for entry in range(9, 12)] == ["ok"] * 3
    assert "ok" not in [told[entry] for entry in range(9)]
    await pool.close()


async def test_moved_bookie_counts_as_lost_while_the_old_connection_has_answers(peer: Peer) -> None:
    other = await Peer().start()
    addresses = {"b1": peer.address}
    pool = BookiePool(production_runtime(), NetConfig(), addresses.get)
    peer.hold = True
    asked = asyncio.ensure_future(pool.call("b1", Read(7, 0), protocol=3))
    await until(lambda: len(peer.held) == 1)
    assert pool.losses("b1") == 0
    addresses["b1"] = other.address
    await pool.call("b1", Read(7, 0), protocol=3)
    assert not asked.done()
    assert pool.losses("b1") == 1, "behind the new address may be a new process"
    peer.release()
    await asked
    await pool.close()
    await other.stop()
