"""Who is who over time: an old directory and a process that hung do not pass for the bookie that took their id over."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.bookie_kit import Kit, add, memory_metadata, running, seen, start
from tests.support.polling import until

from buckram.bookie.service.connections import session as pulse
from buckram.bookie.trust import cookie, witness
from buckram.core.cluster.store_history import encode_statement, parse_statement
from buckram.core.wire.messages import Read
from buckram.errors import Code, MetadataUnavailable, NoSuchKey, WrongCookie
from buckram.metadata.maintain.backup import set_history
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime
from buckram.types import History


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "LOOK_S", 0.02)


@asynccontextmanager
async def bookie(path: Path, tree: MemoryTree, **options: Any) -> AsyncIterator[Kit]:
    """A bookie whose incarnation depends on the name of its directory."""
    metadata = await memory_metadata(tree)
    async with running(path, metadata=metadata, bookie_id="b1", seed=sum(path.name.encode()), **options) as kit:
        yield kit
    await metadata.close()


async def forget(store: TreeStore) -> None:
    await store.delete_cookie("b1", (await store.read_cookie("b1")).version)


async def named(store: TreeStore) -> tuple[str, int]:
    found = await cookie.read_witness(store, "b1")
    assert found is not None
    return found.value.incarnation, found.value.generation


async def ended(kit: Kit) -> str:
    async with asyncio.timeout(20):
        error = await kit.bookie.failed
    assert isinstance(error, WrongCookie)
    return str(error)


async def published(kit: Kit) -> None:
    await until(lambda: kit.bookie.witness is not None and kit.bookie.witness.memory.confirmed is not None)


async def test_an_old_directory_does_not_start_under_the_id_of_its_successor(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path / "old", tree) as kit:
        assert await named(operator) == (kit.store.incarnation, 1)
        await published(kit)
    await forget(operator)
    async with bookie(tmp_path / "new", tree) as kit:
        successor = kit.store.incarnation
        assert await named(operator) == (successor, 2)
        await published(kit)
    with pytest.raises(WrongCookie, match=rf"was replaced.*{successor} \(generation 2\) took the id over at 20"):
        await start(tmp_path / "old", metadata=await memory_metadata(tree), bookie_id="b1")
    assert not (await operator.bookies()).writable
    async with bookie(tmp_path / "new", tree) as kit:
        assert await named(operator) == (successor, 2)


@pytest.mark.parametrize("files", ["of an earlier release", "of this release"])
async def test_an_old_directory_does_not_start_where_the_key_is_of_an_earlier_release(
    tmp_path: Path, files: str
) -> None:
    """Such a key has no generation: who wrote it last has the id."""
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path / "old", tree) as kit:
        await published(kit)
    await forget(operator)
    async with bookie(tmp_path / "new", tree) as kit:
        await published(kit)
    key = cookie.witness_key(operator, "b1")
    found = await operator.keys.get(key)
    said = parse_statement(key, found.value)
    await operator.keys.set(key, encode_statement(said).replace(b', "generation": 2', b""), found.version)
    if files == "of an earlier release":
        file = tmp_path / "old" / "WITNESS"
        file.write_bytes(file.read_bytes().replace(b', "generation": 1', b""))
    with pytest.raises(WrongCookie, match="was replaced"):
        await start(tmp_path / "old", metadata=await memory_metadata(tree), bookie_id="b1")
    async with bookie(tmp_path / "new", tree) as kit:
        await until(lambda: kit.bookie.witness is not None and kit.bookie.witness._published is not None)
        assert await named(operator) == (said.incarnation, 2), "it gets its generation again"


async def test_a_directory_without_a_key_takes_its_id_once(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path, tree) as kit:
        await published(kit)
    key = cookie.witness_key(operator, "b1")
    await operator.keys.delete(key, (await operator.keys.get(key)).version)
    (tmp_path / "WITNESS").unlink()
    async with bookie(tmp_path, tree) as kit:
        await published(kit)
        assert await named(operator) == (kit.store.incarnation, 1)


async def test_one_that_is_replaced_while_it_runs_serves_nothing_more_on_old_connections_neither(
    tmp_path: Path,
) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path, tree) as kit:
        await kit.ledger(1)
        wire = await kit.wire()
        assert (await wire.call(add(1, 0))).code is Code.OK
        await _name_another(operator, generation=2)
        assert "was replaced" in await ended(kit)
        assert await wire.closed()
        assert kit.bookie.state == "failed"
        await seen(operator)
    assert await named(operator) == ("another", 2), "its stop wrote nothing"


async def test_a_lost_session_is_looked_into_before_it_registers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness.Witness, "run", _never)
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path, tree) as kit:
        registration = operator.layout.registration("b1", readonly=False)
        await _name_another(operator, generation=2)
        assert isinstance(kit.metadata.keys, MemoryKeys)
        tree.expire(kit.metadata.keys.session)
        await until(lambda: kit.bookie.failed.done() or registration in tree.snapshot())
        assert kit.bookie.failed.done(), "it registered again"
        assert "was replaced" in await ended(kit)
        assert not (await operator.bookies()).writable


async def test_what_changes_between_the_look_and_the_registration_keeps_it_from_registering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness.Witness, "run", _never)
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path, tree) as kit:
        me, real = kit.bookie.witness, kit.metadata.register
        assert me is not None
        looked = me._looks
        changed = asyncio.Event()
        registration = operator.layout.registration("b1", readonly=False)

        async def late(*args: Any, **options: Any) -> None:
            if not changed.is_set():
                await _name_another(operator, generation=2)
                changed.set()
            await real(*args, **options)

        kit.metadata.register = late
        assert isinstance(kit.metadata.keys, MemoryKeys)
        tree.expire(kit.metadata.keys.session)
        await until(lambda: kit.bookie.failed.done() or registration in tree.snapshot())
        assert kit.bookie.failed.done(), "it registered again"
        assert "was replaced" in await ended(kit)
        assert me._looks >= looked + 2
        assert not (await operator.bookies()).writable


async def test_one_that_was_taken_out_while_it_hung_never_registers_again(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path, tree) as kit:
        await published(kit)
        wire = await kit.wire()
        await forget(operator)
        assert "was taken out" in await ended(kit)
        assert await wire.closed()
        await seen(operator)
        with pytest.raises(NoSuchKey):
            await operator.read_cookie("b1")


async def test_a_cookie_that_a_restore_lost_is_written_again_while_it_runs(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path, tree) as kit:
        await published(kit)
        await set_history(operator, History(1, (await operator.history()).restore, accepted=False))
        await until(lambda: kit.bookie.witness is not None and bool(kit.bookie.witness.suspect))
        await forget(operator)
        await until(lambda: operator.cookie_key("b1") in tree.snapshot())
        assert (await operator.read_cookie("b1")).value == (tmp_path / cookie.COOKIE_FILE).read_bytes()
        await set_history(operator, History(2, "second"))
        await seen(operator, writable=["b1"])
        assert not kit.bookie.failed.done()


async def test_a_store_that_went_back_to_the_predecessor_is_not_believed_until_that_is_accepted(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path / "old", tree) as kit:
        await published(kit)
        older = tree.lasting()
    await forget(operator)
    async with bookie(tmp_path / "new", tree) as kit:
        await published(kit)
        successor = kit.store.incarnation
        tree.put_back(older)
        me = kit.bookie.witness
        assert me is not None
        await until(lambda: bool(me.suspect))
        assert not me.out
        store = await memory_metadata(tree)
        await set_history(store, History(2, "second"))
        await seen(store, writable=["b1"])
        await until(lambda: me.memory.history.epoch == 2)
        assert await named(store) == (successor, 3), "it took the id from what the older store named"
    with pytest.raises(WrongCookie, match="was replaced"):
        await start(tmp_path / "old", metadata=await memory_metadata(tree), bookie_id="b1")


async def test_after_standing_still_nothing_is_answered_before_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that waited while the process was stopped are read before any timer fires."""
    monkeypatch.setattr(pulse, "BEAT_S", 3600.0)
    monkeypatch.setattr(witness.Witness, "run", _never)
    tree = MemoryTree()
    async with bookie(tmp_path, tree) as kit:
        await kit.ledger(1)
        for request in (add(1, 0), Read(1, 5)):
            wire, me = await kit.wire(), kit.bookie.witness
            assert me is not None
            assert (await wire.call(Read(1, 7))).code.explicit_negative
            away = await _store_is_away(kit)
            kit.bookie.server.pulse.limit = 0.0  # as after a stop: the time passed without a beat
            wire.send(request)
            assert await wire.drained(timeout=5.0)
            assert not wire.reader._buffer  # type: ignore[attr-defined]
            refused = await kit.wire()
            assert await refused.closed(), "it takes no connection while nobody knows whose its id is"
            away.clear()
            await until(lambda: kit.bookie.server.pulse.limit < float("inf"))
            wire = await kit.wire()
            assert (await wire.call(add(1, 0))).code is Code.OK


