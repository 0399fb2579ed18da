"""The witness: a store or a directory that went back is found out, and nothing else is taken for one."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.bookie.service.connections.test_ledger_births import A, B, forget, make, named
from tests.support.bookie_kit import Kit, add, memory_metadata, running, seen
from tests.support.clock import pass_time
from tests.support.polling import until

from buckram.bookie.garbage import gc_limits as brake
from buckram.bookie.trust import witness, witness_memory
from buckram.core.cluster.store_history import encode_history, encode_word, parse_memory, parse_statement
from buckram.core.wire.messages import Read
from buckram.errors import Code, MetadataError, MetadataUnavailable
from buckram.metadata.tree.layout import BRAKES, COLLECT, SUSPECTS, WITNESSES
from buckram.metadata.tree.memory import MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.types import History


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "LOOK_S", 0.02)


@asynccontextmanager
async def bookie(path: Path, tree: MemoryTree, **options: Any) -> AsyncIterator[Kit]:
    metadata = await memory_metadata(tree)
    async with running(path, metadata=metadata, bookie_id="b1", **options) as kit:
        yield kit
    await metadata.close()


def key_of(kit: Kit) -> str:
    return f"{kit.metadata.own}/{WITNESSES}/b1"


async def published(kit: Kit) -> None:
    """Wait until the metadata store has the bookie's current position and the bookie has recorded that."""
    me = kit.bookie.witness
    assert me is not None
    until_now = (kit.store.starts, *kit.store.position)

    def so_far() -> bool:
        said = me.memory.confirmed
        return said is not None and (said.value.starts, said.value.seq, said.value.offset) >= until_now

    await until(so_far)


async def write(kit: Kit, ledger: int, entry: int) -> Code:
    wire = await kit.wire()
    reply = await wire.call(add(ledger, entry))
    await wire.close()
    code: Code = reply.code
    return code


async def suspect(kit: Kit, why: str) -> None:
    me = kit.bookie.witness
    assert me is not None
    await until(lambda: why in me.suspect)


async def trusted(kit: Kit) -> None:
    me = kit.bookie.witness
    assert me is not None
    await until(lambda: not me.suspect and me.memory.confirmed is not None)


async def accept(store: TreeStore, epoch: int) -> None:
    key = store.layout.history
    found = await store.keys.get(key)
    await store.keys.set(key, encode_history(History(epoch, f"restore {epoch}")), found.version)


async def test_the_key_says_how_far_the_bookie_is_and_the_file_what_was_confirmed(tmp_path: Path) -> None:
    async with bookie(tmp_path, MemoryTree()) as kit:
        await kit.ledger(1)
        assert await write(kit, 1, 0) is Code.OK
        await published(kit)
        async with asyncio.timeout(20):
            while True:  # the log's idle tail is closed after a second, which is one more change
                found = await kit.metadata.keys.get(key_of(kit))
                memory = parse_memory("file", (tmp_path / witness_memory.FILE).read_bytes())
                if memory.confirmed is not None and memory.confirmed.version == found.version:
                    break
        said = parse_statement("key", found.value)
        assert said.incarnation == kit.store.incarnation
        assert said.starts == kit.store.starts
        assert said.epoch == 1
        assert memory.confirmed.value == said


async def test_an_idle_bookie_writes_nothing(tmp_path: Path) -> None:
    async with bookie(tmp_path, MemoryTree()) as kit:
        await kit.ledger(1)
        await write(kit, 1, 0)
        me = kit.bookie.witness
        assert me is not None
        version = -1
        async with asyncio.timeout(20):
            while version != (version := (await kit.metadata.keys.get(key_of(kit))).version):
                looks = me._looks
                await until(lambda: me._looks > looks + 80)  # noqa: B023  # the log's idle tail is closed after a second


