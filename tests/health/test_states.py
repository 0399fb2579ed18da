"""Each state that an ordinary cluster can get into is brought about, and seen at every door under one name."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.health.conftest import Site
from tests.support.bookie_kit import HeldDisk

from buckram.bookie.process import Bookie
from buckram.config import BookieConfig, NetConfig, StoreConfig
from buckram.core.cluster.believed_time import UNSTEADY_AFTER
from buckram.core.cluster.conviction import Deed, Evidence
from buckram.core.cluster.store_history import WitnessStatement, encode_statement
from buckram.core.db.backups import encode_kept
from buckram.core.healing.lost_bookies import HealingBrake
from buckram.core.healing.status import Reason, WaitingLedger, Why
from buckram.core.streams.metadata.head import Head, Mirror, decode_head, encode_head
from buckram.core.streams.metadata.mirrors import MIRROR
from buckram.core.streams.names import StreamName
from buckram.core.wire.introduction import INCARNATION_PROPERTY
from buckram.errors import AccessRefused, ForeignLedger, NoSuchKey
from buckram.healing.operations.decommission import forget
from buckram.healing.operations.operator_calls import ask_readonly
from buckram.healing.status_store import HealingStatusStore
from buckram.health import bookie_reports as asking
from buckram.metadata.records.auditor_election import Election
from buckram.metadata.records.bookie_health import accuse, pardon
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.records.underreplication import Underreplication
from buckram.metadata.tree.layout import BRAKES, WITNESSES
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import open_store
from buckram.runtime.process.clock import SystemClock
from buckram.runtime.production import production_runtime
from buckram.seams import Clock
from buckram.state.db.backups import Backups, read_kept
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.offload import check_stream
from buckram.streams.shared.metadata import StreamStore
from buckram.types import BookieAddress, BookieInfo

pytestmark = pytest.mark.asyncio(loop_scope="module")
DAY_US = 86_400_000_000


def tree(site: Site) -> Underreplication:
    store = site.client.services.store
    return Underreplication(store.keys, store.root, "test")


@asynccontextmanager
async def one_more(
    site: Site,
    folder: Path,
    *,
    disk: HeldDisk | None = None,
    settings: StoreConfig | None = None,
    clock: Clock | None = None,
    refuses: str = "",
) -> AsyncIterator[Bookie]:
    """One more bookie of the cluster, which is a member no more afterwards. `refuses`: its session may not change keys
    with this in their names."""
    runtime = production_runtime()
    store = await open_store(site.cluster.uri)
    assert isinstance(store, TreeStore)
    if refuses:
        _refuse(store, refuses)
    held = disk or HeldDisk(folder)
    config = BookieConfig(port=0, bookie_id="one-more")
    small = StoreConfig(segment_bytes=8 << 20, reserved_bytes=0, writable_again_bytes=0, disk_mode="inline")
    made = Bookie(replace(runtime, clock=clock or runtime.clock), held, store, config, settings or small, NetConfig())
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
        await store.close()
        held.close()
        await forget(site.client.services.store, "one-more")
        await _remove(site, f"{site.client.services.store.own}/{WITNESSES}/one-more")


def _refuse(store: TreeStore, part: str) -> None:
    """Have a session's changes of some keys refused, as an ACL does."""
    change = store.keys.set

    async def refused(key: str, value: bytes, version: int) -> int:
        if part in key:
            raise AccessRefused(key, "no permission to change it")
        return await change(key, value, version)

    store.keys.set = refused  # type: ignore[method-assign]


async def _remove(site: Site, key: str) -> None:
    keys = site.client.services.store.keys
    with suppress(NoSuchKey):
        await keys.delete(key, (await keys.get(key)).version)


# -- bookies ----------------------------------------------------------------------------------------------


async def test_a_cluster_that_is_well(site: Site) -> None:
    for seen in await site.doors.look():
        assert seen.healthy, seen


async def test_a_bookie_that_is_down(site: Site) -> None:
    await site.cluster.stop(2)
    try:
        found = await site.doors.expect("bookie-down", "bookie-2")
        assert "`buckram bookie decommission bookie-2`" in found["do"]
    finally:
        await site.cluster.restart(2)
    await site.doors.gone("bookie-down")


async def test_a_bookie_that_hangs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ASK_S", 0.3)
    await site.cluster.pause(1)
    try:
        found = await site.doors.expect("bookie-silent", "bookie-1")
        assert "decommission" not in found["do"]
    finally:
        await site.cluster.resume(1)


async def test_a_bookie_that_was_asked_to_rest(site: Site) -> None:
    await ask_readonly(site.client, "bookie-0", True)
    try:
        await site.doors.expect("bookie-rests", "bookie-0")
    finally:
        await ask_readonly(site.client, "bookie-0", False)


