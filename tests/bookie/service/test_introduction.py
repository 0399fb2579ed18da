"""Who answers: a bookie says who it is to who asks, and does nothing for a client that expects somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.bookie_kit import KEY, Kit, Wire, add, add_frames, memory_metadata, running, stored

from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.introduction import IDENTITY_PROPERTY, Identity, Introduction
from buckram.core.wire.messages import BookieInfoReply, GetBookieInfo, Read, ReadReply
from buckram.core.wire.server_protocol import ServerProtocol
from buckram.errors import Code


def introduce(introduction: Introduction) -> bytes:
    return wire_v3.encode_request(GetBookieInfo(0, introduction), 7)


async def answer(wire: Wire) -> Identity | None:
    reply, _, txn = wire_v3.decode_reply(await wire.frame())
    assert isinstance(reply, BookieInfoReply)
    assert txn == 7
    return reply.identity


async def expected(kit: Kit) -> Introduction:
    assert kit.bookie.info is not None
    return Introduction(await kit.metadata.instance_id(), kit.id, kit.bookie.info.incarnation or "")


@pytest.mark.parametrize("protocol", [2, 3])
async def test_the_first_packet_is_an_introduction_on_either_wire(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(5)
        wire, said = await kit.wire(protocol), await expected(kit)
        wire.writer.write(introduce(said))
        found = await answer(wire)
        assert found is not None
        assert (found.cluster, found.bookie_id, found.incarnation) == (said.cluster, said.bookie_id, said.incarnation)
        assert found.highest_ledger == -1
        assert found.wall_us > 1_600_000_000_000_000
        assert kit.bookie.info is not None
        assert kit.bookie.info.properties[IDENTITY_PROPERTY] == "1"
        assert (await wire.call(add(5, 0))).code is Code.OK
        reply = await wire.call(Read(5, 0))
        assert isinstance(reply, ReadReply)
        assert reply.body == stored(5, 0)
        again = await kit.wire(protocol)
        again.writer.write(introduce(said))
        found = await answer(again)
        assert found is not None
        assert found.highest_ledger == 5


@pytest.mark.parametrize("wrong", ["cluster", "bookie", "incarnation"])
@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_client_of_another_bookie_gets_the_identity_and_nothing_else(
    tmp_path: Path, wrong: str, protocol: int
) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(5)
        right = await expected(kit)
        said = {
            "cluster": Introduction("another", right.bookie_id, right.incarnation),
            "bookie": Introduction(right.cluster, "another", right.incarnation),
            "incarnation": Introduction(right.cluster, right.bookie_id, "another"),
        }[wrong]
        wire = await kit.wire(protocol)
        behind = add_frames(5, 0, 3) if protocol == 2 else wire_v3.encode_request(add(5, 0), 8)
        fence = wire_v3.encode_request(Read(5, 0, True, KEY), 9)
        wire.writer.write(introduce(said) + (behind if protocol == 2 else behind + fence))
        found = await answer(wire)
        assert found is not None
        assert found.cluster == right.cluster
        assert (found.bookie_id, found.incarnation) == (right.bookie_id, right.incarnation)
        assert await wire.closed()
        assert kit.store.ledger(5) is None
        assert kit.bookie.server.bad_frames.total == 1


async def test_any_incarnation_will_do_where_none_is_named(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        said = await expected(kit)
        wire = await kit.wire()
        wire.writer.write(introduce(Introduction(said.cluster, said.bookie_id)))
        assert await answer(wire) is not None
        assert (await wire.call(Read(1, 0))).code is Code.NO_LEDGER


async def test_clients_without_introduction_are_served_without_identity(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(5)
        wire = await kit.wire(3)
        reply = await wire.call(GetBookieInfo())
        assert isinstance(reply, BookieInfoReply)
        assert reply.identity is None
        assert reply.total_bytes
        assert (await wire.call(add(5, 0))).code is Code.OK


async def test_what_is_said_at_the_start_does_not_decide_the_wire_and_may_be_cut_anywhere(tmp_path: Path) -> None:
    said = introduce(Introduction("c", "b"))
    for rest in (wire_v2.encode_request(Read(1, 2), 1), wire_v3.encode_request(Read(1, 2), 1)):
        for cut in range(1, len(said + rest)):
            protocol = ServerProtocol(1 << 20)
            items = [*protocol.feed((said + rest)[:cut]), *protocol.feed((said + rest)[cut:])]
            assert [type(item).__name__ for item in items] == ["Incoming", "Incoming"]
            assert items[1].context.protocol == (2 if rest[4] == 2 else 3)  # type: ignore[union-attr]  # an Incoming


async def test_a_bookie_of_another_cluster_says_so(tmp_path: Path) -> None:
    ours, theirs = await memory_metadata(seed=1), await memory_metadata(seed=2)
    async with running(tmp_path, metadata=theirs) as kit:
        wire = await kit.wire()
        wire.writer.write(introduce(Introduction(await ours.instance_id(), kit.id)))
        found = await answer(wire)
        assert found is not None
        assert found.cluster == await theirs.instance_id()
        assert await wire.closed()