async def test_answers_that_waited_while_it_stood_still_do_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "BEAT_S", 3600.0)
    tree = MemoryTree()
    async with bookie(tmp_path, tree) as kit:
        await kit.ledger(1)
        for way in ("send_now", "send"):
            wire = await kit.wire()
            assert (await wire.call(add(1, 0))).code is Code.OK
            (session,) = kit.bookie.server.sessions
            kit.bookie.server.pulse.limit = 0.0
            getattr(session, way)(b"an acknowledgement")
            assert await wire.closed(), "without that"
            await until(lambda: kit.bookie.server.pulse.limit < float("inf"))


async def test_a_beat_that_comes_late_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "BEAT_S", 0.01)
    gaps = 0

    def gap() -> None:
        nonlocal gaps
        gaps += 1

    beating = pulse.Pulse(gap)
    task = asyncio.create_task(beating.run())
    await until(lambda: beating.limit < float("inf"))
    began = beating.limit
    await until(lambda: beating.limit > began)
    assert gaps == 0
    beating.limit = 0.0
    await until(lambda: gaps == 1)
    assert beating.limit == float("inf")
    task.cancel()


async def test_a_first_start_that_was_cut_off_does_not_pass_for_one_that_followed_it(tmp_path: Path) -> None:
    tree = MemoryTree()
    operator = await memory_metadata(tree)
    async with bookie(tmp_path / "old", tree):
        pass
    (tmp_path / "old" / cookie.COOKIE_FILE).rename(tmp_path / "old" / cookie.UNFINISHED_FILE)
    await forget(operator)
    async with bookie(tmp_path / "new", tree):
        pass
    with pytest.raises(WrongCookie, match="was replaced"):
        await start(tmp_path / "old", metadata=await memory_metadata(tree), bookie_id="b1")
    disk = LocalDisk(str(tmp_path / "old"), "inline")
    runtime = production_runtime(1)
    with pytest.raises(WrongCookie, match="was replaced"):
        await cookie.claim(disk, operator, "b1", "", rng=runtime.rng, clock=runtime.clock)
    disk.close()


