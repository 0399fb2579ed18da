"""States that records of the metadata show: of nobody's keys, copies of records, leftovers, and what healing notes."""

from __future__ import annotations

import pytest
from tests.health.conftest import Site

from buckram.core.healing.absences import Attendance, Unsettled, sessions_of
from buckram.core.healing.operator_requests import NOTHING, OperatorRequest
from buckram.core.placement.topology import RackMap
from buckram.core.streams.names import OWNER, OWNER_UID, StreamName
from buckram.healing.overview import COPIES, PLACEMENT
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.bookie_health import say_degraded
from buckram.metadata.records.operator_requests import change_wish
from buckram.metadata.records.topology import change_rack_map
from buckram.metadata.tree.key_operations import overwrite, remove
from buckram.streams.shared.metadata import StreamStore

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = ("doctor", "cluster check")
"""They read the record of every ledger."""


async def test_a_key_that_is_no_part_of_a_cluster(site: Site) -> None:
    keys = site.client.services.store.keys
    key = f"{site.client.services.store.root}/cookies/no bookie"
    await keys.create(key, b"")
    try:
        assert key in (await site.doors.expect("foreign-node", key))["do"]
    finally:
        await remove(keys, key)


async def test_a_record_that_cannot_be_read_leaves_something_unasked(site: Site) -> None:
    """What is unreadable counts neither as well nor as ill."""
    ns, streams = site.client.namespace(), StreamStore(site.client.services.store)
    await ns.create("broken")
    key = streams.layout.head(StreamName("default", "broken"))
    good = (await streams.keys.get(key)).value
    await overwrite(streams.keys, key, b"junk")
    try:
        assert (await site.doors.expect("not-asked", "stream default/broken"))["why"].startswith(key)
    finally:
        await overwrite(streams.keys, key, good)
        await ns.delete("broken")


# -- healing ----------------------------------------------------------------------------------------------


async def test_ledgers_that_could_be_spread_better(site: Site) -> None:
    board = HealingStatusStore(site.client.services.store)
    await board.say_checked(PLACEMENT, {"misplaced": 7})
    try:
        assert "`buckram placement check`" in (await site.doors.expect("ledgers-misplaced", "7 ledgers"))["do"]
    finally:
        await board.say_checked(PLACEMENT, {"misplaced": 0})
    await site.doors.gone("ledgers-misplaced")


async def test_a_bookie_that_is_slow_for_clients(site: Site) -> None:
    store = site.client.services.store
    await say_degraded(store, "bookie-1", "a client", "its reads take 3 s")
    try:
        assert (await site.doors.expect("degraded", "bookie-1"))["why"] == "its reads take 3 s"
    finally:
        await say_degraded(store, "bookie-1", "a client", "")
    await site.doors.gone("degraded")


async def test_copies_that_nobody_has_looked_at(site: Site) -> None:
    """Of all of them until a check of all copies was complete, and then of a bookie that was away."""
    store = site.client.services.store
    board, attendance = HealingStatusStore(store), Attendance()
    assert "no check of all copies has been completed yet" in (await site.doors.expect("unverified", "cluster"))["why"]
    attendance.seen(sessions_of(await store.bookies()))
    attendance.walked(Unsettled())
    version = await board.say_attendance(attendance, -1)
    await board.say_checked(COPIES, {})
    await site.doors.gone("unverified")
    attendance.sessions["bookie-2"] = "an earlier one"
    await board.say_attendance(attendance, version)
    try:
        assert "it was away" in (await site.doors.expect("unverified", "bookie-2"))["why"]
    finally:
        for key in ("attendance", "checks"):
            await remove(store.keys, f"{store.own}/healing/{key}")


async def test_too_few_hosts_for_the_copies_of_an_entry(site: Site) -> None:
    """Three bookies on two hosts, and copies that want three."""
    store = site.client.services.store
    hosts = {"bookie-0": "/host=a", "bookie-1": "/host=a", "bookie-2": "/host=b"}
    await change_rack_map(store, lambda _: RackMap(hosts))
    try:
        found = await site.doors.expect("too-few-domains", "level host")
        assert "start bookies on another host" in found["do"]
    finally:
        await change_rack_map(store, lambda _: RackMap())
    await site.doors.gone("too-few-domains")


# -- what only a long look finds --------------------------------------------------------------------------


async def test_ledgers_whose_records_are_copies(site: Site) -> None:
    store = site.client.services.store
    async with site.client.create(ensemble=(3, 3, 2)) as writer:
        metadata = (await store.read_ledger(writer.ledger_id)).metadata
    copied = await store.allocate_ledger_id()
    version = (await store.create_ledger(copied, metadata)).version
    try:
        assert "1 ledgers" in (await site.doors.expect("repeated-births", store.root, at=LONG))["why"]
    finally:
        await store.delete_ledger(copied, version)


async def test_ledgers_that_no_stream_lists(site: Site) -> None:
    store, owner = site.client.services.store, {OWNER: b"default/gone", OWNER_UID: b"0" * 32}
    async with site.client.create(ensemble=(3, 3, 2), custom_metadata=owner) as writer:
        ledger = writer.ledger_id
    try:
        found = await site.doors.expect("orphans", f"ledgers {ledger}", at=("doctor",))
        assert "`buckram stream janitor`" in found["do"]
    finally:
        versioned = await store.read_ledger(ledger)
        await store.delete_ledger(ledger, versioned.version)


async def test_keys_that_nobody_reads(site: Site) -> None:
    store = site.client.services.store
    await change_wish(store, "stranger", lambda _: OperatorRequest(readonly=True))
    try:
        found = await site.doors.expect("leftovers", "requests to bookies stranger", at=("doctor",))
        assert "`buckram doctor --fix`" in found["do"]
    finally:
        await change_wish(store, "stranger", lambda _: NOTHING)
