"""Which namespaces may become mirrors: a target that is written is refused, whatever is created or killed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.replication.kit import SPACE, Pair, append, numbered, pair, records, space
from tests.replication.mortal import Life
from tests.state.machine.kit import Inventory
from tests.support.polling import eventually

from buckram import NoSuchNamespace, ReplicationRefused
from buckram.core.streams.metadata.mirrors import MIRROR
from buckram.core.streams.replication_links import SOURCE, Link
from buckram.replication import linking
from buckram.replication.promotion import promote
from buckram.replication.reconciling import differences, reconcile
from buckram.replication.run import Replication
from buckram.replication.sides import Side, WrittenLink, put_link, read_link, write_link
from buckram.runtime.net.pace import Pace

OWN = "streams of its own that are no mirrors of this source: "
Before = Callable[[], Awaitable[object]]


async def wrong_way(both: Pair) -> object:
    return await both.work(back=True)


async def links(both: Pair) -> list[tuple[str, bool] | None]:
    found = [await read_link(side, SPACE) for side in (both.a, both.b)]
    return [None if link is None else (link.state, link.tentative) for link in found]


def around(monkeypatch: pytest.MonkeyPatch, *, before: Before | None = None, after: Before | None = None) -> None:
    """Have something happen once, before or after a run writes the first record."""
    write, left = write_link, [before, after]

    async def meanwhile(side: Side, namespace: str, link: Link) -> WrittenLink:
        (first, last), left[:] = left, [None, None]
        if first is not None:
            await first()
        written = await write(side, namespace, link)
        if last is not None:
            await last()
        return written

    monkeypatch.setattr(linking, "write_link", meanwhile)


async def test_a_side_that_is_written_does_not_become_the_mirror_of_an_empty_one() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        async with space(both.a).machine("goods", Inventory) as machine:
            await machine.lead()
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("one", b"1")
        with pytest.raises(ReplicationRefused, match=f"{OWN}its objects, goods \\(machine\\), orders\\. .*swap --from"):
            await both.work(back=True)
        assert await links(both) == [None, None]
        await both.copied()
        await append(both.a, numbered(3, 5), "new")
        assert [record.value for record in await records(both.b)] == numbered(0, 3)


async def test_of_many_streams_some_are_named() -> None:
    async with pair() as both:
        for number in range(7):
            await space(both.a).create(f"s{number}")
        with pytest.raises(ReplicationRefused, match=f"{OWN}s0, s1, s2, s3, s4, \\.\\.\\.\\. If"):
            await both.work(back=True)


async def test_nothing_is_recorded_of_any_namespace_if_one_is_refused() -> None:
    async with pair() as both:
        await both.b.namespaces.create("bare", ensemble="1/1/1")
        await append(both.a, numbered(0, 3))
        with pytest.raises(ReplicationRefused, match=OWN):
            await both.work("bare", SPACE, back=True)
        assert await read_link(both.a, "bare") is None
        assert await read_link(both.b, "bare") is None
        with pytest.raises(NoSuchNamespace):
            await both.a.namespaces.get("bare")


async def test_streams_beside_those_that_are_named_are_not_looked_at() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        await append(both.b, numbered(0, 1), "private")
        await both.copied("shop/orders")
        await append(both.b, numbered(1, 2), "private")
        with pytest.raises(ReplicationRefused, match=f"{OWN}private"):
            await both.work(SPACE)
        link = await read_link(both.b, SPACE)
        assert link is not None
        assert link.streams == ("orders",)
        await space(both.b).create("another")
        await both.copied("shop/orders")


@pytest.mark.parametrize("place", ["shop/orders", SPACE])
async def test_a_stream_that_is_created_before_the_record_is_found(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is taken back, and what is written there goes on."""
    async with pair() as both:
        await space(both.b).create("orders")
        around(monkeypatch, before=lambda: append(both.a, numbered(0, 3)))
        with pytest.raises(ReplicationRefused, match=f"{OWN}orders"):
            await both.work(place, back=True)
        assert await links(both) == [None, None]
        await append(both.a, numbered(3, 5))
        await space(both.a).create("late")


