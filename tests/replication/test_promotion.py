"""Promotion and reconciling: one side writes, what is only on the other side is told exactly, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.replication.kit import ORDERS, SPACE, append, numbered, pair, records, space
from tests.support.polling import eventually

from buckram import (
    Client,
    MirrorStream,
    NoSuchNamespace,
    NoSuchStream,
    ReplicationRefused,
    StreamError,
    WriterLost,
)
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.core.streams.forks import ForkPlan
from buckram.core.streams.metadata.changes import deleted
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.mirrors import MIRROR, PROMOTED, SUPERSEDED
from buckram.core.streams.metadata.purposes import Purpose
from buckram.core.streams.metadata.transactions import StepId
from buckram.core.streams.names import StreamName
from buckram.core.streams.replication_links import Link
from buckram.metadata.tree.store import TreeStore
from buckram.replication.fencing import supersede
from buckram.replication.promotion import promote
from buckram.replication.reconciling import differences, reconcile
from buckram.replication.sides import Side, read_link
from buckram.runtime.process.tasks import TaskScope
from buckram.spark.jobs.import_kafka import _opened
from buckram.spark.sink.transactions import open_step
from buckram.streams.maintain.fork import _Forking
from buckram.streams.shared.metadata import StreamStore
from buckram.types import Versioned

SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}'


class Stop(Exception):
    """A process ends here."""


async def test_a_promoted_mirror_goes_on_at_its_end_and_tells_what_was_not_copied() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()
        await append(both.a, numbered(5, 8))
        await append(both.a, numbered(0, 1), "late")
        found = await promote(both.b, SPACE, both.a, force=True)
        (one,) = found.streams
        assert (one.stream, one.end, one.source_end, one.missing, one.exact) == ("shop/orders", 5, 8, 3, True)
        assert found.only_there == ["shop/late"]
        async with space(both.b).writer("orders") as writer:
            assert await writer.append(b"new") == 5


async def test_without_the_source_what_it_has_beyond_is_said_to_be_unknown() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()
        found = await promote(both.b, SPACE, None)
        (one,) = found.streams
        assert (one.end, one.source_end, one.missing, one.exact) == (5, 5, 0, False)
        assert not found.fenced


async def test_it_is_refused_while_the_other_side_lives() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()
        with pytest.raises(ReplicationRefused, match="is alive"):
            await promote(both.b, SPACE, both.a)
        await append(both.a, numbered(5, 6))  # Nothing was changed.
        with pytest.raises(MirrorStream):
            await space(both.b).writer("orders")


async def test_a_live_writer_of_the_source_is_fenced_before_the_mirror_takes_records() -> None:
    async with pair() as both:
        writer = await space(both.a).writer("orders")
        await writer.append(b"kept")
        await both.copied()
        await promote(both.b, SPACE, both.a, force=True)
        with pytest.raises(WriterLost):
            await writer.append(b"too late")
        await writer.abandon()
        with pytest.raises(MirrorStream, match="buckram replicate reconcile shop"):
            await space(both.a).writer("orders")


async def test_a_running_copy_ends_when_its_mirror_is_promoted() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        work = await both.work()
        async with TaskScope("run") as scope:
            task = scope.spawn(_outcome(work.follow()), "follow")

            async def there() -> bool:
                return await space(both.b).exists("orders") and len(await records(both.b)) == 5

            await eventually(there)
            await promote(both.b, SPACE, None)
            async with asyncio.timeout(10):
                assert "promoted" in await task


async def test_the_old_side_is_fenced_when_a_replication_meets_it_again() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()
        await promote(both.b, SPACE, None)  # The old side is away.
        await append(both.a, numbered(5, 7))  # It does not know yet.
        for back in (False, True):
            with pytest.raises(ReplicationRefused, match="buckram replicate reconcile shop"):
                await both.work(back=back)
        with pytest.raises(MirrorStream):
            await space(both.a).writer("orders")


async def test_reconciling_keeps_what_only_the_old_side_has_and_makes_it_a_mirror() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await append(both.a, numbered(0, 2), "same")
        await both.copied()
        await promote(both.b, SPACE, None)
        await append(both.a, numbered(5, 8))
        await append(both.a, numbered(0, 1), "late")
        only = await records(both.a)
        await append(both.b, [b"on the new side"])

        found = await differences(both.a, both.b, SPACE)
        shown = {one.stream: (one.first, one.end, one.kept) for one in found}
        assert shown == {
            "shop/late": (0, 1, "shop/late.kept-1"),
            "shop/orders": (5, 8, "shop/orders.kept-1"),
            "shop/same": (2, 2, ""),
        }
        assert await records(both.a) == only  # Looking changes no record.
        await reconcile(both.a, both.b, SPACE, found)
        assert await records(both.a, "orders.kept-1") == only[5:]
        with pytest.raises(NoSuchStream):
            await records(both.a)

        await both.copied(back=True)
        assert await records(both.a) == await records(both.b)
        with pytest.raises(ReplicationRefused, match="reconciled already"):
            await differences(both.a, both.b, SPACE)


async def test_a_side_that_was_reconciled_is_not_superseded_again() -> None:
    """By a run that met the promotion before the reconciling, and goes on after it."""
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()
        await promote(both.b, SPACE, None)
        late = replace(await _link(both.b), state=SUPERSEDED, cluster=both.b.cluster)
        await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
        await both.copied(back=True)
        assert await supersede(both.a, SPACE, late) == []
        assert (await _link(both.a)).state == MIRROR
        await both.copied(back=True)
        await promote(both.a, SPACE, both.b, force=True)
        assert await supersede(both.a, SPACE, late) == []
        assert (await _link(both.a)).state == PROMOTED


async def test_records_that_came_after_the_comparison_stay() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()
        await promote(both.b, SPACE, None)
        await append(both.a, numbered(5, 8))
        only = await records(both.a)
        (found,) = await differences(both.a, both.b, SPACE)
        with pytest.raises(ReplicationRefused, match="it has changed since it was compared"):
            await reconcile(both.a, both.b, SPACE, [replace(found, end=found.end - 1)])
        assert await records(both.a) == only


async def test_a_cluster_that_is_no_source_of_the_mirror_is_not_fenced() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 2))
        await both.copied()
        with pytest.raises(ReplicationRefused, match="the other side that was named is"):
            await promote(both.b, SPACE, both.b, force=True)
        await append(both.a, numbered(2, 3))
        await both.copied()
        assert await records(both.b) == await records(both.a)


async def test_a_side_that_was_reconciled_acknowledges_nothing_before_it_is_copied() -> None:
    """A program that did not hear of the promotion makes the stream anew that the reconciling deleted, by default."""
    async with pair() as both:
        await append(both.a, numbered(0, 2))
        await both.copied()
        await promote(both.b, SPACE, both.a, force=True)
        await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
        with pytest.raises(ReplicationRefused, match=r"mirror of cluster .*create it there"):
            await append(both.a, [b"on the wrong side"])
        with pytest.raises(ReplicationRefused, match="so nothing is created here"):
            await append(both.a, [b"on the wrong side"], "other")
        await both.copied(back=True)
        assert await records(both.a) == await records(both.b)
        await space(both.a).fork_stream("orders", "looked-at")
        assert await records(both.a, "looked-at") == await records(both.b)


async def test_sides_can_be_changed_again_and_again() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        await both.copied()
        await promote(both.b, SPACE, both.a, force=True)
        await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
        await append(both.b, numbered(3, 5))
        await both.copied(back=True)
        found = await promote(both.a, SPACE, both.b, force=True)
        assert found.epoch == 2
        await append(both.a, numbered(5, 6))
        with pytest.raises(MirrorStream):
            await space(both.b).writer("orders")
        await reconcile(both.b, both.a, SPACE, await differences(both.b, both.a, SPACE))
        await both.copied()
        assert await records(both.b) == await records(both.a)
        assert [record.value for record in await records(both.b)] == numbered(0, 6)


async def test_a_promotion_that_was_stopped_is_completed_by_the_next_one() -> None:
    async with pair() as both:
        for stream in ("one", "two"):
            await append(both.a, numbered(0, 3), stream)
        await both.copied()
        head = (await both.b.streams.read(ORDERS._replace(stream="one"))).head
        from buckram.replication.promotion import _promoted

        assert head.mirror is not None
        await _promoted(both.b, ORDERS._replace(stream="one"), head, head.mirror, 1)  # It was stopped after this one.
        await append(both.b, numbered(3, 4), "one")
        found = await promote(both.b, SPACE, None)
        assert [(one.stream, one.end) for one in found.streams] == [("shop/one", 3), ("shop/two", 3)]
        assert found.epoch == 1


async def _stopped(*_: object, **__: object) -> None:
    raise Stop


async def _stopped_when_begun(
    client: Client, streams: StreamStore, name: StreamName, *, uid: str, **owner: Purpose
) -> None:
    """A deletion that ends when the stream is marked as deleted."""
    await streams.change(name, partial(deleted, str(name), **owner), uid=uid)
    raise Stop


@pytest.mark.parametrize("at", ["hand_over", "delete_stream"])
async def test_a_reconciling_that_was_stopped_is_completed_by_the_next_one(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("one", b"1")
        await both.copied()
        await promote(both.b, SPACE, None)
        await append(both.a, numbered(5, 8))
        only = await records(both.a)
        with monkeypatch.context() as patch:
            stop = _stopped if at == "hand_over" else _stopped_when_begun
            module = "divergent_data" if at == "hand_over" else "reconciling"
            patch.setattr(f"buckram.replication.{module}.{at}", stop)
            with pytest.raises(Stop):
                await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
        await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
        assert await records(both.a, "orders.kept-1") == only[5:]
        await both.copied(back=True)
        assert await records(both.a) == await records(both.b)


async def test_objects_whose_deletion_was_stopped_are_mirrored_after_the_next_reconciling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair() as both:
        async with both.a.client.objects(SPACE) as objects:
            await objects.put("one", b"1")
        await both.copied()
        await promote(both.b, SPACE, both.a, force=True)
        with monkeypatch.context() as patch:
            patch.setattr("buckram.replication.object_differences.delete_stream", _stopped_when_begun)
            with pytest.raises(Stop):
                await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
        await reconcile(both.a, both.b, SPACE, await differences(both.a, both.b, SPACE))
        work = await both.copied(back=True)
        assert [one.trouble for one in work.objects.values()] == [""]
        async with both.a.client.objects(SPACE) as objects:
            assert await objects.get("one") == b"1"


async def test_a_fork_that_is_being_made_does_not_outlive_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()
        share = _Forking._share

        async def meanwhile(self: _Forking, plan: ForkPlan, version: int) -> None:
            await share(self, plan, version)
            await promote(both.b, SPACE, both.a, force=True)

        monkeypatch.setattr(_Forking, "_share", meanwhile)
        with pytest.raises((NoSuchStream, StreamError)):
            await space(both.a).fork_stream("orders", "branch", offset=3)
        assert await space(both.a).list() == ["orders"]


CREATIONS: dict[str, Callable[[Side], Awaitable[object]]] = {
    "stream": lambda side: space(side).create("new"),
    "writer": lambda side: space(side).writer("new"),
    "fork": lambda side: space(side).fork_stream("orders", "new", offset=2),
    "machine": lambda side: space(side).create_machine_log("new"),
    "database": lambda side: space(side).create_database("new"),
    "objects": lambda side: side.client.objects(SPACE),
    "import": lambda side: _opened(side.client, StreamName(SPACE, "new"), "a", SimpleNamespace()),  # type: ignore[arg-type]
    "spark": lambda side: open_step(side.client, f"{SPACE}/new", StepId("a", 0), create=True),
}


@pytest.mark.parametrize("what", CREATIONS)
async def test_the_fenced_side_creates_nothing_not_even_what_was_begun_before(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = StreamStore.create
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()

        async def meanwhile(self: StreamStore, *given: Any) -> Head:
            if self.metadata is both.a.client.services.store:
                await promote(both.b, SPACE, both.a, force=True)
            return await create(self, *given)

        monkeypatch.setattr(StreamStore, "create", meanwhile)
        for _ in ("begun before the fence", "begun after it"):
            with pytest.raises(ReplicationRefused, match=f"promoted in place of this one.*reconcile {SPACE}"):
                await CREATIONS[what](both.a)
            monkeypatch.undo()
        assert await space(both.a).list() == ["orders"]
        await space(both.b).create("new")


async def test_the_fenced_side_makes_no_ledger_of_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after the fence, nor one whose record was made while the side was fenced."""
    mine: dict[str, bytes | str] = {LEDGER_NAMESPACE: SPACE}
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()
        client, create = both.a.client, TreeStore.create_ledger
        async with client.create(ensemble=(1, 1, 1), custom_metadata=mine) as writer:
            await writer.append(b"before")
        before = [ledger async for ledger in client.list()]

        async def meanwhile(self: TreeStore, *given: Any) -> Versioned:
            made = await create(self, *given)
            await promote(both.b, SPACE, both.a, force=True)
            return made

        with monkeypatch.context() as patch:
            patch.setattr(TreeStore, "create_ledger", meanwhile)
            with pytest.raises(ReplicationRefused, match="so no ledger of the namespace is created here"):
                await client.create(ensemble=(1, 1, 1), custom_metadata=mine)
        with pytest.raises(ReplicationRefused, match="so no ledger of the namespace is created here"):
            await client.create(ensemble=(1, 1, 1), custom_metadata=mine)
        assert [ledger async for ledger in client.list()] == before
        for other in ({LEDGER_NAMESPACE: "another"}, None):
            await client.create(ensemble=(1, 1, 1), custom_metadata=other)
        await both.b.client.create(ensemble=(1, 1, 1), custom_metadata=mine)


