"""Who holds how much of a bookie's memory: counted where it is held, told to who asks."""

from __future__ import annotations

from pathlib import Path

from tests.bookie.service.test_answers import with_entries
from tests.support.bookie_kit import memory_metadata, running
from tests.support.store_kit import add, durable, open_store, read_range, small_config

from buckram.bookie.storage.store import Store
from buckram.core.wire.messages import (
    FREE_DISK_SPACE,
    MEMORY_USE,
    OP_BOOKIE_INFO,
    TOTAL_DISK_CAPACITY,
    BookieInfoReply,
    GetBookieInfo,
    MemoryUse,
    ReplyContext,
)
from buckram.core.wire.v3 import decode_reply, encode_reply
from buckram.errors import Code
from buckram.runtime.disk.local import LocalDisk

NAMES = ["write buffer", "tail cache", "read cache", "index", "footers", "ledger records"]


def used(store: Store) -> dict[str, int]:
    found = store.memory()
    assert [use.name for use in found] == NAMES
    assert all(0 <= use.bytes <= use.limit for use in found if use.limit is not None)
    return {use.name: use.bytes for use in found}


async def test_each_part_counts_what_it_holds(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path, "inline")
    config = small_config(segment_bytes=4 << 20, tail_cache_bytes=1 << 20)
    store = open_store(disk, config)
    nothing = used(store)
    assert nothing == dict.fromkeys(NAMES, 0)
    add(store, 1, 0, [bytes(1000)] * 100)
    waiting = used(store)
    assert 100_000 < waiting["write buffer"] < 120_000
    assert waiting["index"] > 0
    assert waiting["ledger records"] > 0
    assert waiting["tail cache"] == 0
    await durable(store)
    written = used(store)
    assert written["write buffer"] == 0
    assert 100_000 < written["tail cache"] < 120_000
    limit = next(use.limit for use in store.memory() if use.name == "tail cache")
    assert limit is not None
    entry = 100
    while entry * 1000 < limit:
        add(store, 1, entry, [bytes(1000)] * 100)
        await durable(store)
        entry += 100
    assert used(store)["tail cache"] == limit
    await store.close()
    store = open_store(disk, config)
    assert used(store)["read cache"] == 0
    for first in range(0, 1500, 300):
        assert len(await read_range(store, 1, first, 300, 1 << 20)) == 300  # type: ignore[arg-type]  # a list
    read = used(store)
    assert read["read cache"] >= 1 << 20
    assert read["footers"] > 0
    await store.close()
    disk.close()


async def test_memory_use_is_sent_only_on_request(tmp_path: Path) -> None:
    async with running(tmp_path, metadata=await memory_metadata(), bookie_id="one") as kit:
        wire = await with_entries(kit, 3, 3)
        plain = await wire.call(GetBookieInfo())
        assert isinstance(plain, BookieInfoReply)
        assert plain.memory == ()
        reply = await wire.call(GetBookieInfo(TOTAL_DISK_CAPACITY | FREE_DISK_SPACE | MEMORY_USE))
        assert isinstance(reply, BookieInfoReply)
        assert [use.name for use in reply.memory] == [*NAMES, "connections", "pulls"]
        assert (reply.code, reply.total_bytes) == (Code.OK, plain.total_bytes)
        alone = await wire.call(GetBookieInfo(MEMORY_USE))
        assert isinstance(alone, BookieInfoReply)
        assert alone.total_bytes is None


def test_a_part_without_a_limit_has_none_on_the_wire_either() -> None:
    context = ReplyContext(3, 3, OP_BOOKIE_INFO, txn=7)
    reply = BookieInfoReply(Code.OK, 10, 5, (MemoryUse("a", 0, 0), MemoryUse("b", 1 << 40)))
    assert decode_reply(encode_reply(context, reply)[4:])[0] == reply
    assert len(encode_reply(context, BookieInfoReply(Code.OK, 10, 5))) < len(encode_reply(context, reply))