async def test_a_disk_that_is_full(site: Site, tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    disk.free_bytes = 1 << 20
    least = StoreConfig(segment_bytes=8 << 20, reserved_bytes=2 << 20, writable_again_bytes=3 << 20, disk_mode="inline")
    async with one_more(site, tmp_path, disk=disk, settings=least):
        await site.doors.expect("disk-full", "one-more")


async def test_a_disk_that_can_never_be_writable_again(site: Site, tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    disk.free_bytes = 1 << 20
    most = 1 << 60
    never = StoreConfig(segment_bytes=8 << 20, reserved_bytes=2 << 20, writable_again_bytes=most, disk_mode="inline")
    async with one_more(site, tmp_path, disk=disk, settings=never):
        found = await site.doors.expect("disk-never-writable", "one-more")
        assert str(most) in found["why"]


async def test_a_clock_that_is_off(site: Site, tmp_path: Path) -> None:
    class Ahead(SystemClock):
        def wall_us(self) -> int:
            return super().wall_us() + DAY_US

    async with one_more(site, tmp_path, clock=Ahead()):
        found = await site.doors.expect("clock-off", "one-more")
        assert found["why"] == "86400 s ahead the median of all clocks"


async def test_a_clock_that_is_set_again_and_again(site: Site, tmp_path: Path) -> None:
    class Flipping(SystemClock):
        ahead = 0

        def wall_us(self) -> int:
            return super().wall_us() + self.ahead

    clock = Flipping()
    async with one_more(site, tmp_path, clock=clock) as bookie:
        for ahead in (DAY_US, 0) * UNSTEADY_AFTER:
            clock.ahead = ahead
            bookie.time.moment()
        found = await site.doors.expect("clock-doubted", "one-more")
        assert "the clock is set again and again" in found["why"]


async def test_a_witness_that_is_refused(site: Site, tmp_path: Path) -> None:
    async with one_more(site, tmp_path, refuses=WITNESSES):
        found = await site.doors.expect("witness-refused", "one-more")
        assert "no permission to change it" in found["why"]


async def test_a_bookie_that_was_replaced(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ASK_S", 0.3)
    store, ghosts = site.client.services.store, await open_store(site.cluster.uri)
    key = f"{store.own}/{WITNESSES}/ghost"
    said = WitnessStatement("newest", 1, 1, 0, (await store.history()).epoch, "r", "n", 2)
    await store.keys.create(key, encode_statement(said))
    try:
        await ghosts.register(
            BookieInfo("ghost", BookieAddress("127.0.0.1", 1), {INCARNATION_PROPERTY: "old"}), readonly=True
        )
        found = await site.doors.expect("bookie-replaced", "ghost", also=("bookie-silent",))
        assert found["do"].startswith("stop that process at once")
    finally:
        await ghosts.close()
        await _remove(site, key)
    await site.doors.gone("bookie-replaced")


async def test_a_slow_disk(site: Site) -> None:
    bookie = site.cluster._nodes[0].bookie
    assert bookie is not None
    assert bookie.disk_watch is not None
    for mean_s in (*[0.001] * 10, *[5.0] * 10):
        bookie.disk_watch.state.window(mean_s, [])
    try:
        await site.doors.expect("slow-disk", "bookie-0")
    finally:
        for _ in range(400):
            bookie.disk_watch.state.window(0.0, [])


async def test_a_disk_that_is_nearly_full(site: Site, tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    disk.free_bytes = 1_000_000_000
    async with one_more(site, tmp_path, disk=disk):
        await site.doors.expect("disk-nearly-full", "one-more")


@pytest.mark.parametrize(("deed", "state"), [(Deed.DAMAGED, "bookie-accused"), (Deed.UNSTORED, "bookie-convicted")])
async def test_a_bookie_that_is_accused_and_one_that_is_convicted(site: Site, deed: Deed, state: str) -> None:
    store = site.client.services.store
    await accuse(store, [Evidence(deed, "bookie-0", "an incarnation", 1, 0, "as this test says")])
    try:
        found = await site.doors.expect(state, "bookie-0")
        assert "as this test says" in found["why"]
    finally:
        await pardon(store, "bookie-0")


@pytest.mark.parametrize(
    ("folder", "value", "state"),
    [("cookies", b"junk", "wrong-cookie"), (BRAKES, b"{}", "metadata-damaged")],
)
async def test_a_record_of_a_bookie_that_cannot_be_read(site: Site, folder: str, value: bytes, state: str) -> None:
    store = site.client.services.store
    key = f"{store.root if folder == 'cookies' else store.own}/{folder}/broken"
    await store.keys.create(key, value)
    try:
        await site.doors.expect(state, key, also=("bookie-down",) if folder == "cookies" else ())
    finally:
        await _remove(site, key)


async def test_ledgers_with_ids_that_nobody_gave(site: Site) -> None:
    key = f"{site.client.services.store.own}/{BRAKES}/bookie-0"
    await site.client.services.store.keys.create(key, json.dumps({"waiting": 0, "unknown": 7}).encode())
    try:
        found = await site.doors.expect("unknown-ledgers", "bookie-0")
        assert "holds 7 ledgers" in found["why"]
    finally:
        await _remove(site, key)


async def test_two_bookies_at_one_address(site: Site) -> None:
    (ghosts, taken) = await open_store(site.cluster.uri), site.client.services.bookies.resolve("bookie-0")
    assert taken is not None
    try:
        await ghosts.register(BookieInfo("ghost", taken, {INCARNATION_PROPERTY: "its-own"}), readonly=True)
        found = await site.doors.expect(
            "address-used-twice", "bookie-0", also=("bookie-silent", "bookie-without-cookie")
        )
        assert "requests to all but one reach another bookie" in found["why"]
    finally:
        await ghosts.close()
    await site.doors.gone("address-used-twice")


# -- healing ----------------------------------------------------------------------------------------------


async def test_autorecovery_that_is_disabled(site: Site) -> None:
    await tree(site).enable(False)
    try:
        await site.doors.expect("autorecovery-disabled", "cluster")
    finally:
        await tree(site).enable(True)


async def test_an_auditor_that_is_missing(site: Site) -> None:
    store = site.client.services.store
    votes = Election(store.keys, store.root, "the auditor of this test")
    await votes.withdraw()
    try:
        await site.doors.expect("auditor-missing", "cluster")
    finally:
        await votes.stand()


async def test_a_brake(site: Site) -> None:
    board = HealingStatusStore(site.client.services.store)
    await board.set_brake(HealingBrake(("bookie-0", "bookie-1"), "2 of 3 bookies went at once"))
    try:
        await site.doors.expect("nothing-copied", "bookie-0, bookie-1")
    finally:
        await board.set_brake(None)


@pytest.mark.parametrize(
    ("state", "why", "lost"),
    [
        ("under-replicated", Why.NO_BOOKIE, ()),
        ("ledgers-unreadable", Why.COPY_AWAY, ()),
        ("entries-lost", Why.NO_GOOD_COPY, ((0, 4),)),
    ],
)
async def test_ledgers_that_lack_copies(site: Site, state: str, why: Why, lost: tuple[tuple[int, int], ...]) -> None:
    board, marks = HealingStatusStore(site.client.services.store), tree(site)
    async with site.client.create(ensemble=(3, 3, 2)) as writer:
        ledger = writer.ledger_id
    await marks.prepare()
    await marks.mark(ledger, ["bookie-0"], 1_000)
    await board.say_waiting(WaitingLedger(ledger, (Reason(why, "of this test", lost),), 1, "nobody", 0))
    try:
        found = await site.doors.expect(state, f"ledger {ledger}")
        assert "of this test" in found["why"]
    finally:
        mark = await marks.read_mark(ledger)
        assert mark is not None
        await marks.unmark(mark)
        await board.clear_waiting([ledger])


async def test_a_collection_that_waits(site: Site) -> None:
    key = f"{site.client.services.store.own}/{BRAKES}/bookie-0"
    await site.client.services.store.keys.create(key, json.dumps({"waiting": 1_500, "unknown": 0}).encode())
    try:
        found = await site.doors.expect("collection-waits", "bookie-0")
        assert "1500 ledgers" in found["why"]
        assert "salvage" not in found["do"], "the bookie answers"
    finally:
        await _remove(site, key)
        await pardon(site.client.services.store, "bookie-0")


# -- namespaces and streams -------------------------------------------------------------------------------


async def test_a_namespace_over_its_quota(site: Site) -> None:
    tenants = TenantStore(site.client.services.store)
    await site.client.namespaces.create("full")
    await site.client.namespace("full").create("one")
    await tenants.set_quotas("full", {"streams": 1})
    try:
        found = await site.doors.expect("namespace-over-quota", "full")
        assert "`buckram namespace set full --quota streams=N`" in found["do"]
    finally:
        await tenants.set_quotas("full", {"streams": None})
        await tenants.turn_off()


async def _changed_head(site: Site, name: str, **changes: object) -> None:
    """Write a head that is as it would be after days."""
    streams = StreamStore(site.client.services.store)
    key = streams.layout.head(StreamName("default", name))
    found = await streams.keys.get(key)
    head = replace(decode_head(key, found.value), **changes)  # type: ignore[arg-type]
    await streams.keys.set(key, encode_head(head), found.version)


async def test_a_query_that_is_dead(site: Site) -> None:
    ns = site.client.namespace()
    await ns.create("sink")
    for version in (0, 1):
        step = await ns.bulk("sink", application="counts", version=version, query="q-1", place="p")
        ledger = await step.create_ledger()
        await ledger.append_many([b"one"])
        await step.publish([await ledger.close()])
    head = await _head(site, "sink")
    done = head.transactions["counts"]
    assert done.pause > 0, "nobody knows how often it publishes"
    await _changed_head(site, "sink", transactions={"counts": done._replace(time=done.time - 5 * 3_600_000_000)})
    try:
        found = await site.doors.expect("query-dead", "default/sink counts")
        assert "query q-1 published batch 1 5 h ago" in found["why"]
    finally:
        await ns.delete("sink")


async def _head(site: Site, name: str) -> Head:
    return (await StreamStore(site.client.services.store).read(StreamName("default", name))).head


async def test_a_cursor_that_holds_retention_for_30_days(site: Site) -> None:
    ns = site.client.namespace()
    await ns.create("kept", retention_s=60.0, retention_cursors=True)
    async with ns.writer("kept") as writer:
        await writer.append_many([b"x"] * 10)
    await ns.move_cursor("kept", "billing", 3)
    streams, head = StreamStore(site.client.services.store), await _head(site, "kept")
    key = streams.layout.cursor(head.uid, "billing")
    found = await streams.keys.get(key)
    old = {"offset": 3, "changed": time.time_ns() // 1000 - 31 * DAY_US}
    await streams.keys.set(key, json.dumps(old).encode(), found.version)
    try:
        said = await site.doors.expect("cursor-holds-retention", "default/kept billing")
        assert "was not moved for 31 days and holds 7 records" in said["why"]
    finally:
        await ns.delete("kept")


async def test_a_stream_that_names_another_streams_ledger(site: Site) -> None:
    ns = site.client.namespace()
    for name in ("owner", "bait"):
        async with ns.writer(name) as writer:
            await writer.append(b"record")
    streams, head = StreamStore(site.client.services.store), await _head(site, "bait")
    (row,) = [row async for row in ns.segments("owner")]
    key = streams.layout.head(StreamName("default", "bait"))
    try:
        await streams.keys.set(key, encode_head(replace(head, tail=(row,))), (await streams.keys.get(key)).version)
        with suppress(ForeignLedger):
            [record async for record in ns.read("bait")]
        why = (await site.doors.expect("foreign-ledger", f"default/bait {row.ledger}"))["why"]
        assert "made for another stream" in why
        await streams.keys.set(key, encode_head(head), (await streams.keys.get(key)).version)
        await check_stream(site.client, streams, StreamName("default", "bait"))
        await site.doors.gone("foreign-ledger")
    finally:
        for name in ("owner", "bait"):
            await ns.delete(name)


async def test_backups_that_fail_and_are_late(site: Site, tmp_path: Path) -> None:
    ns = site.client.namespace()
    await ns.create_database("books", backup_every_s=3600.0, backup_to="nightly")
    janitor = JanitorSettings(grace_s=0, orphans=False)
    try:
        await Janitor(site.client, janitor, Backups(site.client, {})).clean()
        why = (await site.doors.expect("backup-failed", "default/books"))["why"]
        assert "backup_to = 'nightly', and the janitor has no place of this name (it has: none)" in why
        await Janitor(site.client, janitor, Backups(site.client, {"nightly": str(tmp_path)})).clean()
        await site.doors.gone("backup-failed")
        streams, head = StreamStore(site.client.services.store), await _head(site, "books")
        kept, key = await read_kept(streams, head.uid), streams.layout.backup(head.uid)
        assert kept.newest is not None
        older = replace(kept, newest=kept.newest._replace(time=kept.newest.time - 3 * 3_600_000_000))
        await streams.keys.set(key, encode_kept(older), (await streams.keys.get(key)).version)
        assert "of 3 h ago" in (await site.doors.expect("backup-late", "default/books"))["why"]
    finally:
        await ns.delete("books", purpose="database")


async def test_a_mirror_that_is_behind_and_one_that_has_stopped(site: Site) -> None:
    ns, streams = site.client.namespace(), StreamStore(site.client.services.store)
    await ns.create("copy")
    await _changed_head(site, "copy", mirror=Mirror(MIRROR, "other", "uid"))
    head, now = await _head(site, "copy"), time.time_ns() // 1000
    key = streams.layout.progress(head.uid)
    silent = {"source_end": 9, "copied": 2, "time": now - 3_600_000_000}
    await streams.keys.create(key, json.dumps(silent).encode())
    try:
        assert "it lacked 7 records" in (await site.doors.expect("mirror-behind", "default/copy"))["why"]
        stopped = {**silent, "trouble": "the source went back", "since": now}
        await streams.keys.set(key, json.dumps(stopped).encode(), 0)
        assert (await site.doors.expect("mirror-stopped", "default/copy"))["why"] == "the source went back"
    finally:
        await _changed_head(site, "copy", mirror=None)
        await ns.delete("copy")
