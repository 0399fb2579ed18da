"""Backups of metadata on every store: their content, the restore, and which clients may use a restored store."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contracts.conftest import Cluster
from tests.contracts.hanging import Hanging
from tests.contracts.test_metadata_store import bookie, new_ledger

from buckram.client.cluster.store_history import StoreHistory, guarded
from buckram.core.cluster.store_history import WitnessStatement as Said
from buckram.core.cluster.store_history import encode_history, encode_statement
from buckram.core.streams.metadata.head import Fork, Head, Segment, encode_head
from buckram.errors import (
    InvalidArgument,
    MetadataError,
    MetadataUnavailable,
    NoSuchLedger,
    StoreWentBack,
    WrongCluster,
)
from buckram.metadata.maintain import acceptance
from buckram.metadata.maintain.acceptance import accept, allow_collection, suspects
from buckram.metadata.maintain.backup import Backup, copy_of, read_file, restore, set_history, write_file
from buckram.metadata.tree.layout import SUSPECTS, WITNESSES
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.types import History, KeyValue

RNG = random.Random(5)


async def filled(cluster: Cluster) -> tuple[TreeStore, list[int]]:
    store = await cluster.store()
    ledgers = [await store.allocate_ledger_id() for _ in range(3)]
    for ledger in ledgers:
        await store.create_ledger(ledger, new_ledger(7, name=b"x%d" % ledger))
    await store.write_cookie("b1", b"cookie", None)
    await store.register(bookie("b1"), readonly=False)
    await store.keys.create(f"{store.own}/streams/s", b"a stream")
    said = Said("inc", 1, 2, 3, 1, (await store.history()).restore, "n")
    await store.keys.create(f"{store.own}/{WITNESSES}/b1", encode_statement(said))
    return store, ledgers


async def note(store: TreeStore, name: str, epoch: int, highest: int) -> None:
    text = {"why": "it went back", "address": "h:1", "epoch": epoch, "highest_ledger": highest}
    await store.keys.create(f"{store.own}/{SUSPECTS}/{name}", json.dumps(text).encode(), ephemeral=True)


async def test_a_backup_holds_all_persistent_keys_and_can_be_restored(cluster: Cluster, tmp_path: Path) -> None:
    store, ledgers = await filled(cluster)
    if cluster.backend.name == "service":
        with pytest.raises(InvalidArgument, match="only the store itself"):
            await copy_of(store)
        return
    made = await copy_of(store)
    assert made.ledgers == 3
    keys = [one.key for one in made.keys]
    assert not [key for key in keys if key.endswith("/b1") and "cookies" not in key], "how things are now"
    write_file(tmp_path / "backup", made)
    assert read_file(tmp_path / "backup") == made
    later = await store.allocate_ledger_id()
    await store.create_ledger(later, new_ledger(8))
    found = await store.read_ledger(ledgers[0])
    await store.delete_ledger(ledgers[0], found.version)
    await store.keys.set(f"{store.own}/streams/s", b"changed", 0)
    await restore(store, made)
    assert await store.list_ledgers() == ledgers
    assert (await store.read_ledger(ledgers[0])).metadata == found.metadata
    assert (await store.keys.get(f"{store.own}/streams/s")).value == b"a stream"
    with pytest.raises(NoSuchLedger):
        await store.read_ledger(later)
    assert not (await store.history()).accepted
    assert list((await store.bookies()).writable) == ["b1"], "who is there stays there"


async def test_a_restore_beside_a_program_that_changes_the_store_is_no_success(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await filled(cluster)
    if cluster.backend.name == "service":
        return
    made = await copy_of(store)
    raise_next_id, key = store.raise_next_id, f"{store.own}/streams/s"

    async def changed_meanwhile(highest: int) -> None:
        await store.keys.set(key, b"of a client that goes on", (await store.keys.get(key)).version)
        await raise_next_id(highest)

    monkeypatch.setattr(store, "raise_next_id", changed_meanwhile)
    with pytest.raises(MetadataError, match="is not what the backup holds"):
        await restore(store, made)
    assert not (await store.history()).accepted


async def test_what_was_read_key_by_key_has_the_holders_of_shared_ledgers(cluster: Cluster) -> None:
    """Two streams list a ledger, and the keys by which they hold it went when the streams had been read."""
    store, ledgers = await filled(cluster)
    if cluster.backend.name == "service":
        return
    for uid, fork in (("u1", None), ("u2", Fork("shop/s", "u1", 1, True))):
        head = Head(uid, 0, tail=(Segment(0, ledgers[0], 0, 0),), fork=fork)
        await store.keys.create(f"{store.own}/streams/heads/shop/{uid}", encode_head(head))
    made = await copy_of(store)
    record = await store.ledger_key(ledgers[0])
    held = {one.key: one.value for one in made.keys if one.key.rpartition("/")[0] == record}
    if not isinstance(store, ZooKeeperStore):
        assert held == {}, "it is of one moment, so it is as it was"
        return
    assert held == {f"{record}/u1": b"shop/u1", f"{record}/u2": b"shop/u2"}
    await restore(store, made)
    assert await store.keys.children(record) == ["u1", "u2"]
    assert await store.keys.children(f"{store.own}/streams/data/u2/shared") == [f"{ledgers[0]:019d}"]


async def test_the_backup_of_another_cluster_is_refused(cluster: Cluster) -> None:
    store, _ = await filled(cluster)
    if cluster.backend.name == "service":
        with pytest.raises(InvalidArgument, match="only the store itself"):
            await copy_of(store)
        return
    made = await copy_of(store)
    key = store.layout.instance_id
    found = await store.keys.get(key)
    await store.keys.set(key, b"another-cluster", found.version)
    with pytest.raises(WrongCluster):
        await restore(await cluster.bare_store(9), made)


async def test_accepting_a_restore_raises_the_epoch_and_the_next_ledger_id(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "WITHIN_S", 0.3)
    store, ledgers = await filled(cluster)
    with pytest.raises(InvalidArgument, match="nothing to accept"):
        await accept(store, RNG)
    before = await store.history()
    await set_history(store, History(before.epoch, before.restore, accepted=False))
    with pytest.raises(MetadataUnavailable, match="b1"):
        await accept(store, RNG)
    await note(store, "b1", 4, ledgers[-1] + 40)
    assert [one.bookie_id for one in await suspects(store)] == ["b1"]
    after = (await accept(store, RNG)).history
    assert after.epoch == 5
    assert after.restore != before.restore
    assert await store.history() == after
    assert await store.allocate_ledger_id() > ledgers[-1] + 40
    await allow_collection(store, RNG)
    await allow_collection(store, RNG)


async def test_what_was_reported_before_another_restore_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bookie reports the deletions that it saw since the backup; those of an earlier restore went with this one."""
    monkeypatch.setattr(acceptance, "WITHIN_S", 0.2)
    store = await _of_program((await _made())[0])
    await store.write_cookie("b1", b"cookie", None)
    await restore(store, await copy_of(store))
    key = f"{store.own}/{SUSPECTS}/b1"
    said = {"why": "it was restored", "address": "h:1", "epoch": 1, "highest_ledger": 5}
    before = (await store.keys.get(store.layout.history)).version
    await store.keys.create(key, json.dumps({**said, "told": before}).encode())
    with pytest.raises(MetadataUnavailable, match="b1"):
        await accept(store, RNG)
    assert not (await store.history()).accepted
    await store.keys.set(key, json.dumps({**said, "told": before + 9}).encode(), 0)
    assert (await accept(store, RNG)).history.accepted


