"""Objects and grants of a namespace: the mirror is what the source is, whatever ends a pass, and who writes it."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress

import pytest
from tests.replication.kit import SPACE, Pair, append, numbered, pair
from tests.support.polling import eventually

from buckram import MirrorStream, NoSuchObject, ReplicationRefused
from buckram.core.objects.index_difference import MirrorStep, difference
from buckram.core.streams.names import OBJECTS_LOG, StreamName
from buckram.metadata.records.security import SecurityStore
from buckram.replication.object_copy import ObjectCopy, observed
from buckram.replication.object_differences import missing_objects
from buckram.replication.promotion import promote
from buckram.replication.reconciling import differences, differing_objects, reconcile
from buckram.replication.sides import Side
from buckram.replication.status import show_replication, status_of
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.stats import PrometheusStats
from buckram.runtime.process.tasks import TaskScope
from buckram.state.objects.mirror import MirrorObjects

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles that all write take the index from each other after a tenth of the time."""
    monkeypatch.setattr("buckram.state.objects.index_client.TURN_S", 0.1)
    monkeypatch.setattr("buckram.replication.object_copy._LOOK_S", 0.05)


async def same(both: Pair) -> None:
    """The mirror has the same objects, to the byte, with what is known of them; and the same kept directories."""
    async with AsyncExitStack() as stack:
        there, here = await observed(stack, both.a, SPACE), await observed(stack, both.b, SPACE)
        assert difference(await there.outline(), await here.outline(), both.a.now()).empty
        for info in await there.list():
            assert await here.info(info.name) == info
            assert await here.get(info.name) == await there.get(info.name)


async def test_a_pass_makes_the_mirror_what_the_source_is() -> None:
    async with pair() as both, both.a.client.objects(SPACE) as objects:
        for size in (0, 1, 1000, MIB + 1, 3 * MIB + 7):
            await objects.put(f"size/{size}", os.urandom(size), metadata={"kind": "random"})
        await objects.put("short", b"lived", expires_s=3600)
        await objects.mkdirs("kept/empty")
        upload = await objects.begin_upload("parts")
        for number in range(2):
            await objects.put_part(upload, number, bytes([number]) * 1000)
        await objects.complete_upload(upload, 2)
        work = await both.copied()
        assert work.objects[SPACE].copy.objects == 7
        await same(both)

        await objects.put("size/1000", b"another one", metadata={})
        await objects.delete("size/1")
        await objects.rename("size/0", "nothing")
        await objects.remove("kept", recursive=True)
        await objects.put("kept", b"an object where a directory was")
        await objects.delete("short")
        await objects.put("short/story", b"a directory where an object was")
        await both.copied()
        await same(both)
        again = await both.copied()
        assert (again.objects[SPACE].copy.objects, again.objects[SPACE].copy.removed) == (0, 0)


async def test_what_was_renamed_keeps_its_bytes_in_the_mirror() -> None:
    async with pair() as both, both.a.client.objects(SPACE) as objects:
        await objects.put("large", os.urandom(2 * MIB))
        await objects.put("old/one", b"1", expires_s=3600)
        await objects.put("old/two", b"2")
        await both.copied()
        before = await _ledgers(both.b)
        await objects.rename("old", "new")
        await objects.rename("large", "larger")
        await both.copied()
        await same(both)
        assert await _ledgers(both.b) == before


async def _ledgers(side: Side) -> set[int]:
    async with AsyncExitStack() as stack:
        found = await observed(stack, side, SPACE)
        rows = await found._index.look(lambda state: state.listed("", "", 1000))
        return {extent.ledger for _, row in rows for extent in row.extents}


async def test_a_pass_that_is_stopped_at_any_step_is_completed_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.core.objects.index_difference.MOST_CHANGES", 3)
    change, done = MirrorObjects.change, 0

    class Stop(Exception):
        pass

    async def stopping(self: MirrorObjects, *arguments: object) -> None:
        nonlocal done
        if done == 2:
            raise Stop
        done += 1
        await change(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MirrorObjects, "change", stopping)
    async with pair() as both, both.a.client.objects(SPACE) as objects:
        for number in range(12):
            await objects.put(f"n/{number:02d}", b"%d" % number)
        seen: list[int] = []
        while not seen or seen[-1] < 12:
            done = 0
            with suppress(Stop):
                await ObjectCopy(both.a, both.b, SPACE, Pace(None)).run(follow=False)
            async with both.b.client.objects(SPACE) as mirror:
                names = [info.name for info in await mirror.list()]
            # Those that were put first are there first.
            assert names == [f"n/{number:02d}" for number in range(len(names))]
            seen.append(len(names))
        assert seen == [6, 12]
        done = -10
        await both.copied()
        await same(both)


