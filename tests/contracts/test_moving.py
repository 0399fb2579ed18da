"""Metadata moved between stores of all kinds: what arrives, who is refused meanwhile, and interruptions anywhere."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.conftest import (
    Backend,
    Cluster,
    EtcdBackend,
    MemoryBackend,
    SimulatedZkBackend,
    SqliteBackend,
    ZooKeeperBackend,
)
from tests.contracts.hanging import Hanging
from tests.contracts.test_metadata_store import bookie, new_ledger

from buckram.client.cluster.store_history import StoreHistory
from buckram.core.cluster.store_history import (
    Confirmed,
    Contradiction,
    Judgement,
    Memory,
    WitnessStatement,
    encode_statement,
    judge,
    learn,
    parse_statement,
)
from buckram.core.placement.topology import RackMap
from buckram.errors import (
    ConfigError,
    InvalidArgument,
    KeyNotEmpty,
    LedgerIdUsed,
    MetadataError,
    MetadataUnavailable,
    StoreWentBack,
    WrongCluster,
)
from buckram.metadata.maintain.acceptance import accept, allow_collection
from buckram.metadata.maintain.backup import copy_of, everything, restore
from buckram.metadata.maintain.migration import abandon, move
from buckram.metadata.records.topology import apache_key
from buckram.metadata.records.underreplication import Underreplication
from buckram.metadata.tree.layout import WITNESSES
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.types import MAX_LEDGER_ID, Create, History, KeyOp, KeyValue

RNG = random.Random(5)
HOLDERS = {uid: uid for uid in ("00ff00ff00ff00ff", "11ee11ee11ee11ee")}
"""Streams that share a ledger."""
PAIRS = [
    ("sqlite", "etcd"), ("etcd", "zookeeper"), ("zookeeper", "sqlite"), ("etcd", "etcd"), ("simulated", "memory"),
    ("memory", "simulated"),
]  # fmt: skip


def backend(kind: str, request: pytest.FixtureRequest, directory: Path) -> Backend:
    match kind:
        case "memory":
            return MemoryBackend()
        case "sqlite":
            return SqliteBackend(directory)
        case "simulated":
            return SimulatedZkBackend()
        case "etcd":
            return EtcdBackend(request.getfixturevalue("etcd_server"))
        case _:
            return ZooKeeperBackend(request.getfixturevalue("zookeeper_server"))


@pytest.fixture(params=PAIRS, ids="-".join)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Cluster, Cluster]]:
    clusters = [Cluster(backend(kind, request, tmp_path)) for kind in request.param]
    yield clusters[0], clusters[1]
    for one in clusters:
        await one.close()


@pytest.fixture
async def small() -> AsyncIterator[tuple[Cluster, Cluster]]:
    """For what does not depend on the kinds."""
    clusters = Cluster(MemoryBackend()), Cluster(SimulatedZkBackend())
    yield clusters
    for one in clusters:
        await one.close()


async def filled(store: TreeStore) -> list[int]:
    ledgers = [await store.allocate_ledger_id() for _ in range(3)]
    for ledger in (*ledgers, 70_000, MAX_LEDGER_ID):
        await store.create_ledger(ledger, new_ledger(7, name=b"x%d" % ledger))
    found = await store.read_ledger(ledgers[1])
    await store.delete_ledger(ledgers[1], found.version)
    found = await store.read_ledger(70_000)
    await store.delete_ledger(70_000, found.version)
    await store.write_cookie("b1", b"cookie", None)
    await store.keys.create(f"{store.own}/streams/s/head", b"a stream")
    for holder in HOLDERS:
        await store.keys.create(f"{await store.ledger_key(ledgers[0])}/{holder}", holder.encode())
    marks = Underreplication(store.keys, store.layout.root, "test")
    await marks.prepare()
    await marks.mark(ledgers[0], ["b1"], 1)
    await marks.enable(False)
    if apache_key(store):
        await store.keys.create(apache_key(store), RackMap().encode())
    await store.keys.create(f"{store.own}/{WITNESSES}/b1", encode_statement(await statement(store)))
    return [ledgers[0], ledgers[2], MAX_LEDGER_ID]


async def statement(store: TreeStore) -> WitnessStatement:
    return WitnessStatement("inc", 1, 2, 3, 1, (await store.history()).restore, "n")


async def refused(store: TreeStore, why: str) -> None:
    with pytest.raises(StoreWentBack, match=why):
        await StoreHistory(store).start()


async def stores(pair: tuple[Cluster, Cluster]) -> tuple[TreeStore, TreeStore]:
    return await pair[0].store(), await pair[1].bare_store(2, uri="target:test")


async def test_everything_arrives_and_the_cluster_goes_on_there(pair: tuple[Cluster, Cluster]) -> None:
    source, target = await stores(pair)
    ledgers = await filled(source)
    await source.require_identity(True)
    before, ids = await source.history(), await source.next_ledger_id()
    told = Confirmed(57, await statement(source))
    records = [(await source.read_ledger(one)).metadata for one in ledgers]
    instance_id = await source.instance_id()
    seen: list[int] = []
    done = await move(source, target, RNG, seen.append, seen.append)
    assert (done.instance_id, done.ledgers, done.again) == (instance_id, 3, False)
    assert done.keys == seen[0] == sum(seen[1:])
    await refused(source, "were moved to .*name that one instead")
    target = await pair[1].bare_store(3, uri="target:test")  # as who connects now
    assert await target.instance_id() == instance_id
    await StoreHistory(target).start()
    assert await target.list_ledgers() == ledgers
    assert [(await target.read_ledger(one)).metadata for one in ledgers] == records
    assert (await target.read_cookie("b1")).value == b"cookie"
    assert await target.known_bookies() == ["b1"]
    assert (await target.keys.get(f"{target.own}/streams/s/head")).value == b"a stream"
    assert await target.identity_required()
    marks = Underreplication(target.keys, target.layout.root, "test")
    assert [one async for one in marks.marked()] == ledgers[:1]
    assert not await marks.enabled()
    held = await target.ledger_key(ledgers[0])
    assert {name: (await target.keys.get(f"{held}/{name}")).value.decode() for name in HOLDERS} == HOLDERS
    with pytest.raises(KeyNotEmpty):
        await target.delete_ledger(ledgers[0], (await target.read_ledger(ledgers[0])).version)
    # Ids are used for ever, those of deleted ledgers and chosen ones too.
    with pytest.raises(LedgerIdUsed):
        await target.create_ledger(70_000, new_ledger())
    assert await target.allocate_ledger_id() >= ids
    # A bookie compares what its key says, because versions begin anew.
    history = await target.history()
    assert (history.epoch, history.restore) == (before.epoch + 1, before.restore)
    key = f"{target.own}/{WITNESSES}/b1"
    there = parse_statement(key, (await target.keys.get(key)).value)
    assert judge(Memory(before, confirmed=told), history, Confirmed(0, there)) == Judgement()
    again = await move(source, target, RNG)
    assert (again.again, again.epoch, again.ledgers) == (True, history.epoch, 3)


async def test_live_bookies_are_named(small: tuple[Cluster, Cluster]) -> None:
    source, target = await stores(small)
    await filled(source)
    await source.register(bookie("b1"), readonly=False)
    with pytest.raises(ConfigError, match=r"1 bookies are writable \(b1\).*nothing was changed"):
        await move(source, target, RNG)
    assert (await source.history()).accepted
    assert (await target.history()).epoch == 0
    await source.register(bookie("b1"), readonly=True)
    await move(source, target, RNG)


async def test_bookies_that_serve_from_an_unfinished_copy_are_named(small: tuple[Cluster, Cluster]) -> None:
    source, target = await stores(small)
    await filled(source)

    def stop(count: int) -> None:
        raise MetadataUnavailable("stopped")

    with pytest.raises(MetadataUnavailable):
        await move(source, target, RNG, progress=stop)
    for readonly in (False, True):
        await target.register(bookie("b1"), readonly=readonly)
        before = await everything(target)
        with pytest.raises(ConfigError, match=r"1 bookies are registered \(b1\).*nothing was changed"):
            await move(source, target, RNG)
        assert await everything(target) == before
    await target.unregister("b1")
    await move(source, target, RNG)
    await StoreHistory(target).start()


async def test_a_target_that_is_not_empty_is_left_alone(small: tuple[Cluster, Cluster]) -> None:
    source, target = await stores(small)
    await filled(source)
    await target.initialise()
    with pytest.raises(WrongCluster, match="is cluster"):
        await move(source, target, RNG)
    await StoreHistory(source).start()
    await StoreHistory(target).start()
    with pytest.raises(ConfigError, match="the same"):
        await move(source, source, RNG)


async def test_foreign_keys_are_not_lost(small: tuple[Cluster, Cluster]) -> None:
    source, target = await stores(small)
    await source.keys.create("/ledgers/foreign", b"what is this?")
    with pytest.raises(WrongCluster, match="/ledgers/foreign"):
        await move(source, target, RNG)
    await source.keys.delete("/ledgers/foreign", 0)
    await move(source, target, RNG)


class Dying(MemoryKeys):
    """The connection ends before or after a change; changes are counted down."""

    def __init__(self, tree: MemoryTree, left: list[int], *, after: bool) -> None:
        super().__init__(tree)
        self._left, self._after = left, after

    async def _apply(self, op: KeyOp) -> int:
        done: Callable[[], Any] = super()._apply
        return int(await self._maybe(lambda: done(op)))  # type: ignore[call-arg]

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        done: Callable[[Sequence[KeyOp]], Any] = super().multi
        await self._maybe(lambda: done(ops))

    async def _maybe(self, change: Callable[[], Any]) -> Any:
        self._left[0] -= 1
        if self._left[0] == 0 and not self._after:
            raise MetadataUnavailable("cut off")
        result = await change()
        if self._left[0] == 0:
            raise MetadataUnavailable("cut off")
        return result


@pytest.mark.parametrize("after", [False, True])
async def test_interrupted_move_locks_both_stores_until_the_call_is_repeated(after: bool) -> None:
    for cut in range(1, 60):
        here, there = MemoryTree(), MemoryTree()
        plain = TreeStore(MemoryKeys(here), "memory:here", RNG)
        await plain.initialise()
        ledgers = await filled(plain)
        left = [cut]
        source = TreeStore(Dying(here, left, after=after), "memory:here", RNG)
        target = TreeStore(Dying(there, left, after=after), "memory:there", RNG)
        try:
            await move(source, target, RNG)
        except MetadataUnavailable:
            pass
        else:
            assert left[0] > 0
            assert cut > 5, "there was nothing to interrupt"
            return
        usable = []
        for store in (source, target):
            try:
                await StoreHistory(store).start()
            except StoreWentBack:
                continue
            if (await store.history()).epoch:  # else there is nothing yet
                usable.append(store)
        # Both never; the source until it is marked, the target once it is whole.
        assert len(usable) <= 1
        if usable == [target]:
            assert (await source.history()).moved.startswith("gone ")
        await move(source, target, RNG)
        assert await target.list_ledgers() == ledgers
        await refused(source, "were moved")
        await StoreHistory(target).start()
    raise AssertionError("it was interrupted again and again")


@pytest.mark.parametrize("after", [False, True])
async def test_a_move_that_hung_changes_nothing_where_the_cluster_goes_on(after: bool) -> None:
    for at in range(1, 60):
        here, there = MemoryTree(), MemoryTree()
        await filled(await _initialised(here))
        goes_on: list[dict[str, KeyValue]] = []

        async def meanwhile() -> None:
            other = TreeStore(MemoryKeys(there), "memory:there", RNG)  # noqa: B023 - it is called in this round
            await move(TreeStore(MemoryKeys(here), "memory:here", RNG), other, RNG)  # noqa: B023
            await other.create_ledger(await other.allocate_ledger_id(), new_ledger(9))
            goes_on.append(there.lasting())  # noqa: B023

        hanging = Hanging(there, at, meanwhile, after=after)
        source, target = TreeStore(MemoryKeys(here), "memory:here", RNG), TreeStore(hanging, "memory:there", RNG)
        try:
            await move(source, target, RNG)
        except MetadataError:
            assert hanging.hung
        if not hanging.hung:
            assert at > 5, "there was nothing to hang in"
            return
        assert there.lasting() == goes_on[0], f"at change {at}"
        await refused(source, "were moved")
        await StoreHistory(target).start()
    raise AssertionError("it hung again and again")


async def _initialised(tree: MemoryTree) -> TreeStore:
    store = TreeStore(MemoryKeys(tree), "memory:here", RNG)
    await store.initialise()
    return store


async def test_who_changes_the_source_meanwhile_is_found_out(small: tuple[Cluster, Cluster]) -> None:
    source, target = await stores(small)
    ledgers = await filled(source)
    writes: list[Any] = []

    def started(total: int) -> None:
        tree = source.keys.tree  # type: ignore[attr-defined]
        writes.append(tree.open_session(lambda notify: None, lambda: None))
        tree.apply(Create(f"{source.own}/streams/late", b"late"), writes[0])

    with pytest.raises(MetadataError, match=r"streams/late.*another program changes"):
        await move(source, target, RNG, started)
    await refused(target, "unfinished copy")
    await refused(source, "being moved")
    await move(source, target, RNG)
    target = await small[1].bare_store(4)
    assert (await target.keys.get(f"{target.own}/streams/late")).value == b"late"
    assert await target.list_ledgers() == ledgers


async def test_a_move_that_is_abandoned_leaves_the_source_as_it_was(small: tuple[Cluster, Cluster]) -> None:
    source, target = await stores(small)
    await filled(source)
    before = await source.history()

    def stop(count: int) -> None:
        raise MetadataUnavailable("stopped")

    with pytest.raises(MetadataUnavailable):
        await move(source, target, RNG, progress=stop)
    await refused(source, "being moved")
    await abandon(source, target)
    assert await source.history() == before
    await StoreHistory(source).start()
    await refused(target, "unfinished copy")
    with pytest.raises(ConfigError, match="nothing to abandon"):
        await abandon(source, target)
    await move(source, target, RNG)
    with pytest.raises(ConfigError, match="nothing to abandon: its metadata were moved"):
        await abandon(source, target)


async def test_what_was_moved_is_neither_accepted_nor_restored_nor_collected(small: tuple[Cluster, Cluster]) -> None:
    source, target = await stores(small)
    await filled(source)
    backup = await copy_of(source)
    await move(source, target, RNG)
    with pytest.raises(InvalidArgument, match="were moved to"):
        await accept(source, RNG)
    with pytest.raises(InvalidArgument, match="were moved to"):
        await allow_collection(source, RNG)
    with pytest.raises(WrongCluster, match="were moved to"):
        await restore(source, backup)
    other = await Cluster(MemoryBackend()).bare_store(5, uri="memory:other")
    with pytest.raises(ConfigError, match="cannot be moved: its metadata were moved to"):
        await move(source, other, RNG)


def test_a_bookie_says_where_its_metadata_went() -> None:
    said = judge(Memory(), History(1, "r", accepted=False, moved="gone etcd://a:2379/b"), None).why
    assert "were moved to etcd://a:2379/b" in said


TOLD = WitnessStatement("inc", 2, 3, 40, 1, "r", "n1")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (TOLD, ""),
        (replace(TOLD, offset=41, nonce="n2"), ""),  # its answer was lost
        (replace(TOLD, starts=3, seq=1, nonce="n2"), ""),
        (replace(TOLD, offset=39, nonce="n0"), "of an earlier time"),
        (replace(TOLD, nonce="n0"), "of an earlier time"),
        (None, "did not come"),
    ],
)
def test_what_came_by_a_move_is_compared_by_what_it_says(found: WitnessStatement | None, why: str) -> None:
    memory = Memory(History(1, "r"), confirmed=Confirmed(57, TOLD))
    there = None if found is None else Confirmed(0, found)
    moved = History(2, "r", moved="here 1")
    verdict = judge(memory, moved, there)
    assert why in verdict.why
    assert bool(why) == bool(verdict.why)
    # Once it is known, and without a move, versions count.
    known = replace(memory, history=moved)
    for history, mine in ((moved, known), (History(1, "r"), memory), (History(1, "r", moved="here 1"), memory)):
        assert judge(mine, history, there).why
    # A move neither settles what the bookie doubts, nor asks for a new word to collect.
    doubt = Contradiction(1, b"b", "doubt")
    learned = learn(replace(memory, contradiction=doubt, reviewed="r"), moved, Confirmed(1, TOLD), 9)
    assert (learned.contradiction, learned.reviewed, learned.settled) == (doubt, "r", -1)
    assert judge(learned, moved, Confirmed(1, TOLD)).why == "doubt"
