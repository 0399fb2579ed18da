"""Keys that are written and removed whatever they hold, also while others change them."""

from __future__ import annotations

import pytest

from buckram.errors import MetadataUnavailable, NoSuchKey
from buckram.metadata.tree.key_operations import overwrite, remove
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.types import KeyValue

KEY = "/report"


class Hurried(MemoryKeys):
    """Another one writes, or removes, the key between each look at it and the change."""

    def __init__(self, tree: MemoryTree, times: int, *, removes: bool = False) -> None:
        super().__init__(tree)
        self.other, self.times, self.removes = MemoryKeys(tree), times, removes

    async def get(self, key: str, watch: object = None) -> KeyValue:
        found = await super().get(key)
        if self.times:
            self.times -= 1
            if self.removes:
                await self.other.delete(key, found.version)
            else:
                await self.other.set(key, b"of another", found.version)
        return found


async def test_a_key_holds_what_was_written_last() -> None:
    keys = MemoryKeys(MemoryTree())
    await overwrite(keys, KEY, b"a")
    before = await keys.get(KEY)
    await overwrite(keys, KEY, b"a")
    assert (await keys.get(KEY)).version == before.version + 1, "who watches it is told"
    await overwrite(keys, KEY, b"b")
    assert (await keys.get(KEY)).value == b"b"


@pytest.mark.parametrize("removes", [False, True])
async def test_it_is_tried_again_when_others_come_between(removes: bool) -> None:
    keys = Hurried(MemoryTree(), 3 if not removes else 1, removes=removes)
    await keys.other.create(KEY, b"first")
    await overwrite(keys, KEY, b"mine")
    assert (await keys.other.get(KEY)).value == b"mine"


async def test_it_is_given_up_when_others_never_stop() -> None:
    keys = Hurried(MemoryTree(), 1000)
    await keys.other.create(KEY, b"first")
    with pytest.raises(MetadataUnavailable, match="/report: others changed it 20 times meanwhile"):
        await overwrite(keys, KEY, b"mine")


async def test_a_key_is_removed_unless_somebody_changes_it_just_now() -> None:
    keys = Hurried(MemoryTree(), 1)
    await keys.other.create(KEY, b"first")
    await remove(keys, KEY)
    assert (await keys.get(KEY)).value == b"of another"
    await remove(keys, KEY)
    with pytest.raises(NoSuchKey):
        await keys.get(KEY)
    await remove(keys, KEY)
