"""Bookies leave with real bookies in this process: drained, decommissioned, replaced; or it is said what keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.healing.test_lost_bookie import QUICK, healing, is_gone, members, tree, write
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.config import HealingConfig
from buckram.core.healing.operator_requests import NOTHING
from buckram.core.ledgers.metadata import member_replaced
from buckram.errors import InvalidArgument, NoSuchBookie, NoSuchKey
from buckram.healing.operations import decommission as decommission_module
from buckram.healing.operations.decommission import DecommissionProgress, decommission, drain, replace_bookie
from buckram.healing.operations.dependency_check import OperationRefused, ledgers_naming
from buckram.healing.operations.operator_calls import allow_rejoin, ask_readonly, begin_maintenance, end_maintenance
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.auditor_election import Election
from buckram.metadata.records.operator_requests import change_wish, read_wish, read_wishes
from buckram.testing import Cluster, cluster

PATIENT = replace(QUICK, lost_bookie_delay_s=3600.0)


def ignore(progress: DecommissionProgress) -> None:
    return None


@asynccontextmanager
async def leaving(count: int, config: HealingConfig = PATIENT) -> AsyncIterator[tuple[Cluster, Client]]:
    """A cluster that heals itself and never copies because a bookie is away."""
    async with cluster(bookies=count) as c, healing(c, config) as client:
        store = client.services.store

        async def elected() -> bool:
            return bool(await Election(store.keys, store.root, "").votes())

        await eventually(elected, "elected")
        yield c, client


async def whole(client: Client, *ledgers: int) -> bool:
    reports = [await client.repair(ledger) for ledger in ledgers]
    return all(report.healthy and report.entries_copied == 0 for report in reports)


async def test_a_drained_bookie_serves_reads_until_nothing_depends_on_it() -> None:
    async with leaving(4) as (_c, client):
        ledgers = [await write(client, 300) for _ in range(5)]
        bookie = sorted(await members(client, ledgers[0]))[0]
        seen: list[DecommissionProgress] = []
        held = len(await ledgers_naming(client.services.store, bookie))
        found = await drain(client, bookie, seen.append)
        assert (found.done, found.ledgers, found.entries, found.reasons) == (True, held, 300 * held, {})
        assert seen[-1].done == seen[-1].total == held
        assert await ledgers_naming(client.services.store, bookie) == {}
        assert await whole(client, *ledgers)
        there = await client.services.store.bookies()
        assert bookie in there.readonly, "it lives, and stays read-only until it is stopped"
        again = await drain(client, bookie, ignore)
        assert (again.done, again.ledgers) == (True, 0)
        await ask_readonly(client, bookie, False)
        assert await read_wish(client.services.store, bookie) == NOTHING


async def test_a_drain_goes_on_when_whoever_asked_for_it_has_gone() -> None:
    async with leaving(4) as (_c, client):
        ledgers = [await write(client, 100) for _ in range(4)]
        bookie = sorted(await members(client, ledgers[0]))[0]
        looked = asyncio.Event()
        asking = asyncio.ensure_future(drain(client, bookie, lambda progress: looked.set()))
        await looked.wait()
        asking.cancel()
        await asyncio.wait([asking])

        async def emptied() -> bool:
            return await ledgers_naming(client.services.store, bookie) == {}

        await eventually(emptied, "emptied")
        assert (await drain(client, bookie, ignore)).done


async def test_the_only_copy_is_read_from_the_bookie_that_leaves() -> None:
    async with leaving(3) as (_c, client):
        ledger = await write(client, 50, (1, 1, 1))
        (bookie,) = await members(client, ledger)
        assert (await drain(client, bookie, ignore)).done
        async with await client.open(ledger) as reader:
            assert (await reader.read(0, 49))[-1].payload[:4] == (49).to_bytes(4, "big")


async def test_a_bookie_whose_place_nobody_can_take_is_not_drained() -> None:
    async with leaving(3) as (c, client):
        ledger = await write(client, 20)
        with pytest.raises(
            OperationRefused, match=f"no other bookie can take the place of {c.bookies[0]}.*{ledger}.*start one"
        ):
            await drain(client, c.bookies[0], ignore)
        assert await read_wishes(client.services.store) == {}, "nothing was changed"
        assert c.bookies[0] in (await client.services.store.bookies()).writable


async def test_a_drain_without_room_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    async with leaving(4) as (_c, client):
        ledger = await write(client, 100)
        bookie = sorted(await members(client, ledger))[0]

        async def full(client: Client, bookies: list[str]) -> dict[str, tuple[int, int]]:
            return dict.fromkeys(bookies, (1000, 10_000))

        monkeypatch.setattr("buckram.healing.operations.dependency_check.spaces", full)
        with pytest.raises(
            OperationRefused, match=r"100000 bytes.*3 others that are writable have 3000 bytes free: start one more"
        ):
            await drain(client, bookie, ignore)
        assert await read_wishes(client.services.store) == {}


async def test_a_drain_that_cannot_finish_says_what_is_left_and_goes_on_later() -> None:
    grace = replace(PATIENT, open_ledger_grace_s=3600.0)
    async with leaving(4, grace) as (c, client), c.client() as other:
        writer = await other.create(ensemble=(3, 3, 2))
        await writer.append(b"one")
        await other.services.pool.close()  # its process died, which nobody knows
        bookie = sorted(await members(client, writer.ledger_id))[0]
        closed = [await write(client, 10) for _ in range(4)]
        found = await drain(client, bookie, ignore, stuck_s=0.5)
        assert (found.done, found.remaining) == (False, (writer.ledger_id,))
        assert "it is open and may have a writer" in found.reasons[writer.ledger_id]
        assert (await read_wish(client.services.store, bookie)).leave, "what was begun goes on"
        await (await client.recover(writer.ledger_id)).close()
        assert (await drain(client, bookie, ignore)).done
        assert await whole(client, writer.ledger_id, *closed)


async def test_nothing_is_begun_while_nothing_would_be_copied() -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        await write(client, 10)
        with pytest.raises(OperationRefused, match="no process runs autorecovery: start `buckram autorecovery run`"):
            await drain(client, c.bookies[0], ignore)
        async with healing(c, PATIENT):
            await tree(client).prepare()
            await tree(client).enable(False)
            with pytest.raises(
                OperationRefused, match="autorecovery is disabled: enable it with `buckram autorecovery enable`"
            ):
                await drain(client, c.bookies[0], ignore)
        assert await read_wishes(client.services.store) == {}


async def test_bookies_that_cannot_leave_in_this_way_are_refused_with_the_other_way() -> None:
    async with leaving(4) as (c, client):
        ledger = await write(client, 10)
        bookie = sorted(await members(client, ledger))[0]
        with pytest.raises(InvalidArgument, match=r"is registered: stop it first.*bookie drain"):
            await decommission(client, bookie, ignore)
        for take_out in (drain, decommission):
            with pytest.raises(NoSuchBookie):
                await take_out(client, "nobody", ignore)
        with pytest.raises(InvalidArgument, match="cannot take its own place"):
            await replace_bookie(client, bookie, bookie, ignore)
        with pytest.raises(OperationRefused, match="bookie nobody takes no new entries"):
            await replace_bookie(client, bookie, "nobody", ignore)
        await c.kill(c.bookies.index(bookie))
        await eventually(lambda: is_gone(client, bookie), "gone")
        with pytest.raises(OperationRefused, match="only if it is gone for good, `buckram bookie decommission`"):
            await drain(client, bookie, ignore)
        assert await read_wishes(client.services.store) == {}


async def test_a_stopped_bookie_is_decommissioned_at_once_and_two_at_the_same_time() -> None:
    async with leaving(6) as (c, client):
        ledgers = [await write(client, 50) for _ in range(6)]
        for number in (0, 1):
            await c.kill(number)
            await eventually(lambda number=number: is_gone(client, c.bookies[number]), "gone")  # type: ignore[misc]
        found = await asyncio.gather(*(decommission(client, bookie, ignore) for bookie in c.bookies[:2]))
        assert [one.done for one in found] == [True, True]
        assert await whole(client, *ledgers)
        for bookie in c.bookies[:2]:
            with pytest.raises(NoSuchKey):
                await client.services.store.read_cookie(bookie)
        assert await read_wishes(client.services.store) == {}


async def test_a_ledger_that_is_seen_only_at_the_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof is made after a sync of the store: a record that was changed meanwhile names the bookie again."""
    monkeypatch.setattr(decommission_module, "_ASK_S", 0.2)
    async with leaving(5) as (c, client):
        store = client.services.store
        ledgers = [await write(client, 20) for _ in range(3)]
        late = ledgers[0]
        gone = sorted(await members(client, ledgers[1]))[0]
        await c.kill(c.bookies.index(gone))
        await eventually(lambda: is_gone(client, gone), "gone")
        sync, came_back = store.sync, list[str]()

        async def sync_with_news() -> None:
            """Show, once the bookie is named by nobody, a record that names it."""
            if not came_back and not await ledgers_naming(store, gone):
                found = await store.read_ledger(late)
                other = found.metadata.last_fragment.ensemble[0]
                came_back.append(other)
                await store.write_ledger(late, member_replaced(found.metadata, 0, other, gone), found.version)
            await sync()

        monkeypatch.setattr(store, "sync", sync_with_news, raising=False)
        found = await decommission(client, gone, ignore)
        assert came_back
        assert found.done
        assert await ledgers_naming(store, gone) == {}
        with pytest.raises(NoSuchKey):
            await store.read_cookie(gone)
        assert await whole(client, *ledgers)


