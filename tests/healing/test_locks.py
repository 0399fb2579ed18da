"""Locks of a replicator: none is kept when giving it back failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from buckram.config import HealingConfig
from buckram.errors import MetadataUnavailable
from buckram.healing.repair.replicator import Replicator
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import KeyStore
from buckram.testing import cluster
from buckram.types import Delete, KeyOp


class Failing:
    """Keys of a store that is away at the first attempts to give a lock back: with its mark, and then alone."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys, self.failed = keys, False
        self._failed_together = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keys, name)

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        if any(isinstance(op, Delete) and "/locks/" in op.key for op in ops) and not self._failed_together:
            self._failed_together = True
            raise MetadataUnavailable("the store is away")
        await self._keys.multi(ops)

    async def delete(self, key: str, version: int) -> None:
        if "/locks/" in key and not self.failed:
            self.failed = True
            raise MetadataUnavailable("the store is away")
        await self._keys.delete(key, version)


async def test_a_lock_that_could_not_be_given_back_is_given_back_later(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(bookies=3) as c, c.client() as client, TaskScope("healing") as scope:
        store = client.services.store
        tree, keys = Underreplication(store.keys, store.root, "test"), Failing(store.keys)
        async with await client.create(ensemble=(3, 3, 2)) as writer:
            await writer.append(b"one")
        replicator = Replicator(client, "r", HealingConfig(retry_s=0.2))
        replicator._tree = Underreplication(cast(KeyStore, keys), store.root, "r")
        await tree.prepare()
        await tree.mark(writer.ledger_id, [c.bookies[0]], 0)
        scope.spawn(replicator.run(), "replicator")
        async with asyncio.timeout(30):
            while not keys.failed or await tree.locked():  # noqa: ASYNC110 - polling with a deadline
                await asyncio.sleep(0.05)
    assert not [one for one in caplog.records if one.exc_info], "a store that is away for a moment is no failure"
