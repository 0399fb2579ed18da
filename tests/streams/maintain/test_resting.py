"""Streams at rest: a janitor that runs permanently passes over them, and over nothing that may have become due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import buckram.streams.maintain.janitor as janitor_module
from buckram.cluster import Client
from buckram.core.streams.metadata.head import Head, Segment, Summary
from buckram.core.streams.names import StreamName, stream_name
from buckram.core.streams.policy import Policy, merged
from buckram.namespace import Namespace
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.janitor_report import JanitorReport
from buckram.streams.maintain.resting import REST_S, rest_s
from buckram.streams.shared.ledgers import make_ledger


class Looking(Janitor):
    """It tells at which streams it looked."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, JanitorSettings(grace_s=0))
        self.looked: list[str] = []

    async def _stream(self, name: StreamName, head: Head, report: JanitorReport) -> Any:
        self.looked.append(name.stream)
        return await super()._stream(name, head, report)

    async def looks(self, *, whole: bool = False) -> list[str]:
        self.looked.clear()
        report = await self.clean(orphans=False, whole=whole)
        assert not report.problems
        return self.looked


async def test_streams_at_rest_are_passed_over_until_their_head_changes(client: Client, ns: Namespace) -> None:
    for name in "abc":
        await ns.create(name)
    janitor = Looking(client)
    assert await janitor.looks() == ["a", "b", "c"]
    assert await janitor.looks() == []
    assert (await janitor.clean(orphans=False, whole=False)).streams == 3
    await ns.set_policy("b", retention_s=3600)
    assert await janitor.looks() == ["b"]
    assert await janitor.looks() == []
    assert await janitor.looks(whole=True) == ["a", "b", "c"]


async def test_another_stream_of_the_same_name_does_not_rest(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    janitor = Looking(client)
    await janitor.looks()
    assert await janitor.looks() == []
    await ns.delete("s")
    await ns.create("s")
    assert await janitor.looks() == ["s"]


async def test_a_policy_of_the_namespace_ends_the_rest(client: Client, ns: Namespace) -> None:
    await ns.create("s")
    janitor = Looking(client)
    await janitor.looks()
    assert await janitor.looks() == []
    await client.namespaces.set(ns.name, retention_s=60)
    assert await janitor.looks() == ["s"]


async def test_an_open_segment_an_intent_and_a_problem_keep_a_stream_awake(client: Client, ns: Namespace) -> None:
    await ns.create("open")
    await ns.create("intent")
    info = await ns.info("intent")
    made, _ = await make_ledger(
        client, ns.store, stream_name("intent", ns.name), info.uid, info.policy, epoch=0, purpose="bulk"
    )
    await made.abandon()
    async with ns.writer("open") as writer:
        await writer.append(b"x")
        janitor = Looking(client)
        for _ in range(3):
            assert await janitor.looks() == ["intent", "open"]


async def test_data_of_streams_at_rest_never_pass_for_nobodys(
    client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor_module, "_LEFTOVERS_EVERY", 1)
    async with ns.writer("s") as writer:
        await writer.append(b"x")
    await ns.create("deleted")
    janitor = Looking(client)
    for _ in range(3):
        await janitor.looks()
    assert [record.value async for record in ns.read("s")] == [b"x"]
    assert len(await ns.store.keys.children(ns.store.layout.all_data)) == 2


async def test_data_of_a_stream_whose_namespace_is_not_there_stay(client: Client, ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"x")
    keys, key = ns.store.keys, ns.store.layout.namespace(ns.name)
    janitor = Looking(client)
    await janitor.looks()
    space = await keys.get(key)
    await keys.delete(key, space.version)
    for _ in range(7):
        await janitor.clean(orphans=False, whole=False)
    await keys.create(key, space.value)
    assert [record.value async for record in ns.read("s")] == [b"x"]


SEALED = Segment(0, 1, 0, 0, Summary(10, 9, 100, 1, 2, 1, 2, -1, -1))
HEAD = Head("uid", 0, tail=(SEALED,), end=10)


@pytest.mark.parametrize(
    ("changes", "policy", "rests"),
    [
        ({}, {}, REST_S),
        ({}, {"retention_s": 600}, 60.0),
        ({}, {"retention_s": 60}, 0.0),
        ({}, {"retention_s": 86_400, "offload_to": "/h", "offload_after_s": 1000}, 100.0),
        ({}, {"backup_every_s": 200}, 20.0),
        ({}, {"retention_cursors": True}, 0.0),
        ({}, {"retention_consumed": True}, 0.0),
        ({"garbage": (7,)}, {}, 0.0),
        ({"deleting": True}, {}, 0.0),
        ({"tail": ()}, {"retention_s": 60}, REST_S),
        ({"tail": (), "paged": 3}, {"retention_s": 60}, 0.0),
    ],
)
def test_what_may_become_due_bounds_the_rest(changes: dict[str, Any], policy: dict[str, Any], rests: float) -> None:
    assert rest_s(replace(HEAD, **changes), merged(policy, {})) == rests


def test_a_stream_that_is_written_does_not_rest() -> None:
    assert rest_s(replace(HEAD, tail=(replace(SEALED, summary=None),)), Policy()) == 0.0
