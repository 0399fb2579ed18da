"""Members that break a placement are moved by repair, and the copies never get fewer (M7)."""

from __future__ import annotations

from collections.abc import Sequence

from tests.client.write.test_placement import place

from buckram.client.maintain.placement import explain_ledger, explain_new, misplaced
from buckram.cluster import Client, connect
from buckram.config import NetConfig
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.policy import PlacementPolicy
from buckram.testing import cluster

BODIES = [b"%d" % i for i in range(30)]


async def written(client: Client, *, bodies: Sequence[bytes] = BODIES, **options: object) -> int:
    async with client.create(**options) as writer:  # type: ignore[arg-type]  # options of create
        await writer.append_many(bodies)
    return writer.ledger_id


async def members(client: Client, ledger: int) -> Sequence[str]:
    return (await client.metadata(ledger)).last_fragment.ensemble


async def test_what_breaks_the_placement_is_found_and_moved_with_all_its_entries() -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        await c.kill(3)
        await client.services.bookies.refresh()
        bad = await written(client, ensemble="3/3/2")
        striped = await written(client, ensemble="3/2/2")
        await c.restart(3)
        await client.services.bookies.refresh()
        await place(client, dict(zip(c.bookies, ("/r1", "/r1", "/r1", "/r2"), strict=True)))
        good = await written(client, ensemble="2/2/2", placement="rack:2 enforce")
        found = {one.ledger_id: one async for one in misplaced(client.services)}
        assert list(found) == [bad, striped]
        assert [len(broken) for _, broken in found[striped].fragments] == [3], "each write quorum"
        report = await client.repair(bad, move=True)
        assert report.healthy
        assert [change.new for change in report.replaced] == [c.bookies[3]]
        assert report.entries_copied == len(BODIES)
        report = await client.repair(striped, move=True)
        assert not report.healthy, "two of three are in one rack whatever is moved: one write quorum of two stays there"
        assert "no available bookies could mend" in report.problems[0]
        assert [one.ledger_id async for one in misplaced(client.services)] == [striped]
        await c.kill(next(c.bookies.index(b) for b in await members(client, bad) if b != c.bookies[3]))
        async with client.open(bad) as reader:
            assert await reader.read_payloads(0, len(BODIES) - 1) == BODIES
        assert good not in found


async def test_the_member_that_gives_way_is_read_where_it_has_the_only_good_copy() -> None:
    """Moving never asks more of the others than they have: the old member is alive and holds what it held."""
    async with cluster(bookies=3) as c, c.client() as client:
        await c.kill(2)
        await client.services.bookies.refresh()
        ledger = await written(client, ensemble="2/2/1")
        await c.restart(2)
        await client.services.bookies.refresh()
        await place(client, dict(zip(c.bookies, ("/r1", "/r1", "/r2"), strict=True)))
        moved = client.services.bookies.moves(
            await members(client, ledger), Quorum(2, 2, 1), PlacementPolicy.parse("rack:2")
        )
        assert moved is not None
        ((position, _),) = moved.items()
        stays = (await members(client, ledger))[1 - position]
        await c.kill(c.bookies.index(stays))
        report = await client.repair(ledger, move=True)
        assert not any("no good copy" in problem for problem in report.problems), report.problems


async def test_explanations_name_members_and_the_others() -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        await place(client, dict(zip(c.bookies, ("/r1", "/r2", "/r1", "/r1"), strict=True)))
        one = await explain_new(client.services, Quorum(2, 2, 2), PlacementPolicy.parse("rack:2 enforce"))
        assert not one.short
        assert {r.bookie for r in one.reasons} == set(c.bookies)
        assert next(r for r in one.reasons if r.bookie == c.bookies[1]).taken
        ledger = await written(client, ensemble="2/2/2")
        await c.kill(2)
        (told,) = await explain_ledger(client.services, ledger)
        assert "not registered" in next(r.why for r in told.reasons if r.bookie == c.bookies[2])


async def test_a_member_stays_until_another_holds_all_it_has() -> None:
    """M7: the bookie that would do does not answer, so the record goes on naming the one that does."""
    async with (
        cluster(bookies=3) as c,
        connect(c.uri, net=NetConfig(request_timeout_s=0.3, connect_timeout_s=0.3)) as client,
    ):
        await c.kill(2)
        await client.services.bookies.refresh()
        ledger = await written(client, ensemble="2/2/2", bodies=BODIES[:3])
        await c.restart(2)
        await client.services.bookies.refresh()
        await place(client, dict(zip(c.bookies, ("/r1", "/r1", "/r2"), strict=True)))
        before = await members(client, ledger)
        await c.pause(2)
        report = await client.repair(ledger, move=True)
        assert not report.healthy
        assert not report.replaced
        assert await members(client, ledger) == before
        await c.resume(2)
        assert (await client.repair(ledger, move=True)).healthy
        assert c.bookies[2] in await members(client, ledger)