async def test_settings_of_a_fenced_side_stay_what_they_are() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 5))
        await both.copied()
        await promote(both.b, SPACE, both.a, force=True)
        with pytest.raises(MirrorStream):
            await space(both.a).set_schema("orders", SCHEMA)
        with pytest.raises(MirrorStream):
            await space(both.a).set_properties("orders", {"owner": "billing"})
        await space(both.a).set_policy("orders", roll_s=60.0)
        assert await space(both.b).set_schema("orders", SCHEMA) == 1


async def test_what_is_no_mirror_is_not_promoted() -> None:
    async with pair() as both:
        with pytest.raises(ReplicationRefused, match="nothing to promote"):
            await promote(both.b, SPACE, None)
        with pytest.raises(NoSuchNamespace):
            await promote(both.b, "nowhere", None)
        await append(both.a, numbered(0, 1))
        await both.copied()
        with pytest.raises(ReplicationRefused, match="nothing to promote"):
            await promote(both.a, SPACE, None)
        with pytest.raises(ReplicationRefused, match="nothing to reconcile"):
            await differences(both.a, both.b, SPACE)


async def test_only_the_streams_that_were_replicated_change_sides() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 1))
        await append(both.a, numbered(0, 1), "private")
        await both.copied("shop/orders")
        link = await read_link(both.b, SPACE)
        assert link is not None
        assert link.streams == ("orders",)
        found = await promote(both.b, SPACE, both.a, force=True)
        assert found.only_there == []
        await append(both.a, numbered(1, 2), "private")


async def _link(side: Side) -> Link:
    link = await read_link(side, SPACE)
    assert link is not None
    return link


async def _outcome(work: object) -> str:
    try:
        await work  # type: ignore[misc]
    except ReplicationRefused as error:
        return str(error)
    return ""