async def _of_program(tree: MemoryTree) -> TreeStore:
    return TreeStore(MemoryKeys(tree), "memory:test", RNG)


async def _goes_on(tree: MemoryTree) -> dict[str, KeyValue]:
    """The cluster is used again: it makes a ledger and changes a stream. Return all that is in the store then."""
    store = await _of_program(tree)
    await store.create_ledger(await store.allocate_ledger_id(), new_ledger(9))
    key = f"{store.own}/streams/s"
    await store.keys.set(key, b"of today", (await store.keys.get(key)).version)
    return tree.lasting()


async def _made() -> tuple[MemoryTree, Backup]:
    """A store, with a ledger, a stream and a cookie that its backup does not have."""
    tree = MemoryTree()
    store = await _of_program(tree)
    await store.initialise()
    await store.create_ledger(await store.allocate_ledger_id(), new_ledger(7))
    await store.keys.create(f"{store.own}/streams/s", b"a stream")
    made = await copy_of(store)
    await store.create_ledger(await store.allocate_ledger_id(), new_ledger(8))
    await store.keys.set(f"{store.own}/streams/s", b"of yesterday", 0)
    await store.keys.create(f"{store.own}/streams/later", b"another")
    return tree, made


@pytest.mark.parametrize("after", [False, True])
async def test_a_restore_that_hung_changes_nothing_where_the_cluster_goes_on(after: bool) -> None:
    for at in range(1, 40):
        tree, made = await _made()
        there: list[dict[str, KeyValue]] = []

        async def meanwhile() -> None:
            other = await _of_program(tree)  # noqa: B023 - it is called in this round
            await restore(other, made)  # noqa: B023
            await accept(other, RNG)
            there.append(await _goes_on(tree))  # noqa: B023

        keys = Hanging(tree, at, meanwhile, after=after)
        hung = TreeStore(keys, "memory:test", RNG)
        try:
            await restore(hung, made)
        except MetadataError:
            assert keys.hung
        if not keys.hung:
            assert at > 4, "there was nothing to hang in"
            return
        assert tree.lasting() == there[0], f"at change {at}"
    raise AssertionError("it hung again and again")