async def test_the_last_bookie_that_holds_something_stays_known() -> None:
    async with leaving(3) as (c, client):
        ledger = await write(client, 10, (1, 1, 1))
        (bookie,) = await members(client, ledger)
        await c.kill(c.bookies.index(bookie))
        await eventually(lambda: is_gone(client, bookie), "gone")
        found = await decommission(client, bookie, ignore, stuck_s=0.5)
        assert found.remaining == (ledger,)
        assert "are on bookies that do not answer" in found.reasons[ledger]
        assert await client.services.store.read_cookie(bookie)
        assert await read_wishes(client.services.store) == {}, "the usual delay counts again"
        await c.restart(c.bookies.index(bookie))


@pytest.mark.parametrize("alive", [True, False])
async def test_a_replaced_bookie_gives_all_to_the_new_one_and_is_forgotten(alive: bool) -> None:
    async with leaving(4) as (c, client):
        ledgers = [await write(client, 40) for _ in range(5)]
        number = await c.add()
        new = c.bookies[number]
        old = sorted(await members(client, ledgers[0]))[0]
        named = await ledgers_naming(client.services.store, old)
        if not alive:
            await c.kill(c.bookies.index(old))
            await eventually(lambda: is_gone(client, old), "gone")
        found = await replace_bookie(client, old, new, ignore)
        assert (found.done, found.ledgers) == (True, len(named))
        assert await ledgers_naming(client.services.store, new) == named
        assert await whole(client, *ledgers)
        assert await is_gone(client, old)
        with pytest.raises(NoSuchKey):
            await client.services.store.read_cookie(old)
        assert await read_wish(client.services.store, old) == NOTHING


