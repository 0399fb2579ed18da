"""What comes after the first thousand names of a folder is looked at like the others: nothing is left out silently."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import fsspec
from tests.support.bookie_kit import memory_metadata

from buckram.cli.cluster.top import _look as look_of_top
from buckram.core.cluster.conviction import Accused
from buckram.health.stream_facts import StreamsLook
from buckram.metadata.maintain.checkup import BRAKES, _examine_brakes
from buckram.metadata.records.bookie_health import ACCUSED, CONVICTED, convicted_bookies, read_accused
from buckram.metadata.tree.store import TreeStore
from buckram.replication.sides import side_of
from buckram.replication.status import replicated_namespaces
from buckram.serve.cluster_exporter import look
from buckram.testing import cluster

MANY = 1003


async def test_bookies_that_are_accused_and_brakes_that_hold() -> None:
    store = await memory_metadata()
    for number in range(MANY):
        name = f"b{number:04d}:3181"
        for folder in (ACCUSED, CONVICTED):
            await store.keys.create(f"{store.own}/{folder}/{name}", Accused(name).encode())
        said = {"waiting": 1, "unknown": 0, "of": 1}
        await store.keys.create(f"{store.own}/{BRAKES}/{name}", json.dumps(said).encode())
    assert len(await read_accused(store)) == 2 * MANY
    assert len(await convicted_bookies(store)) == MANY
    assert len(await _examine_brakes(store)) == MANY


async def test_namespaces_of_every_door() -> None:
    async with cluster(bookies=1, metadata="sqlite") as running, running.client() as client:
        names = [f"n{number:04d}" for number in range(MANY)]
        for first in range(0, MANY, 100):
            await asyncio.gather(*(client.namespaces.create(name) for name in names[first : first + 100]))
        last = client.namespace(names[-1])
        await last.create("orders", retention_consumed=True, ensemble=(1, 1, 1))
        async with last.writer("orders") as writer:
            await writer.append(b"x")
        uid = (await last.info("orders")).uid
        await last.store.keys.create(f"{last.store.layout.cursors(uid)}/c", b'{"offset": 0, "changed": 1}')
        assert [one.info.name for one in (await look(client, 10)).streams] == [f"{names[-1]}/orders"]
        assert list((await look_of_top(client)).streams) == [f"{names[-1]}/orders"]
        missed = list[tuple[str, str]]()
        found = await StreamsLook(cast(TreeStore, client.services.store)).look(missed)
        assert [one.cursor for one in found.cursors] == ["c"], missed
        files = fsspec.filesystem("buckram", metadata=running.uri)
        assert set(names) <= set(await asyncio.to_thread(files.ls, "", detail=False))
        side = await side_of(client)
        for name in names:
            await side.streams.keys.create(f"{side.streams.layout.root}/replication/{name}", b"{}")
        assert await replicated_namespaces(side) == names