async def test_a_store_that_went_back_gets_no_writes_and_is_not_believed(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with bookie(tmp_path, tree, collection_age_s=0.0, collection_interval_s=0.02) as kit:
        await kit.ledger(1)
        assert await write(kit, 1, 0) is Code.OK
        await published(kit)
        older = tree.lasting()
        await kit.ledger(2)
        assert await write(kit, 2, 0) is Code.OK
        await published(kit)
        newest = tree.lasting()
        tree.put_back(older)
        await suspect(kit, "witness key is at version")
        await seen(kit.metadata)
        for ledger in (1, 2):
            assert await write(kit, ledger, 1) is Code.READ_ONLY, "adds go to bookies that know what is so"
            wire = await kit.wire()
            assert (await wire.call(Read(ledger, 0))).code is Code.OK, "what is here is served"
            await wire.close()
        rounds = kit.bookie.collector.rounds if kit.bookie.collector else 0
        note = f"{kit.metadata.own}/{SUSPECTS}/b1"
        await until(lambda: note in tree.snapshot())
        assert b"witness key is at version" in tree.snapshot()[note].value
        tree.put_back(newest)
        await trusted(kit)
        await seen(kit.metadata, writable=["b1"])
        await until(lambda: kit.bookie.collector is not None and kit.bookie.collector.rounds > rounds + 4)
        for ledger in (1, 2):
            assert await write(kit, ledger, 1) is Code.OK, "nothing made in between was deleted"
        assert note not in tree.snapshot()


async def test_a_ledger_that_only_the_lost_history_knew_is_not_fenced(tmp_path: Path) -> None:
    """The first add arrives after the store went back and before anybody noticed: a fence would be for good."""
    tree = MemoryTree()
    async with bookie(tmp_path, tree, admission_timeout_s=0.3) as kit:
        await kit.ledger(1)
        await write(kit, 1, 0)
        older = tree.lasting()
        await write(kit, 1, 1)
        await published(kit)
        await kit.ledger(2)
        newest = tree.lasting()
        me = kit.bookie.witness
        assert me is not None
        async with me._lock:  # nobody looks by himself
            tree.put_back(older)
            answer = asyncio.create_task(write(kit, 2, 0))
            await pass_time(0.05)
        assert await answer in (Code.TOO_MANY_REQUESTS, Code.READ_ONLY)
        assert kit.store.ledger(2) is None
        tree.put_back(newest)
        await trusted(kit)
        assert await write(kit, 2, 0) is Code.OK


async def test_a_contradiction_ends_when_the_ledger_is_known_again_as_it_was(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with bookie(tmp_path, tree, admission="known", admission_timeout_s=0.2) as kit:
        me = kit.bookie.witness
        assert me is not None
        await make(kit, A)
        assert await write(kit, 5, 0) is Code.OK
        await published(kit)
        await forget(kit, accepted=False)
        await make(kit, B)
        stranger = await named(kit, B)
        assert (await stranger.call(add(5, 0))).code in (Code.TOO_MANY_REQUESTS, Code.READ_ONLY)
        await suspect(kit, "ledger 5 is of another ledger")
        looks = me._looks
        await until(lambda: me._looks > looks + 5)
        assert me.suspect, "looking again does not make it right"
    async with bookie(tmp_path, tree, admission="known") as kit:
        await suspect(kit, "ledger 5 is of another ledger")
        await forget(kit, accepted=False)
        await make(kit, A)
        await trusted(kit)
        await seen(kit.metadata, writable=["b1"])
        assert await write(kit, 5, 1) is Code.OK
        await published(kit)
    async with bookie(tmp_path, tree) as kit:
        await trusted(kit)
        assert kit.bookie.witness is not None
        assert kit.bookie.witness.memory.contradiction is None, "what is over is forgotten on disk, too"


async def test_a_bookie_that_starts_at_a_store_that_went_back_serves_reads(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with bookie(tmp_path, tree) as kit:
        await kit.ledger(1)
        await write(kit, 1, 0)
        await published(kit)
        older = tree.lasting()
        await write(kit, 1, 1)
        await published(kit)
    tree.put_back(older)
    async with bookie(tmp_path, tree) as kit:
        await suspect(kit, "witness key is at version")
        await seen(kit.metadata)
        assert await write(kit, 1, 2) is Code.READ_ONLY
        assert kit.bookie.info is not None
        identity = kit.bookie.identity()
        assert identity.features & 2
        assert identity.epoch == 1
        await accept(kit.metadata, 2)
        await trusted(kit)
        await seen(kit.metadata, writable=["b1"])
        assert await write(kit, 1, 2) is Code.OK
        await until(lambda: kit.bookie.identity().epoch == 2)


async def test_a_restore_that_nobody_accepted_is_waited_for(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with bookie(tmp_path, tree) as kit:
        await trusted(kit)
        key, store = kit.metadata.layout.history, kit.metadata
        await store.keys.set(key, encode_history(History(1, "r", accepted=False)), 0)
        await suspect(kit, "no operator has accepted")
        await accept(store, 2)
        await trusted(kit)


async def test_an_epoch_that_a_client_tells_outlives_the_process(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with bookie(tmp_path, tree) as kit:
        await trusted(kit)
        me = kit.bookie.witness
        assert me is not None
        me.observe_epoch(5)
        await suspect(kit, "5 was seen")
        me.observe_epoch(2**60)
        assert me.epoch == 5, "no epoch is as high as that"
    async with bookie(tmp_path, tree) as kit:
        await suspect(kit, "5 was seen")
        await accept(kit.metadata, 5)
        await trusted(kit)


async def test_restarts_crashes_and_lost_files_of_one_change_are_no_alarm(tmp_path: Path) -> None:
    """The file is one change behind the key after a crash between the two; restarts follow each other closely."""
    tree, home = MemoryTree(), tmp_path / "home"
    home.mkdir()
    async with bookie(home, tree) as kit:
        await kit.ledger(1)
        await write(kit, 1, 0)
        await published(kit)
        before = (home / witness_memory.FILE).read_bytes()
        await write(kit, 1, 1)
        await published(kit)
    (home / witness_memory.FILE).write_bytes(before)
    (home / witness_memory.NEW_FILE).write_bytes(b"torn")
    for _ in range(3):
        async with bookie(home, tree) as kit:
            await trusted(kit)
            assert not kit.store.limbo
            assert await write(kit, 1, 2) is Code.OK


async def test_a_directory_of_the_release_before_begins_its_witness(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with bookie(tmp_path, tree) as kit:
        await kit.ledger(1)
        await write(kit, 1, 0)
        await trusted(kit)
    (tmp_path / witness_memory.FILE).unlink()
    metadata = await memory_metadata(tree)
    for key in (f"{metadata.own}/{WITNESSES}/b1", metadata.layout.history):
        await metadata.keys.delete(key, (await metadata.keys.get(key)).version)
    await metadata.close()
    async with bookie(tmp_path, tree) as kit:
        await trusted(kit)
        assert not kit.store.limbo
        assert (await kit.metadata.history()).epoch == 1


async def test_a_directory_put_back_to_an_earlier_state_may_have_lost_data(tmp_path: Path) -> None:
    tree, home, kept = MemoryTree(), tmp_path / "home", tmp_path / "kept"
    home.mkdir()
    async with bookie(home, tree) as kit:
        await kit.ledger(1)
        await write(kit, 1, 0)
        await published(kit)
    shutil.copytree(home, kept)
    async with bookie(home, tree) as kit:
        await write(kit, 1, 1)
        await published(kit)
    shutil.rmtree(home)
    shutil.copytree(kept, home)
    async with bookie(home, tree) as kit:
        assert kit.store.limbo, "it cannot say what it does not hold"
        await trusted(kit)
        wire = await kit.wire(3)
        assert (await wire.call(Read(1, 1))).code is Code.UNKNOWN_LEDGER_STATE


async def test_an_operator_who_lets_an_empty_directory_in_gets_no_alarm(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with bookie(tmp_path / "one", tree, disk=_disk(tmp_path / "one")) as kit:
        await trusted(kit)
        cookie = await kit.metadata.read_cookie("b1")
        await kit.metadata.delete_cookie("b1", cookie.version)
    async with bookie(tmp_path / "two", tree, disk=_disk(tmp_path / "two")) as kit:
        await trusted(kit)
        assert not kit.store.limbo


def _disk(path: Path) -> Any:
    from buckram.runtime.disk.local import LocalDisk

    path.mkdir()
    return LocalDisk(str(path), "inline")


async def test_metadata_that_is_away_changes_nothing_for_admitted_ledgers(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with bookie(tmp_path, tree) as kit:
        await kit.ledger(1)
        assert await write(kit, 1, 0) is Code.OK
        await published(kit)
        real, me = kit.metadata.keys.get, kit.bookie.witness
        assert me is not None
        tries = 0

        async def away(*args: Any, **options: Any) -> Any:
            nonlocal tries
            tries += 1
            raise MetadataUnavailable("away")

        kit.metadata.keys.get = away
        await until(lambda: tries > 3)
        assert not me.suspect
        assert await write(kit, 1, 1) is Code.OK
        kit.metadata.keys.get = real


async def test_a_lost_answer_to_a_change_is_no_alarm(tmp_path: Path) -> None:
    tree = MemoryTree()
    async with bookie(tmp_path, tree) as kit:
        await kit.ledger(1)
        await published(kit)
        real, lost = kit.metadata.keys.set, 0

        async def loses(*args: Any) -> int:
            nonlocal lost
            version: int = await real(*args)
            lost += 1
            if lost < 4:
                raise MetadataUnavailable("the answer is lost")
            return version

        kit.metadata.keys.set = loses
        for entry in range(4):
            assert await write(kit, 1, entry) is Code.OK
            await published(kit)
        assert lost >= 4
        assert kit.bookie.witness is not None
        assert not kit.bookie.witness.suspect


async def test_a_full_disk_does_not_stop_the_bookie_and_a_word_waits_for_room(tmp_path: Path) -> None:
    async with bookie(tmp_path, MemoryTree()) as kit:
        await trusted(kit)
        me, real = kit.bookie.witness, kit.disk.rename
        assert me is not None

        def full(old: str, new: str) -> None:
            if new == witness_memory.FILE:
                raise OSError(errno.ENOSPC, "no space left on device")
            real(old, new)

        kit.disk.rename = full  # type: ignore[method-assign]
        me.observe_epoch(1)
        await kit.ledger(1)
        assert await write(kit, 1, 0) is Code.OK
        await published(kit)
        assert not kit.bookie.failed.done()
        with pytest.raises(MetadataError, match="disk is full"):
            await me.remember_collection("word")
        kit.disk.rename = real  # type: ignore[method-assign]
        version = (await kit.metadata.keys.get(key_of(kit))).version
        await until(lambda: _confirmed(tmp_path) >= version)


async def test_on_a_full_disk_the_file_is_written_in_the_room_of_the_reserve(tmp_path: Path) -> None:
    async with bookie(tmp_path, MemoryTree()) as kit:
        await trusted(kit)
        me, real = kit.bookie.witness, kit.disk.rename
        assert me is not None
        await until(lambda: (tmp_path / "reserve").exists())
        size = (tmp_path / "reserve").stat().st_size

        def full(old: str, new: str) -> None:
            if (tmp_path / "reserve").stat().st_size == size:
                raise OSError(errno.ENOSPC, "no space left on device")
            real(old, new)

        kit.disk.rename = full  # type: ignore[method-assign]
        await me.remember_collection("word")
        assert parse_memory("file", (tmp_path / witness_memory.FILE).read_bytes()).collected == "word"
        kit.disk.rename = real  # type: ignore[method-assign]


async def test_a_disk_that_fails_ends_the_bookie_with_the_reason_and_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bookie(tmp_path, MemoryTree()) as kit:
        await trusted(kit)
        assert kit.bookie.witness is not None
        _break_file(kit)
        kit.bookie.witness.observe_epoch(1)
        await kit.ledger(1)
        await write(kit, 1, 0)
        async with asyncio.timeout(20):
            error = await kit.bookie.failed
        assert "WITNESS: the device fails" in str(error)
    assert [one for one in caplog.records if one.exc_info] == []


async def test_a_disk_that_fails_when_the_bookie_stops_is_said_and_everything_is_closed(tmp_path: Path) -> None:
    async with bookie(tmp_path, MemoryTree()) as kit:
        await trusted(kit)
        assert kit.bookie.witness is not None
        _break_file(kit)
        kit.bookie.witness._memory.unsaved = True
        await kit.bookie.stop()
        assert "WITNESS: the device fails" in str(kit.bookie.failed.result())
        assert (await kit.metadata.bookies()).find("b1") is None, "it took its registration back"


def _break_file(kit: Kit) -> None:
    real = kit.disk.rename

    def broken(old: str, new: str) -> None:
        if new == witness_memory.FILE:
            raise OSError(errno.EIO, f"{new}: the device fails")
        real(old, new)

    kit.disk.rename = broken  # type: ignore[method-assign]


def _confirmed(path: Path) -> int:
    memory = parse_memory("file", (path / witness_memory.FILE).read_bytes())
    return -1 if memory.confirmed is None else memory.confirmed.version


# Collection


async def test_ids_that_the_store_never_gave_are_kept(tmp_path: Path) -> None:
    async with bookie(tmp_path, MemoryTree(), collection_age_s=0.0) as kit:
        await trusted(kit)
        last = await kit.metadata.allocate_ledger_id()
        for ledger in (last, last + 1):
            kit.store.put_ledger(ledger, b"k" * 20)
        finder = kit.bookie.collector
        assert finder is not None
        deleted = [(await finder.round()).tolist() for _ in range(3)]
        assert deleted == [[], [last], []]
        assert not kit.store.ledger(last + 1).tombstone


async def test_very_many_at_once_wait_for_a_word_that_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brake, "AT_LEAST", 3)
    async with bookie(tmp_path, MemoryTree(), collection_age_s=0.0) as kit:
        await trusted(kit)
        ids = [await kit.metadata.allocate_ledger_id() for _ in range(9)]
        for ledger in ids[:4]:
            kit.store.put_ledger(ledger, b"k" * 20)
        finder, keys = kit.bookie.collector, kit.metadata.keys
        assert finder is not None
        for _ in range(3):
            assert (await finder.round()).tolist() == []
        note = f"{kit.metadata.own}/{BRAKES}/b1"
        assert b'"waiting": 4' in (await keys.get(note)).value
        await keys.create(f"{kit.metadata.own}/{COLLECT}", encode_word("go"))
        assert (await finder.round()).tolist() == ids[:4]
        with pytest.raises(Exception, match="no such key"):
            await keys.get(note)
        for ledger in ids[4:]:
            kit.store.put_ledger(ledger, b"k" * 20)
        for _ in range(3):
            assert (await finder.round()).tolist() == []


async def test_after_a_restore_nothing_goes_until_somebody_looked(tmp_path: Path) -> None:
    async with bookie(tmp_path, MemoryTree(), collection_age_s=0.0) as kit:
        await trusted(kit)
        ledger = await kit.metadata.allocate_ledger_id()
        kit.store.put_ledger(ledger, b"k" * 20)
        await accept(kit.metadata, 2)
        me = kit.bookie.witness
        assert me is not None
        await until(lambda: me.memory.history.epoch == 2)
        finder = kit.bookie.collector
        assert finder is not None
        for _ in range(3):
            assert (await finder.round()).tolist() == []
        await kit.metadata.keys.create(f"{kit.metadata.own}/{COLLECT}", encode_word("go"))
        assert (await finder.round()).tolist() == [ledger]


async def test_a_gauge_says_it(tmp_path: Path) -> None:
    values: dict[str, float] = {}

    class Gauge:
        def __init__(self, name: str) -> None:
            self.name = name

        def set(self, value: float) -> None:
            values[self.name] = value

    tree = MemoryTree()
    async with bookie(tmp_path, tree) as kit:
        await trusted(kit)
        me = kit.bookie.witness
        assert me is not None
        me._suspect_gauge = Gauge("suspect")
        me.observe_epoch(4)
        await until(lambda: values.get("suspect") == 1)


async def test_a_look_that_failed_confirms_nothing(tmp_path: Path) -> None:
    """Of a look that failed only its own caller heard; who waited with that one went on with what had been read before,
    as if the store had been looked at."""
    async with bookie(tmp_path, MemoryTree()) as kit:
        me = kit.bookie.witness
        assert me is not None
        real, gate, asked = me._read_store, asyncio.Event(), 0

        async def held() -> Any:
            nonlocal asked
            asked += 1
            await gate.wait()
            if asked > 1:
                raise MetadataUnavailable("cut off")
            return await real()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(me, "_read_store", held)
            first = asyncio.ensure_future(me.confirm())
            await until(lambda: asked >= 1)
            later = [asyncio.ensure_future(me.confirm()) for _ in range(2)]
            await asyncio.sleep(0)
            gate.set()
            results = await asyncio.gather(first, *later, return_exceptions=True)
            assert [isinstance(one, MetadataUnavailable) for one in results[1:]] == [True, True]