@pytest.mark.parametrize("after", [False, True])
async def test_an_acceptance_that_hung_changes_nothing_where_the_cluster_goes_on(after: bool) -> None:
    for at in range(1, 40):
        tree, made = await _made()
        there: list[dict[str, KeyValue]] = []
        await restore(await _of_program(tree), made)

        async def meanwhile() -> None:
            with suppress(InvalidArgument):  # there is nothing to accept once the other one has
                await accept(await _of_program(tree), RNG)  # noqa: B023 - it is called in this round
            there.append(await _goes_on(tree))  # noqa: B023

        keys = Hanging(tree, at, meanwhile, after=after)
        try:
            await accept(TreeStore(keys, "memory:test", RNG), RNG)
        except MetadataError:
            assert keys.hung
        if not keys.hung:
            assert at > 2, "there was nothing to hang in"
            return
        assert tree.lasting() == there[0], f"at change {at}"
    raise AssertionError("it hung again and again")


async def test_a_client_refuses_metadata_older_than_bookies_have_seen(cluster: Cluster) -> None:
    store, _ = await filled(cluster)
    past = StoreHistory(store)
    await past.start()
    used = guarded(store, past)
    assert len(await used.list_ledgers()) == 3
    past.note_epoch(3)
    for attempt in (used.list_ledgers, used.allocate_ledger_id, lambda: used.keys.get(store.layout.instance_id)):
        with pytest.raises(StoreWentBack, match="epoch is 1, and 3 was seen"):
            await attempt()  # type: ignore[operator]
    found = await store.keys.get(store.layout.history)
    await store.keys.set(store.layout.history, encode_history(History(3, "third")), found.version)
    with pytest.raises(StoreWentBack, match="connect again"):
        await used.list_ledgers()
    again = StoreHistory(store)
    await again.start()
    assert len(await guarded(store, again).list_ledgers()) == 3


async def test_a_client_refuses_a_restored_store_until_it_is_accepted(cluster: Cluster) -> None:
    store, _ = await filled(cluster)
    now = await store.history()
    await set_history(store, History(now.epoch, now.restore, accepted=False))
    with pytest.raises(StoreWentBack, match="accept-restore"):
        await StoreHistory(store).start()
