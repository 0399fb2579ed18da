"""Replicas that servers show: listed while they are there, compared with the log."""

from __future__ import annotations

import json

import pytest
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.core.streams.names import stream_name
from buckram.namespace import Namespace
from buckram.state.db.commits import replica_reports as replicas
from buckram.state.db.commits.replica_reports import ReplicaReport, compare_replicas, shown_replicas
from buckram.state.machine.settings import MachineSettings


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_EVERY_S", 0.05)


async def test_replicas_are_listed_while_they_are_there_and_one_that_differs_is_named(
    client: Client, ns: Namespace
) -> None:
    name = stream_name("shop/main")
    async with ns.database("main", settings=MachineSettings(keep_snapshots=2)) as leader:
        uid, store = leader._replica.place.uid, ns.store
        assert await compare_replicas(client, ns, name) == ({}, [])
        await leader.lead()
        await leader.execute("CREATE TABLE t (k)")
        for _ in range(3):
            await leader.execute("INSERT INTO t VALUES (1)")
            await leader.snapshot()
        async with ns.database("main", stand=False) as follower:
            await leader.execute("INSERT INTO t VALUES (2)")
            leader.show("one")
            follower.show("two")

            async def shown() -> bool:
                found = [(one.id, one.role, one.groups) for one in await shown_replicas(store, uid)]
                return found == [("one", "leader", 5), ("two", "follower", 5)]

            await eventually(shown)
            digest = f"{leader._engine.digest:016x}"
            assert await compare_replicas(client, ns, name) == ({"one": digest, "two": digest}, [])
            bad = ReplicaReport("bad", "follower", 4, 4, "0" * 16)
            for report in (bad, bad._replace(id="unknown", groups=900)):
                key = f"{store.layout.replicas(uid)}/{report.id}"
                await store.keys.create(key, json.dumps(report._asdict()).encode(), ephemeral=True)
            await store.keys.create(f"{store.layout.replicas(uid)}/none", b"nothing", ephemeral=True)
            digests, differing = await compare_replicas(client, ns, name)
            assert set(digests) == {"one", "two", "bad", "unknown"}
            assert len(differing) == 1
            assert "bad has the digest" in differing[0]
        assert "two" not in [one.id for one in await shown_replicas(store, uid)]
    await ns.delete("main", purpose="database")
    assert await store.keys.children(store.layout.replicas(uid), limit=10) == []


async def test_a_replica_is_shown_again_after_its_key_has_gone(ns: Namespace) -> None:
    async with ns.database("main") as db:
        uid, keys = db._replica.place.uid, ns.store.keys

        async def shown() -> bool:
            return [one.id for one in await shown_replicas(ns.store, uid)] == ["one"]

        db.show("one")
        await eventually(shown)
        (child,) = await keys.children(ns.store.layout.replicas(uid), limit=10)
        key = f"{ns.store.layout.replicas(uid)}/{child}"
        await keys.delete(key, (await keys.get(key)).version)
        await eventually(shown)