async def test_a_slow_drain_is_not_faster_than_was_asked_for() -> None:
    async with leaving(4) as (_c, client):
        ledger = await write(client, 600)
        bookie = sorted(await members(client, ledger))[0]
        began = asyncio.get_running_loop().time()
        assert (await drain(client, bookie, ignore, rate=400_000)).done
        assert asyncio.get_running_loop().time() - began >= 1.0


async def test_in_a_maintenance_nothing_is_copied_and_then_the_delay_begins() -> None:
    async with leaving(6, QUICK) as (c, client):
        ledgers = [await write(client, 20) for _ in range(6)]
        resting, lost = sorted(await members(client, ledgers[0]))[:2]
        await begin_maintenance(client, resting, 3600.0)
        assert resting in (await client.services.store.bookies()).readonly
        for bookie in (resting, lost):
            await c.kill(c.bookies.index(bookie))
            await eventually(lambda bookie=bookie: is_gone(client, bookie), "gone")  # type: ignore[misc]

        async def healed(bookie: str) -> bool:
            return await ledgers_naming(client.services.store, bookie) == {}

        before = await ledgers_naming(client.services.store, resting)
        await eventually(lambda: healed(lost), "healed")
        assert await ledgers_naming(client.services.store, resting) == before != {}
        assert await end_maintenance(client, resting)
        assert not await end_maintenance(client, resting)
        await eventually(lambda: healed(resting), "healed")