async def test_an_id_of_an_address_that_another_bookie_holds_is_refused_in_words_of_that_case(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    async with running(tmp_path / "a", metadata=metadata, advertise="192.0.2.7:4000"):
        pass
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(WrongCookie, match=r"no --id was given.*192\.0\.2\.7:4000.*--id NAME"):
        await start(tmp_path / "b", metadata=metadata, advertise="192.0.2.7:4000")
    with pytest.raises(WrongCookie, match="wiped or swapped"):
        await start(tmp_path / "c", metadata=metadata, bookie_id="192.0.2.7:4000")


async def _never(self: Any) -> None:
    await asyncio.Event().wait()


async def _name_another(store: TreeStore, *, generation: int) -> None:
    key = cookie.witness_key(store, "b1")
    found = await store.keys.get(key)
    said = parse_statement(key, found.value)
    fields = {"incarnation": "another", "generation": generation}
    await store.keys.set(key, encode_statement(replace(said, **fields)), found.version)  # type: ignore[arg-type]


async def _store_is_away(kit: Kit) -> asyncio.Event:
    """The metadata store cannot be reached until the event is cleared."""
    away, real = asyncio.Event(), kit.metadata.history
    away.set()

    async def history(*args: Any) -> Any:
        if away.is_set():
            raise MetadataUnavailable("away")
        return await real(*args)

    kit.metadata.history = history
    return away
