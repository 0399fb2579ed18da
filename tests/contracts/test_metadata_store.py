"""The contract of MetadataStore on every key store: ledgers, ids, registrations, cookies."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.contracts.conftest import Cluster, Watch
from tests.support.polling import until

from buckram.core.ledgers.metadata import closed, created, ensemble_changed, in_recovery
from buckram.core.ledgers.metadata_codec import serialise
from buckram.errors import (
    AlreadyRegistered,
    ClusterNotInitialised,
    InvalidArgument,
    KeyExists,
    LedgerExists,
    LedgerIdUsed,
    MalformedRecord,
    NoSuchKey,
    NoSuchLedger,
    ValueTooLarge,
    VersionConflict,
)
from buckram.metadata.tree.store import TreeStore
from buckram.seams import MetadataStore
from buckram.types import MAX_LEDGER_ID, BookieAddress, BookieInfo, Create, History, LedgerMetadata, Versioned


def new_ledger(token: int = 7, **custom: bytes) -> LedgerMetadata:
    return created(3, 3, 2, ["a:1", "b:1", "c:1"], creator_token=token, custom_metadata=custom)


def bookie(name: str, port: int = 3181, **properties: str) -> BookieInfo:
    return BookieInfo(name, BookieAddress("127.0.0.1", port), properties)


async def test_a_tree_store_is_a_metadata_store(cluster: Cluster) -> None:
    store: MetadataStore = await cluster.store()
    assert store.uri.endswith(":test")


async def test_initialising_is_idempotent_and_shared(cluster: Cluster) -> None:
    empty = await cluster.bare_store(uri="x:y")
    with pytest.raises(ClusterNotInitialised, match="x:y"):
        await empty.instance_id()
    others = [await cluster.bare_store(seed) for seed in range(4)]
    ids = await asyncio.gather(*(store.initialise() for store in others))
    assert len(dict.fromkeys(ids)) == 1
    assert await empty.instance_id() == ids[0] == await others[2].initialise()
    assert len(ids[0]) == 36
    assert ids[0][14] == "4"


async def test_a_new_cluster_has_a_history_that_every_session_sees(cluster: Cluster) -> None:
    one, two = await cluster.store(1), await cluster.store(2)
    history = await one.history()
    assert history.epoch == 1
    assert history.accepted
    assert len(history.restore) == 36
    assert await two.history() == history
    assert await two.begin_history() == history, "it begins once"


async def test_a_cluster_of_an_older_release_has_none_until_it_is_begun(cluster: Cluster) -> None:
    one, two = await cluster.store(1), await cluster.store(2)
    await one.keys.delete(one.layout.history, 0)
    assert await one.history() == History(0, "")
    changed = Watch()
    await one.history(changed)
    first, second = await asyncio.gather(one.begin_history(), two.begin_history())
    assert first == second
    assert first.epoch == 1
    await changed.fired()
    await one.reopen()  # nothing, where no file was replaced


async def test_a_history_that_cannot_be_read_is_an_error_with_a_name(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.keys.set(store.layout.history, b"epoch 7", 0)
    with pytest.raises(MalformedRecord, match="history"):
        await store.history()


async def test_a_ledger_is_created_read_updated_and_deleted(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    first = await store.create_ledger(5, new_ledger(app=b"test"))
    assert first == Versioned(new_ledger(app=b"test"), 0)
    assert await other.read_ledger(5) == first
    changed = await other.write_ledger(5, ensemble_changed(first.metadata, 4, ["a:1", "d:1", "c:1"]), 0)
    assert changed.version == 1
    assert changed.metadata.creator_token == 0
    assert await store.read_ledger(5) == changed
    final = await store.write_ledger(5, closed(in_recovery(changed.metadata), 10, 1000), 1)
    assert (await other.read_ledger(5)).metadata == final.metadata
    with pytest.raises(VersionConflict):
        await store.delete_ledger(5, 1)
    await store.delete_ledger(5, 2)
    for attempt in (store.read_ledger(5), store.delete_ledger(5, 2), store.write_ledger(5, final.metadata, 2)):
        with pytest.raises(NoSuchLedger) as error:
            await attempt
        assert error.value.ledger_id == 5


async def test_an_update_writes_creator_token_zero_whatever_it_is_given(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.create_ledger(1, new_ledger())
    written = await store.write_ledger(1, replace(new_ledger(), creator_token=99), 0)
    assert written.metadata.creator_token == (await store.read_ledger(1)).metadata.creator_token == 0


async def test_one_of_two_updates_of_the_same_version_fails(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    begun = (await store.create_ledger(1, new_ledger())).metadata
    results = await asyncio.gather(
        store.write_ledger(1, closed(begun, 9, 90), 0),
        other.write_ledger(1, in_recovery(begun), 0),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["VersionConflict", "Versioned"]
    winner = next(result for result in results if isinstance(result, Versioned))
    assert await store.read_ledger(1) == winner


async def test_creating_again_with_the_same_token_succeeds(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    first = await store.create_ledger(1, new_ledger(token=42))
    assert await other.create_ledger(1, new_ledger(token=42)) == first
    for token in (43, 0):
        with pytest.raises(LedgerExists):
            await other.create_ledger(1, new_ledger(token=token))
    await store.write_ledger(1, in_recovery(first.metadata), 0)
    with pytest.raises(LedgerExists):  # an update erased the token, so this may be somebody else's
        await store.create_ledger(1, new_ledger(token=42))
    await store.create_ledger(2, new_ledger(token=0))
    with pytest.raises(LedgerExists):
        await store.create_ledger(2, new_ledger(token=0))


async def test_ledger_ids_have_limits(cluster: Cluster) -> None:
    store = await cluster.store()
    for ledger_id in (-1, MAX_LEDGER_ID + 1):
        with pytest.raises(InvalidArgument, match=str(ledger_id)):
            await store.create_ledger(ledger_id, new_ledger())
    await store.create_ledger(MAX_LEDGER_ID, new_ledger())
    await store.create_ledger(0, new_ledger())
    assert await store.list_ledgers() == [0, MAX_LEDGER_ID]


async def test_a_record_that_does_not_parse_is_an_error_with_a_name(cluster: Cluster) -> None:
    store = await cluster.store()
    direct = await cluster.direct()
    await direct.keys.create(direct.layout.ledger(8), b"not metadata")
    with pytest.raises(MalformedRecord, match="ledger 8"):
        await store.read_ledger(8)
    with pytest.raises(ValueTooLarge):
        await store.create_ledger(9, new_ledger(blob=b"x" * 600_000))


async def test_listing_ten_thousand_ledgers(cluster: Cluster) -> None:
    store = await cluster.store()
    direct = await cluster.direct()
    key = direct.layout.ledger
    ids = [number * 7 for number in range(10_000)]
    record = b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\ta:1\n"
    for start in range(0, len(ids), 2000):
        await direct.keys.multi([Create(key(ledger_id), record) for ledger_id in ids[start : start + 2000]])
    await direct.keys.create(key(7).rpartition("/")[0] + "/stray", b"")
    seen: list[int] = []
    while page := await store.list_ledgers(after=seen[-1] if seen else -1, limit=999):
        seen += page
    assert seen == ids
    assert await store.list_ledgers(after=13, limit=3) == [14, 21, 28]
    assert await store.list_ledgers(after=ids[-1]) == []


async def test_records_are_read_in_pages_and_bad_ones_are_named(cluster: Cluster) -> None:
    store = await cluster.store()
    direct = await cluster.direct()
    ids = [number * 7 for number in range(300)]
    for ledger_id in ids:
        await direct.keys.create(direct.layout.ledger(ledger_id), serialise(new_ledger(number=b"%d" % ledger_id)))
    await direct.keys.create(direct.layout.ledger(9), b"not metadata")
    await direct.keys.create(direct.layout.ledger(7).rpartition("/")[0] + "/stray", b"")
    ids = sorted([*ids, 9])
    seen: list[tuple[int, Versioned | MalformedRecord]] = []
    while page := await store.read_ledgers(after=seen[-1][0] if seen else -1, limit=140):
        assert len(page) <= 140
        seen += page
    assert [ledger_id for ledger_id, _ in seen] == ids
    for ledger_id, found in seen:
        if ledger_id == 9:
            assert isinstance(found, MalformedRecord)
            assert "ledger 9" in str(found)
        else:
            assert found == Versioned(new_ledger(number=b"%d" % ledger_id), 0)
    assert await store.read_ledgers(after=ids[-1]) == []


async def test_listing_continues_after_a_page_of_invalid_keys(cluster: Cluster) -> None:
    store = await cluster.store()
    for number in range(5):
        await store.keys.create(store.layout.ledger(7).rpartition("/")[0] + f"/0{number}", b"")
    await store.create_ledger(10**18, new_ledger())
    assert await store.list_ledgers(limit=2) == [10**18]
    assert [ledger_id for ledger_id, _ in await store.read_ledgers(limit=2)] == [10**18]


async def test_a_ledger_watch_fires_for_creation_update_and_deletion(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    watch = Watch()
    with pytest.raises(NoSuchLedger):
        await store.read_ledger(3, watch)
    first = await other.create_ledger(3, new_ledger())
    await watch.fired()
    watch = Watch()
    await store.read_ledger(3, watch)
    await other.write_ledger(3, in_recovery(first.metadata), 0)
    await watch.fired()
    watch = Watch()
    await store.read_ledger(3, watch)
    await other.delete_ledger(3, 1)
    await watch.fired()


async def test_allocated_ids_are_unique_among_sessions(cluster: Cluster) -> None:
    stores = [await cluster.store(seed) for seed in range(4)]

    async def take(store: TreeStore) -> list[int]:
        return [await store.allocate_ledger_id() for _ in range(100)]

    taken = await asyncio.gather(*(take(store) for store in stores for _ in range(2)))
    ids = sorted(ledger_id for part in taken for ledger_id in part)
    assert len(dict.fromkeys(ids)) == 800
    assert ids[0] == 0
    assert ids[-1] < 4 * 128 * 3


async def test_the_first_allocated_ids_have_no_gaps(cluster: Cluster) -> None:
    """A process that creates one ledger and ends leaves no gap in the ids."""
    for expected in range(4):
        assert await (await cluster.store()).allocate_ledger_id() == expected


async def test_a_corrupt_id_counter_raises_instead_of_reusing_ids(cluster: Cluster) -> None:
    store = await cluster.folder_store()
    await store.keys.create("/buckram/next-ledger-id", b"not a number")
    with pytest.raises(MalformedRecord, match="next-ledger-id"):
        await store.allocate_ledger_id()


async def test_registration_appears_refreshes_and_ends(cluster: Cluster) -> None:
    store, client = await cluster.store(), await cluster.store(2)
    came = Watch()
    assert (await client.bookies(came)).writable == {}
    await store.register(bookie("b1", incarnation="x"), readonly=False)
    await came.fired()
    changed = Watch()
    found = await client.bookies(changed)
    assert found.find("b1") == bookie("b1", incarnation="x")
    await store.register(bookie("b1", port=9999, incarnation="x"), readonly=False)
    await changed.fired()
    gone = Watch()
    found = await client.bookies(gone)
    assert found.writable["b1"].address == BookieAddress("127.0.0.1", 9999)
    await store.close()
    await gone.fired()
    assert (await client.bookies()).find("b1") is None


async def test_a_bookie_changing_between_writable_and_readonly_stays_listed(cluster: Cluster) -> None:
    store, client = await cluster.store(), await cluster.store(2)
    await store.register(bookie("b1"), readonly=False)
    missing = 0
    looked = asyncio.Event()

    async def look() -> None:
        nonlocal missing
        while not done.is_set():
            found = await client.bookies()
            missing += found.find("b1") is None
            looked.set()
            await asyncio.sleep(0)

    done = asyncio.Event()
    looking = asyncio.create_task(look())
    for number in range(21):
        await store.register(bookie("b1"), readonly=number % 2 == 0)
        looked.clear()
        await looked.wait()  # who changes sides twice while the lists are read is in none of them
    done.set()
    await looking
    assert missing == 0
    found = await client.bookies()
    assert (list(found.writable), list(found.readonly)) == ([], ["b1"])
    await store.register(bookie("b1"), readonly=False)
    found = await client.bookies()
    assert (list(found.writable), list(found.readonly)) == (["b1"], [])
    await store.unregister("b1")
    assert (await client.bookies()).find("b1") is None
    await store.unregister("b1")


async def test_a_live_foreign_registration_is_an_error(cluster: Cluster) -> None:
    store, rival = await cluster.store(), await cluster.store(2, takeover_wait_s=0.05)
    await store.register(bookie("b1", port=1), readonly=False)
    for readonly in (False, True):
        with pytest.raises(AlreadyRegistered, match="b1"):
            await rival.register(bookie("b1", port=2), readonly=readonly)
    await rival.unregister("b1")
    found = await rival.bookies()
    assert found.writable["b1"].address == BookieAddress("127.0.0.1", 1)
    assert not found.readonly


async def test_a_registration_waits_for_the_end_of_the_previous_one(cluster: Cluster) -> None:
    before, after = await cluster.store(), await cluster.store(2)
    await before.register(bookie("b1", port=1), readonly=True)
    registering = asyncio.create_task(after.register(bookie("b1", port=2), readonly=False))
    await asyncio.sleep(0)
    await before.close()
    await registering
    found = await after.bookies()
    assert found.writable["b1"].address == BookieAddress("127.0.0.1", 2)
    assert not found.readonly


async def test_a_lost_session_removes_the_registration_until_it_is_renewed(cluster: Cluster) -> None:
    store, client = await cluster.store(), await cluster.store(2)
    await store.register(bookie("b1"), readonly=False)
    lost, gone = Watch(), Watch()
    store.on_session_lost(lost)
    await client.bookies(gone)
    await cluster.backend.lose_session(store.keys)
    await gone.fired()
    await lost.fired()
    assert (await client.bookies()).find("b1") is None
    await store.register(bookie("b1"), readonly=False)
    assert (await client.bookies()).find("b1") == bookie("b1")


async def test_one_bad_registration_does_not_hide_the_others(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.register(bookie("good"), readonly=False)
    layout = store.layout
    await store.keys.create(layout.registration("bad", readonly=False), b"\xff\xff", ephemeral=True)
    await store.keys.create(layout.registration("old.host:3181", readonly=True), b"", ephemeral=True)
    await store.keys.create(layout.registration("nameonly", readonly=True), b"", ephemeral=True)
    found = await store.bookies()
    assert found.writable == {"bad": BookieInfo("bad", None), "good": bookie("good")}
    assert found.readonly["old.host:3181"].address == BookieAddress("old.host", 3181)
    assert found.readonly["nameonly"].address is None


async def test_repeated_subscriptions_fire_each_watch_once(cluster: Cluster) -> None:
    """Each subscriber is notified of a change once, however often it subscribed."""
    store, client = await cluster.store(), await cluster.store(2)
    await store.register(bookie("b1"), readonly=False)
    watches = [Watch() for _ in range(50)]
    for watch in watches:
        await client.bookies(watch)
        await client.bookies(watch)
    await store.register(bookie("b1", port=2), readonly=False)
    await until(lambda: all(watch.times for watch in watches))
    last = Watch()
    await client.bookies(last)
    await store.register(bookie("b1", port=3), readonly=False)
    await last.fired()
    assert [watch.times for watch in watches] == [1] * 50


@pytest.mark.parametrize("name", ["", "readonly", "ReadOnly", "a/b", "a b", "ä", "a,b"])
async def test_bookie_ids_that_a_peer_cannot_parse_are_refused(cluster: Cluster, name: str) -> None:
    store = await cluster.store()
    for attempt in (
        store.register(bookie(name), readonly=False), store.unregister(name), store.read_cookie(name),
        store.write_cookie(name, b"", None), store.delete_cookie(name, 0),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            await attempt
    with pytest.raises(InvalidArgument, match="address"):
        await store.register(BookieInfo("b1", None), readonly=False)


async def test_cookies_are_created_replaced_and_deleted_by_version(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    assert await store.known_bookies() == []
    assert await store.write_cookie("b2", b"two", None) == 0
    assert await store.write_cookie("b1", b"one", None) == 0
    with pytest.raises(KeyExists):
        await other.write_cookie("b1", b"mine", None)
    assert await other.known_bookies() == ["b1", "b2"]
    assert await other.write_cookie("b1", b"new", 0) == 1
    with pytest.raises(VersionConflict):
        await store.write_cookie("b1", b"newer", 0)
    assert (await store.read_cookie("b1")).value == b"new"
    with pytest.raises(VersionConflict):
        await store.delete_cookie("b1", 0)
    await store.delete_cookie("b1", 1)
    with pytest.raises(NoSuchKey):
        await store.read_cookie("b1")
    await store.close()
    assert await other.known_bookies() == ["b2"], "a cookie outlives the session that wrote it"


async def test_buckrams_own_keys_are_outside_the_ledgers_root(cluster: Cluster) -> None:
    store = await cluster.folder_store()
    await store.allocate_ledger_id()
    await store.create_ledger(0, new_ledger())
    await store.register(bookie("b1"), readonly=True)
    await store.write_cookie("b1", b"", None)
    assert await store.keys.children("/") == ["buckram", "ledgers"]
    assert await store.keys.children("/buckram") == ["history", "next-ledger-id"]


# Ids are never given twice


async def gone(store: TreeStore, ledger_id: int) -> None:
    """Deleted by Apache's software, which records no deletions."""
    await store.keys.delete(await store.ledger_key(ledger_id), (await store.read_ledger(ledger_id)).version)


