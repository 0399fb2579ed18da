"""Directories of bookies beside metadata that do not know their cluster."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from buckram.bookie.trust.cookie import refuse_lost
from buckram.core.cluster.cookie import Cookie, serialise_cookie
from buckram.errors import WrongCluster
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore


def store() -> TreeStore:
    return TreeStore(MemoryKeys(MemoryTree()), "memory:lost", random.Random(1))


def directory(at: Path, cluster: str | None) -> Path:
    at.mkdir()
    (at / "VERSION").write_bytes(serialise_cookie(Cookie("b1", "buckram", "1\tbuckram", cluster)))
    return at


async def test_data_of_a_cluster_that_is_nowhere_is_named(tmp_path: Path) -> None:
    metadata = store()
    mine = directory(tmp_path / "bookie-1", "a-lost-one")
    with pytest.raises(WrongCluster, match=r"has no cluster.*cluster restore FILE --metadata memory:lost") as refused:
        await refuse_lost(metadata, [tmp_path / "new", mine], "Do this first. ")
    for word in (str(mine), "a-lost-one", "Nothing was created", "Do this first."):
        assert word in str(refused.value)
    assert await metadata.keys.children("/") == []


async def test_data_of_another_cluster(tmp_path: Path) -> None:
    metadata = store()
    there = await metadata.initialise()
    mine = directory(tmp_path / "bookie-1", "a-lost-one")
    with pytest.raises(WrongCluster, match=rf"is another cluster, {there}.*to an empty place"):
        await refuse_lost(metadata, [mine])
    await refuse_lost(metadata, [mine, directory(tmp_path / "bookie-2", there)])  # of the others each bookie tells
    await metadata.close()


async def test_directories_that_say_nothing_are_left_to_the_bookie(tmp_path: Path) -> None:
    metadata = store()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "VERSION").write_bytes(b"5\nnonsense")
    await refuse_lost(metadata, [tmp_path / "torn", tmp_path / "none", directory(tmp_path / "old", None)])
    await metadata.close()