async def test_a_mirror_of_some_streams_stays_one_of_these(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        await both.copied("shop/orders")
        around(monkeypatch, before=lambda: space(both.b).create("private"))
        with pytest.raises(ReplicationRefused, match=f"{OWN}private"):
            await both.work(SPACE)
        link = await read_link(both.b, SPACE)
        assert link is not None
        assert (link.streams, link.tentative) == (("orders",), False)
        await space(both.b).create("another")


async def test_a_stream_is_not_created_while_the_target_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))

        async def create() -> None:
            for creation in (space(both.b).create("orders"), space(both.b).writer("new")):
                with pytest.raises(ReplicationRefused, match="run it again, or in the other direction"):
                    await creation

        around(monkeypatch, after=create)
        await both.copied()
        assert await links(both) == [("source", False), ("mirror", False)]


async def test_a_run_that_was_killed_before_it_was_sure_leaves_both_directions_open() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        life = Life(1, after=True)
        try:
            await life.run(both, lambda sides: sides.work())
        finally:
            await life.bury()
        assert await links(both) == [None, ("mirror", True)]
        with pytest.raises(ReplicationRefused, match="or was stopped while it did"):
            await space(both.b).create("orders")
        with pytest.raises(ReplicationRefused, match=f"{OWN}orders"):
            await both.work(back=True)
        await both.copied()
        assert await links(both) == [("source", False), ("mirror", False)]


async def test_what_a_killed_run_left_on_the_side_that_is_written_hinders_nothing() -> None:
    async with pair() as both:
        life = Life(1, after=True)
        try:
            await life.run(both, wrong_way)
        finally:
            await life.bury()
        assert await links(both) == [("mirror", True), None]
        await both.copied()
        assert await links(both) == [("source", False), ("mirror", False)]
        await append(both.a, numbered(0, 3))


async def test_a_promotion_of_what_was_never_confirmed_makes_it_writable() -> None:
    async with pair() as both:
        life = Life(1, after=True)
        try:
            await life.run(both, wrong_way)
        finally:
            await life.bury()
        await promote(both.a, SPACE, None)
        assert await links(both) == [("promoted", False), None]
        await append(both.a, numbered(0, 3))


async def test_a_side_that_an_older_release_took_for_a_mirror_is_made_writable_by_a_promotion() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        await put_link(both.a, SPACE, Link(MIRROR, both.b.cluster, ""))
        await put_link(both.b, SPACE, Link(SOURCE, both.a.cluster, ""))
        with pytest.raises(ReplicationRefused, match="swap --from and --to, or promote the mirror"):
            await both.work()
        await promote(both.a, SPACE, both.b, force=True)
        await append(both.a, numbered(0, 3), "new")
        await reconcile(both.b, both.a, SPACE, await differences(both.b, both.a, SPACE))
        await both.copied()
        assert len(await records(both.b)) == 3


@pytest.mark.parametrize("when", ["before", "after"])
async def test_two_runs_in_opposite_directions_make_one_mirror(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides are empty, so that each of them could become the mirror."""
    async with pair() as both:
        around(monkeypatch, **{when: lambda: Replication.prepare(both.b, both.a, [SPACE], pace=Pace(None))})
        with pytest.raises(ReplicationRefused, match="swap --from and --to"):
            await both.work()
        assert await links(both) == [("mirror", False), ("source", False)]
        await append(both.b, numbered(0, 3))
        await both.copied(back=True)


async def test_two_runs_that_are_both_unsure_do_not_make_two_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one goes on when the first one has confirmed its mirror, and has not told the source yet."""
    write, note = write_link, linking._note_source
    waiting, sure = asyncio.Event(), asyncio.Event()
    async with pair() as both:
        second = asyncio.ensure_future(_outcome(both, waiting))

        async def writes(side: Side, namespace: str, link: Link) -> WrittenLink:
            written = await write(side, namespace, link)
            if link.tentative and side.cluster == both.b.cluster:
                waiting.set()
                await eventually_tentative(both)
            elif link.tentative:
                await sure.wait()
            return written

        async def notes(source: Side, target: Side, namespace: str, mirror: Link) -> None:
            sure.set()
            if source.cluster == both.a.cluster:
                assert "swap --from and --to" in await second
            await note(source, target, namespace, mirror)

        monkeypatch.setattr(linking, "write_link", writes)
        monkeypatch.setattr(linking, "_note_source", notes)
        await both.copied()
        assert await links(both) == [("source", False), ("mirror", False)]


async def eventually_tentative(both: Pair) -> None:
    async def there() -> bool:
        link = await read_link(both.a, SPACE)
        return link is not None and link.tentative

    await eventually(there)


async def _outcome(both: Pair, begin: asyncio.Event) -> str:
    await begin.wait()
    try:
        await both.work(back=True)
    except ReplicationRefused as error:
        return str(error)
    return ""