async def test_a_mirror_is_read_by_anybody_and_written_by_nobody_else() -> None:
    async with pair() as both, both.a.client.objects(SPACE) as objects:
        await objects.put("a", b"1")
        await both.copied()
        async with both.b.client.objects(SPACE) as mirror:
            assert await mirror.get("a") == b"1"
            ledgers = await both.b.client.services.store.list_ledgers()
            async with asyncio.timeout(20):
                for refused in (
                    mirror.put("b", b"2"),
                    mirror.put("b", os.urandom(2 * MIB)),
                    mirror.delete("a"),
                    mirror.rename("a", "b"),
                    mirror.mkdirs("d"),
                ):
                    with pytest.raises(MirrorStream, match="buckram replicate promote shop"):
                        await refused
            assert await both.b.client.services.store.list_ledgers() == ledgers
            assert [info.name for info in await mirror.list()] == ["a"]


async def test_a_running_replication_follows_what_is_put_and_deleted() -> None:
    async with pair() as both, both.a.client.objects(SPACE) as objects:
        work = await both.work()
        async with TaskScope("run") as scope:
            scope.spawn(work.follow(), "follow")
            for number in range(3):
                await objects.put(f"late/{number}", b"%d" % number)
                await eventually(lambda number=number: _has(both.b, f"late/{number}"))
            await objects.delete("late/0")

            async def gone() -> bool:
                return not await _has(both.b, "late/0")

            await eventually(gone)
            stats = PrometheusStats()
            await show_replication(work, both.a, both.b, stats)
            text = stats.render().decode()
            assert 'buckram_replication_objects_copied{namespace="shop"} 3.0' in text
        await same(both)


async def _has(side: Side, name: str) -> bool:
    if not await side.client.namespace(SPACE).exists(OBJECTS_LOG):
        return False
    async with side.client.objects(SPACE) as objects:
        try:
            await objects.info(name)
        except NoSuchObject:
            return False
        return True


async def test_a_source_that_was_deleted_and_made_anew_is_noticed() -> None:
    async with pair() as both:
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("old", b"1")
        work = await both.work()
        async with TaskScope("run") as scope:
            scope.spawn(work.follow(), "follow")
            await eventually(lambda: _has(both.b, "old"))
            await both.a.client.namespace(SPACE).delete(OBJECTS_LOG, purpose="objects")
            async with both.a.client.objects(SPACE) as objects:
                await objects.put("new", b"2")

            async def noticed() -> bool:
                return "deleted and created anew" in work.objects[SPACE].trouble

            await eventually(noticed, seconds=20)


async def test_bytes_that_are_not_those_that_were_put_are_not_copied() -> None:
    async with pair() as both, both.a.client.objects(SPACE) as objects:
        for name in ("bad", "good"):
            await objects.put(name, name.encode())
        wrong = f"sha256:{'0' * 64}"
        row = await objects._row("bad")
        damaged = [("bad", row._replace(digest=wrong))]
        await objects._index.execute(["mirror", 0, MirrorStep(damaged).encode(damaged), []])
        work = await both.work()
        await work.once()
        assert "shop/bad" in work.objects[SPACE].trouble
        async with both.b.client.objects(SPACE) as mirror:
            assert [info.name for info in await mirror.list()] == ["good"]