async def test_an_id_chosen_by_hand_stays_used_after_its_ledger_is_deleted(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    await store.create_ledger(5, new_ledger())
    await gone(store, 5)
    for one in (store, other):
        with pytest.raises(LedgerIdUsed, match="5"):
            await one.create_ledger(5, new_ledger(token=8))
    assert await other.list_ledgers() == []


async def test_an_allocated_id_stays_used_after_its_ledger_is_deleted(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    given = await store.allocate_ledger_id()
    await store.create_ledger(given, new_ledger())
    await gone(store, given)
    for one in (store, other):
        with pytest.raises(LedgerIdUsed):
            await one.create_ledger(given, new_ledger(token=8))


async def test_ids_chosen_by_hand_are_never_allocated(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    given = [await store.allocate_ledger_id()]
    chosen = [given[0] + 2, given[0] + 3, given[0] + 7]
    for ledger_id in chosen:
        await other.create_ledger(ledger_id, new_ledger())
    await gone(other, chosen[0])
    for _ in range(20):
        given.append(await store.allocate_ledger_id())
        await store.create_ledger(given[-1], new_ledger())
    assert not set(given) & set(chosen)
    assert len(dict.fromkeys(given)) == len(given)


async def test_a_high_id_does_not_exhaust_the_counter(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.create_ledger(MAX_LEDGER_ID, new_ledger())
    await store.raise_next_id(MAX_LEDGER_ID - 1)
    assert await store.allocate_ledger_id() < 1000
    for used in (MAX_LEDGER_ID, MAX_LEDGER_ID - 1):
        with pytest.raises(LedgerExists):
            await store.create_ledger(used, new_ledger(token=8))


@pytest.mark.parametrize("above", [3, 300])
async def test_after_a_restore_ids_continue_above_those_that_bookies_hold(cluster: Cluster, above: int) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    await store.allocate_ledger_id()
    await other.raise_next_id(above)
    for one in (other, await cluster.store(3)):
        assert await one.allocate_ledger_id() > above
    await other.raise_next_id(1)
    assert await other.allocate_ledger_id() > above


async def test_a_creation_by_hand_whose_reply_was_lost_is_recognised(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(2)
    first = await store.create_ledger(5, new_ledger(token=42))
    assert await other.create_ledger(5, new_ledger(token=42)) == first
    with pytest.raises(LedgerExists):
        await other.create_ledger(5, new_ledger(token=43))


async def test_only_one_of_two_creators_gets_a_chosen_id(cluster: Cluster) -> None:
    stores = [await cluster.store(seed) for seed in range(3)]
    jobs = [one.create_ledger(5 + n, new_ledger(token=seed + 1)) for seed, one in enumerate(stores) for n in range(2)]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert sum(isinstance(one, Versioned) for one in results) == 2
    assert all(isinstance(one, Versioned | LedgerExists) for one in results)
    assert await stores[0].list_ledgers() == [5, 6]


async def test_used_ids_are_kept_in_values_of_bounded_size(cluster: Cluster) -> None:
    store = await cluster.store()
    for ledger_id in (40_000, 40_002, 40_001, 20_000, 50_000):
        await store.create_ledger(ledger_id, new_ledger())
    own = store.layout.own
    names = await store.keys.children(f"{own}/used-ids")
    values = [(await store.keys.get(f"{own}/used-ids/{name}")).value for name in names]
    assert values == [b"3616", b"7232-7234", b"848"]
