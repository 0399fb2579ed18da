"""Whoever waits for a leader is told when it ends, and room that nobody uses goes to the next one."""

from __future__ import annotations

import asyncio

import pytest
from tests.state.machine.kit import Inventory

from buckram.config import ClientConfig
from buckram.core.machine.sessions import parse_token
from buckram.errors import CommandTooLarge, CommandUnknown, NotLeader
from buckram.namespace import Namespace
from buckram.state.machine.settings import MachineSettings
from buckram.testing import Cluster

ONE = MachineSettings(max_pending=1)


async def test_room_that_a_command_does_not_use_goes_to_the_next(ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory, settings=ONE) as machine:
        await machine.lead()
        await machine.execute(["add", "bolt", 1])
        first = asyncio.create_task(machine.execute(["add", "bolt", 1]))
        await asyncio.sleep(0)
        large = asyncio.create_task(machine.execute(["add", "x" * 5_000_000, 1]))
        await asyncio.sleep(0)
        given_up = asyncio.create_task(machine.execute(["add", "nut", 1]))
        first.add_done_callback(lambda _: given_up.cancel())
        await asyncio.sleep(0)
        last = asyncio.create_task(machine.execute(["add", "bolt", 1]))
        async with asyncio.timeout(5):
            assert await first == 2
            with pytest.raises(CommandTooLarge):
                await large
            assert await last == 3


async def test_nothing_waits_for_a_leader_that_has_ended(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as other, ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        token = await machine.token()
        leader = await machine._replica.leading()
        async with other.namespace("shop").machine("inventory", Inventory, stand=False) as second:
            leader.fail(NotLeader(machine.name, ""))
            # Its replica has not noticed yet. Nothing that is asked now would ever be answered by that leader.
            assert machine.role == "leader"
            async with asyncio.timeout(5):
                with pytest.raises(NotLeader):
                    leader.prove()
                with pytest.raises(NotLeader):
                    await leader.room()
                with pytest.raises(NotLeader):
                    leader.open_session()
                with pytest.raises(NotLeader):
                    leader.command(parse_token(token)[1], 0, b"j[]")
                await machine.read(len_of, "stale", at_most_s=0)
                await machine.lead()
                assert machine._replica._leader is not leader
                assert await machine.execute(["add", "bolt", 1]) == 1
                await second.lead(takeover=True)
                assert await second.execute(["add", "bolt", 1]) == 2


async def test_a_snapshot_that_was_cancelled_at_once_leaves_room_for_the_next(ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        await machine.execute(["add", "bolt", 1])
        snapshotter = machine._replica._snapshotter
        leader = await machine._replica.leading()
        task = snapshotter.take(leader.engine.epoch)
        snapshotter.stop()  # as the loss of the leadership does, in the same turn of the loop
        await asyncio.wait((task,))
        assert await machine.snapshot() == machine.applied


async def test_who_gives_up_waiting_for_the_leadership_does_not_get_it_later(
    three_bookies: Cluster, ns: Namespace
) -> None:
    async with three_bookies.client() as other, ns.machine("inventory", Inventory) as first:
        await first.lead()
        async with other.namespace("shop").machine("inventory", Inventory, stand=False) as second:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await second.lead()
            assert not second._replica._wanted.is_set()
            await first.step_down()
            async with asyncio.timeout(10):
                await first.lead()
            assert (first.role, second.role) == ("leader", "follower")


async def test_a_deposed_leader_does_not_say_that_a_command_is_forgotten(three_bookies: Cluster, ns: Namespace) -> None:
    quiet = ClientConfig(idle_lac_ms=0)  # Otherwise a bookie tells the old leader that it is fenced.
    async with (
        three_bookies.client(quiet) as other,
        ns.machine("inventory", Inventory, stand=False) as second,
        other.namespace("shop").machine("inventory", Inventory) as first,
    ):
        await first.lead()
        await first.execute(["add", "bolt", 1])
        lease = (await first._replica.leading()).engine._lease
        assert lease is not None
        await lease.close()  # as the end of its session does
        async with asyncio.timeout(10):
            await second.lead()
        token = await second.token()
        # The session of this token is not in the old leader's state, and nobody has told it yet that it is fenced.
        with pytest.raises((NotLeader, CommandUnknown)):
            await first.execute(["add", "bolt", 1], token=token)
        assert await second.execute(["add", "bolt", 1], token=token) == 2


def len_of(state: Inventory) -> int:
    return len(state.applied)
