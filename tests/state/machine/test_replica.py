"""Roles of replicas on a real cluster: take-over, commands whose outcome is unknown, replicas that must stop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.state.machine.kit import Inventory
from tests.support.polling import until

from buckram.cluster import Client
from buckram.core.machine.read_proofs import Freshness
from buckram.errors import CommandUnknown, NotLeader, ReplicaDiverged, ReplicaStopped, TooStale
from buckram.namespace import Namespace
from buckram.runtime.process.tasks import TaskScope
from buckram.state.machine.freshness import FreshnessQuestion
from buckram.state.machine.settings import MachineSettings
from buckram.testing import Cluster


async def test_a_take_over_fences_the_leader_and_loses_nothing(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as other, ns.machine("inventory", Inventory) as first:
        await first.lead()
        acknowledged: list[int] = []
        unknown: list[tuple[int, str]] = []

        async def work(number: int) -> None:
            while True:
                try:
                    await first.execute(["add", f"w{number}", 1])
                    acknowledged.append(number)
                except CommandUnknown as error:
                    unknown.append((number, error.token))
                    return
                except NotLeader:
                    return

        async with other.namespace("shop").machine("inventory", Inventory, stand=False) as second:
            tasks = [asyncio.create_task(work(number)) for number in range(20)]
            await until(lambda: len(acknowledged) > 200)
            async with asyncio.timeout(10):
                await second.lead(takeover=True)
                await asyncio.gather(*tasks)
            for number, token in unknown:
                # Whether the first attempt was executed or not: it counts once, and twice asked gives the same.
                result = await second.execute(["add", f"w{number}", 1], token=token)
                assert await second.execute(["add", f"w{number}", 1], token=token) == result
            counts = await second.read(lambda state: dict(state.counts))
            for number in range(20):
                wanted = acknowledged.count(number) + sum(1 for other, _ in unknown if other == number)
                assert counts[f"w{number}"] == wanted
            await until(lambda: first.role == "follower")
            assert await first.read(lambda state: state.counts, "stale", at_most_s=0) == counts


async def test_an_abandoned_leader_is_followed_by_a_candidate(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as other, ns.machine("inventory", Inventory) as second:
        first = await other.namespace("shop").machine("inventory", Inventory)
        await until(lambda: "leader" in (first.role, second.role))
        dying, heir = (first, second) if first.role == "leader" else (second, first)
        assert await dying.execute(["add", "bolt", 7]) == 7
        engine = (await dying._replica.leading()).engine
        assert engine._lease is not None
        await engine._lease.close()  # as the end of its session does
        async with asyncio.timeout(10):
            await heir.lead()
        assert await heir.read(lambda state: state.counts) == {"bolt": 7}
        # Nobody has told the old leader; what it appends is refused by the bookies.
        with pytest.raises(NotLeader):
            await dying.read(lambda state: state.counts)
        await until(lambda: dying.role == "follower")


class OldInventory(Inventory):
    """A version that does not know "take" yet."""

    def apply(self, command: Any) -> Any:
        return super().apply(command if command[0] == "add" else ["unknown", command])


async def test_a_replica_stops_at_a_command_that_it_does_not_know(three_bookies: Cluster, ns: Namespace) -> None:
    async with three_bookies.client() as other, ns.machine("inventory", Inventory) as new:
        await new.lead()
        async with other.namespace("shop").machine("inventory", OldInventory) as old:
            await new.execute(["add", "bolt", 7])
            await new.execute(["take", "bolt", 1])
            await new.execute(["add", "bolt", 1])
            await until(lambda: old.role == "stopped")
            with pytest.raises(ReplicaStopped, match="does not know the command"):
                await old.read(lambda state: state.counts, "stale")
            assert old._state.instance.counts == {"bolt": 7}
            assert old.applied == new.applied - 2
            await new.close()
        async with other.namespace("shop").machine("inventory", Inventory) as again:
            await again.lead()
            assert await again.read(lambda state: state.counts) == {"bolt": 7}


class WrongInventory(Inventory):
    """It miscounts nuts."""

    def apply(self, command: Any) -> Any:
        result = super().apply(command)
        if command[1] == "nut":
            self.counts["nut"] += 1
        return result


async def test_a_replica_that_differs_stops_and_says_where(three_bookies: Cluster, ns: Namespace) -> None:
    settings = MachineSettings(digest_commands=10)
    async with three_bookies.client() as other, ns.machine("inventory", Inventory, settings=settings) as right:
        await right.lead()
        async with other.namespace("shop").machine("inventory", WrongInventory) as wrong:
            for _ in range(15):
                await right.execute(["add", "bolt", 1])
            agreed = wrong._replica.fold
            await until(lambda: agreed.agreed is not None)
            for _ in range(15):
                await right.execute(["add", "nut", 1])
            await until(lambda: wrong.role == "stopped")
            with pytest.raises(ReplicaDiverged) as caught:
                await wrong.lead()
            assert caught.value.agreed == agreed.agreed
            assert caught.value.own_digest != caught.value.leader_digest
            assert await right.execute(["add", "bolt", 1]) == 16


async def test_an_error_in_apply_stops_the_leader_and_says_so(client: Client, ns: Namespace) -> None:
    class Broken(Inventory):
        def apply(self, command: Any) -> Any:
            return command["no such key"]

    async with ns.machine("inventory", Broken) as machine:
        await machine.lead()
        with pytest.raises(ReplicaStopped, match=r"apply\(\) failed with TypeError"):
            await machine.execute(["add", "bolt", 1])
        with pytest.raises(ReplicaStopped):
            await machine.execute(["add", "bolt", 1])
        await until(lambda: machine.role == "stopped")


async def test_a_replica_that_was_just_opened_is_not_read_before_it_has_read_its_log(
    three_bookies: Cluster, ns: Namespace
) -> None:
    async with ns.machine("inventory", Inventory) as first:
        await first.lead()
        for _ in range(20):
            await asyncio.gather(*(first.execute(["add", "bolt", 1]) for _ in range(10)))
        async with ns.machine("inventory", Inventory, stand=False) as second:
            await second.read(lambda state: None, "stale", after=first.applied)  # Now readers can have all of it.
        async with ns.machine("inventory", Inventory, stand=False) as third:
            assert await third.read(lambda state: dict(state.counts), "stale") == {"bolt": 200}
    # Without an answer of the bookies nobody knows how much is missing, and nobody waits for ever.
    freshness = FreshnessQuestion(third._replica.place, Freshness(), third._replica.applied_at_least, TaskScope("test"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("buckram.state.machine.freshness._BEGIN_S", 0.01)
        with pytest.raises(TooStale, match="has not reached the end of the log"):
            await freshness.begun()