async def test_a_promotion_tells_which_objects_were_not_copied_and_changes_who_writes() -> None:
    async with pair() as both, both.a.client.objects(SPACE) as objects:
        await objects.put("first", b"1")
        await objects.put("deleted", b"2")
        await both.copied()
        await objects.put("late", b"33")
        await objects.put("first", b"again")
        await objects.delete("deleted")
        status = await status_of(both.b, SPACE)
        assert status is not None
        assert status.objects is not None
        assert (status.objects.missing, status.objects.bytes, status.objects.undeleted) == (2, 7, 1)
        found = await promote(both.b, SPACE, both.a, force=True)
        told = found.objects
        assert told is not None
        assert (told.missing, told.names, told.undeleted, told.as_json()["unknown_beyond"]) == (
            2,
            ("late", "first"),
            1,
            False,
        )
        assert (told.copied_version, told.source_version) == (2, 4)
        async with both.b.client.objects(SPACE) as mirror, asyncio.timeout(20):
            await mirror.put("new", b"4")
            with pytest.raises(MirrorStream, match="reconcile"):
                await objects.put("too late", b"5")


async def test_without_the_source_it_tells_what_was_known() -> None:
    async with pair() as both:
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("first", b"1")
            await both.copied()
        found = await promote(both.b, SPACE, None)
        assert found.objects is not None
        told = found.objects.as_json()
        assert (told["missing"], told["unknown_beyond"], told["copied_version"], told["source_version"]) == (
            None,
            True,
            1,
            1,
        )


async def test_reconciling_keeps_objects_that_only_the_old_side_has() -> None:
    async with pair() as both:
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("same", b"1")
            await objects.put("older", b"2")
            await both.copied()
            await objects.put("older", b"changed")
            await objects.put("late", b"3", metadata={"by": "a"})
        await promote(both.b, SPACE, None)
        async with both.b.client.objects(SPACE) as mirror:
            await mirror.put("new", b"4")
        found = await differences(both.a, both.b, SPACE)
        kept = await differing_objects(both.a, both.b, SPACE)
        assert kept is not None
        assert (kept.objects, kept.bytes, kept.kept) == (2, 8, "shop.kept-1")
        await reconcile(both.a, both.b, SPACE, found)
        async with both.a.client.objects("shop.kept-1") as aside:
            infos = {info.name: info.metadata for info in await aside.list()}
            assert infos == {"late": {"by": "a"}, "older": {}}
            assert await aside.get("older") == b"changed"
        work = await both.copied(back=True)
        assert work.objects[SPACE].copy.objects == 3
        async with both.a.client.objects(SPACE) as objects:
            assert [info.name for info in await objects.list()] == ["new", "older", "same"]


async def test_objects_that_no_replication_made_are_refused() -> None:
    async with pair() as both:
        for side in (both.a, both.b):
            async with side.client.objects(SPACE) as objects:
                await objects.put("a", b"1")
        with pytest.raises(ReplicationRefused, match="no replication made"):
            await ObjectCopy(both.a, both.b, SPACE, Pace(None)).run(follow=False)


async def test_a_namespace_without_objects_has_none_in_the_mirror() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 1))
        await both.copied()
        assert await missing_objects(both.a, both.b, SPACE) is None
        assert not await both.b.client.namespace(SPACE).exists(OBJECTS_LOG)
        with pytest.raises(ReplicationRefused, match="name the namespace"):
            await both.work(str(StreamName(SPACE, OBJECTS_LOG)))


async def test_grants_of_the_namespace_are_those_of_the_source() -> None:
    async with pair() as both:
        a, b = (SecurityStore(side.client.services.store) for side in (both.a, both.b))
        for who, names in (("token:alice", SPACE), ("token:bob", f"{SPACE}/orders"), ("token:carl", "sh*")):
            await a.change_acl(lambda acl, who=who, names=names: acl.granting(who, names, ["read", "append"]))
        await b.change_acl(lambda acl: acl.granting("token:dora", "other", ["read"]))
        await both.copied()
        shown = {(one.who, one.namespaces) for one in (await b.acl()).grants}
        assert shown == {("token:alice", SPACE), ("token:bob", f"{SPACE}/orders"), ("token:dora", "other")}
        await a.change_acl(lambda acl: acl.revoking("token:alice", SPACE, ["append"]))
        await a.change_acl(lambda acl: acl.revoking("token:bob", f"{SPACE}/orders", ["read", "append"]))
        await both.copied()
        left = {(one.who, one.namespaces): set(one.permissions) for one in (await b.acl()).grants}
        assert left == {("token:alice", SPACE): {"read"}, ("token:dora", "other"): {"read"}}
        assert await b.tokens() == []
