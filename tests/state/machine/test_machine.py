"""Machines on a real cluster: executing, reading, following, becoming the leader."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.state.machine.kit import Inventory

from buckram.cluster import Client
from buckram.errors import CommandForgotten, CommandRefused, NotEnoughBookies, NotLeader
from buckram.namespace import Namespace
from buckram.testing import Cluster, cluster


async def test_what_the_leader_executes_is_in_every_replica(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as other, ns.machine("inventory", Inventory, process="first") as first:
        await first.lead()
        assert await first.execute(["add", "bolt", 3]) == 3
        async with other.namespace("shop").machine("inventory", Inventory) as second:
            assert await second.read(lambda state: state.counts["bolt"], "stale", at_most_s=0) == 3
            assert await first.execute(["take", "bolt", 1]) == 2
            assert await second.read(lambda state: state.counts["bolt"], "stale", after=first.applied) == 2
            with pytest.raises(NotLeader, match="'first' leads it"):
                await second.execute(["add", "bolt", 1])
            with pytest.raises(NotLeader):
                await second.read(lambda state: state.counts)
            assert await first.read(lambda state: state.counts) == {"bolt": 2}


async def test_a_refusal_is_a_result_and_changes_nothing(ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        token = await machine.token()
        with pytest.raises(CommandRefused, match="only 0 of bolt"):
            await machine.execute(["take", "bolt", 1], token=token)
        assert await machine.execute(["add", "bolt", 5]) == 5
        with pytest.raises(CommandRefused, match="only 0 of bolt"):
            await machine.execute(["take", "bolt", 1], token=token)
        assert await machine.read(lambda state: state.applied) == [["add", "bolt", 5]]


async def test_a_follower_becomes_the_leader_when_the_leader_closes(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as other, other.namespace("shop").machine("inventory", Inventory) as first:
        await first.lead()
        for count in range(10):
            await first.execute(["add", "bolt", count])
        async with ns.machine("inventory", Inventory) as second:
            await first.close()
            async with asyncio.timeout(5):
                await second.lead()
            assert await second.read(lambda state: len(state.applied)) == 10
            assert await second.execute(["add", "bolt", 1]) == 46


async def test_commands_of_one_moment_share_an_entry(client: Client, ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        await machine.execute(["add", "nut", 1])
        results = await asyncio.gather(*(machine.execute(["add", "bolt", 1]) for _ in range(200)))
        assert results == list(range(1, 201))
        engine = (await machine._replica.leading()).engine
        assert engine._appender.segment is not None
        assert engine._appender.segment.ledger.last_pushed < 20


class Timed(Inventory):
    """It notes the times of its commands: those that are sent together have the same."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 0
        self.times: dict[int, int] = {}

    def apply(self, command: Any) -> Any:
        self.times[self.now_us] = self.times.get(self.now_us, 0) + 1
        return super().apply(command)


async def test_those_who_were_answered_together_are_sent_together(ns: Namespace) -> None:
    """Else each command of a busy machine would cost the bookies twice as many syncs."""
    async with ns.machine("inventory", Timed) as machine:
        await machine.lead()
        await machine.execute(["add", "nut", 1])

        async def one() -> None:
            for _ in range(10):
                await machine.execute(["add", "bolt", 1])

        await asyncio.gather(*(one() for _ in range(64)))
        times = await machine.read(lambda state: dict(state.times))
        assert sum(times.values()) == 641
        assert len(times) < 16


async def test_a_token_of_a_deleted_machine_means_nothing_to_its_successor(ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        token = await machine.token()
        assert await machine.execute(["add", "bolt", 5], token=token) == 5
    await ns.delete("inventory", purpose="machine")
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        assert await machine.execute(["add", "nut", 1], token=await machine.token()) == 1
        with pytest.raises(CommandForgotten, match="of another machine"):
            await machine.execute(["add", "bolt", 5], token=token)


@pytest.mark.parametrize("kind", ["machine", "database"])
async def test_who_waits_for_the_leadership_hears_that_the_cluster_is_too_small(kind: str) -> None:
    """Else lead() would wait for ever: no attempt can succeed. A namespace that fits makes it lead."""
    async with cluster(bookies=1) as small, small.client() as client:
        ns = client.namespace()
        opening: Any = ns.machine("m", Inventory) if kind == "machine" else ns.database("m")
        async with opening as replica, asyncio.timeout(10):
            for takeover in (False, True):
                with pytest.raises(NotEnoughBookies, match=r"3 bookies are needed, 1 is usable.*namespace set default"):
                    await replica.lead(takeover=takeover)
            assert replica.role == "follower"
        await client.namespaces.set("default", ensemble="1/1/1")
        again: Any = ns.machine("m", Inventory) if kind == "machine" else ns.database("m")
        async with again as replica, asyncio.timeout(10):
            await replica.lead()
            assert replica.role == "leader"