async def test_a_maintenance_that_leaves_too_few_copies_is_refused_and_names_the_ledgers() -> None:
    async with leaving(4) as (_c, client):
        thin = await write(client, 10, (1, 1, 1))
        (bookie,) = await members(client, thin)
        with pytest.raises(
            OperationRefused, match=f"fewer copies than they acknowledge from.*{thin}; ledger {thin}: 0 of 1"
        ):
            await begin_maintenance(client, bookie, 60.0)
        ledger = await write(client, 10)
        first, second = sorted(await members(client, ledger) - {bookie})[:2]
        await begin_maintenance(client, first, 60.0)
        with pytest.raises(OperationRefused, match=f"ledger {ledger}: 1 of 2"):
            await begin_maintenance(client, second, 60.0)
        for seconds in (0.0, 8 * 86_400.0):
            with pytest.raises(InvalidArgument, match="needs 1 s to 604800 s"):
                await begin_maintenance(client, first, seconds)
        with pytest.raises(NoSuchBookie):
            await begin_maintenance(client, "nobody", 60.0)


async def test_read_only_and_writable_are_asked_of_bookies_that_are_down_as_well() -> None:
    async with leaving(3) as (c, client):
        bookie = c.bookies[0]
        assert (await ask_readonly(client, bookie, True)).state == "readonly"
        await c.stop(0)
        assert (await ask_readonly(client, bookie, True)).state == "down"
        await c.restart(0)
        assert bookie in (await client.services.store.bookies()).readonly
        assert (await ask_readonly(client, bookie, False)).state == "writable"
        with pytest.raises(NoSuchBookie):
            await ask_readonly(client, "nobody", True)


async def test_an_id_comes_back_empty_only_when_no_ledger_names_it() -> None:
    async with leaving(4) as (c, client):
        ledger = await write(client, 10)
        bookie = sorted(await members(client, ledger))[0]
        with pytest.raises(OperationRefused, match="is registered; stop it first"):
            await allow_rejoin(client, bookie)
        await c.kill(c.bookies.index(bookie))
        await eventually(lambda: is_gone(client, bookie), "gone")
        with pytest.raises(OperationRefused, match=f"1 ledger still names it \\({ledger}\\)"):
            await allow_rejoin(client, bookie)
        await client.delete(ledger)
        await change_wish(client.services.store, bookie, lambda wish: replace(wish, readonly=True))
        await allow_rejoin(client, bookie)
        assert await read_wish(client.services.store, bookie) == NOTHING
        with pytest.raises(NoSuchKey):
            await client.services.store.read_cookie(bookie)
        with pytest.raises(NoSuchBookie):
            await allow_rejoin(client, "nobody")


async def test_waiting_reasons_end_with_the_drain() -> None:
    async with leaving(4) as (_c, client):
        ledger = await write(client, 10)
        bookie = sorted(await members(client, ledger))[0]
        assert (await drain(client, bookie, ignore)).done

        async def quiet() -> bool:
            marked = [found async for found in tree(client).marked()]
            return not marked and not [found async for found in HealingStatusStore(client.services.store).waiting()]

        await eventually(quiet, "unmarked")
