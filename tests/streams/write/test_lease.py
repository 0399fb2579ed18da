"""A lease whose holder gives up while the request that takes it is under way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from buckram.core.streams.metadata.head import Head, encode_head
from buckram.core.streams.names import StreamName
from buckram.errors import NoSuchKey
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.write.lease import Holder, Lease
from buckram.types import CheckVersion, Delete, KeyOp

NAME, UID = StreamName("default", "log"), "0" * 16


class Late(MemoryKeys):
    """Requests that begin with an operation of one kind are carried out only when the test lets them."""

    def __init__(self, tree: MemoryTree, kind: type[KeyOp]) -> None:
        super().__init__(tree)
        self.sent, self.may_arrive = asyncio.Event(), asyncio.Event()
        self.carried: list[asyncio.Task[None]] = []
        self._kind = kind

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        if isinstance(ops[0], self._kind):
            # As a message that was sent: whoever waits for its answer may go away.
            self.carried.append(asyncio.create_task(self._carry_out(ops)))
            self.sent.set()
            await asyncio.shield(self.carried[-1])
        else:
            await super().multi(ops)

    async def _carry_out(self, ops: Sequence[KeyOp]) -> None:
        await self.may_arrive.wait()
        await super().multi(ops)


async def _streams(keys: MemoryKeys) -> StreamStore:
    streams = StreamStore(TreeStore(keys, "memory:x", random.Random(0)))
    await keys.create(streams.layout.head(NAME), encode_head(Head(uid=UID, created=0)))
    return streams


@pytest.mark.parametrize("takeover", [False, True])
async def test_a_lease_that_is_given_up_while_it_is_taken_is_free_afterwards(takeover: bool) -> None:
    keys = Late(MemoryTree(), Delete if takeover else CheckVersion)
    streams = await _streams(keys)
    key = streams.layout.lease(UID)
    if takeover:
        await keys.create(key, Holder("old", "n0", 0).encode())
    lease = Lease(streams, NAME, UID, Holder("me", "n1", 0), lambda reason: None, lambda: None)
    taking = asyncio.create_task(lease.acquire(takeover=takeover))
    await keys.sent.wait()
    taking.cancel()
    await asyncio.wait((taking,))
    assert taking.cancelled()
    closing = asyncio.create_task(lease.close())
    for _ in range(20):
        await asyncio.sleep(0)
    keys.may_arrive.set()
    async with asyncio.timeout(5):
        await asyncio.gather(closing, *keys.carried)
    with pytest.raises(NoSuchKey):
        await keys.get(key)
