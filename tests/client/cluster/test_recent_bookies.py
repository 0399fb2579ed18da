"""Readers and writers beside a bookie that became slow, and then quick again, with real bookies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.support.polling import eventually
from tests.support.slow_network import SlowNetwork

from buckram.client.maintain.placement import explain_new
from buckram.cluster import Client, connect
from buckram.config import ClientConfig
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement import latency
from buckram.core.placement.choose import slow_ones
from buckram.core.placement.policy import ANYWHERE
from buckram.runtime.production import production_runtime
from buckram.testing import Cluster, cluster

LATE_S = 0.06


@asynccontextmanager
async def client_of(c: Cluster, network: SlowNetwork) -> AsyncIterator[Client]:
    runtime = replace(production_runtime(1), network=network)
    async with connect(c.uri, runtime=runtime, config=ClientConfig(placement="any")) as client:
        yield client


def port_of(client: Client, bookie: str) -> int:
    address = client.services.bookies.resolve(bookie)
    assert address is not None
    return address.port


@pytest.mark.parametrize("batch", [1, 20])
async def test_reads_go_to_quick_replicas_and_come_back_to_one_that_recovered(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    network = SlowNetwork()
    async with cluster(bookies=3) as c, client_of(c, network) as client:
        async with await client.create(ensemble=(3, 3, 2)) as writer:
            await writer.append_many([b"%d" % n for n in range(60)])
        slow = port_of(client, writer.metadata.last_fragment.ensemble[1])
        network.delay_s[slow] = LATE_S
        async with client.open(writer.ledger_id) as reader:

            async def asked_of_60() -> int:
                before = network.chunks.get(slow, 0)
                for entry in range(60):
                    await reader.read(entry, min(59, entry + batch - 1))
                return network.chunks.get(slow, 0) - before

            assert await asked_of_60() > 0, "nobody knew that it is slow"
            assert await asked_of_60() == 0
            network.delay_s.clear()
            monkeypatch.setattr(latency, "RETRY_S", 0.01)
            monkeypatch.setattr(latency, "HALF_LIFE_S", 0.001)
            for _ in range(20):
                if await asked_of_60() >= 15:
                    break
            else:
                pytest.fail("it is quick again, and nobody asks it")


async def test_new_ensembles_avoid_a_bookie_whose_adds_take_long() -> None:
    network = SlowNetwork()
    async with cluster(bookies=4) as c, client_of(c, network) as client:
        slow = c.bookies[2]
        network.delay_s[port_of(client, slow)] = 5 * LATE_S

        async with await client.create(ensemble=(4, 4, 3)) as writer:
            assert slow in writer.metadata.last_fragment.ensemble

            async def known() -> bool:
                await writer.append(b"x")
                return slow in slow_ones(client.services.bookies.candidates())

            await eventually(known, "its adds took long and nobody noticed")

        async def members(quorum: tuple[int, int, int]) -> tuple[str, ...]:
            async with await client.create(ensemble=quorum) as writer:
                return writer.metadata.last_fragment.ensemble

        for _ in range(15):
            assert slow not in await members((3, 3, 2))
        found = await explain_new(client.services, Quorum(3, 3, 2), ANYWHERE)
        (why,) = [reason.why for reason in found.reasons if reason.bookie == slow]
        assert "it is avoided where there is a choice: its adds took " in why
        assert slow in await members((4, 4, 3)), "it is taken where there is no other"
