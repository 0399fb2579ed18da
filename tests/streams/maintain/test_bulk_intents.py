"""The janitor and the intents of bulk steps that were never published."""

from __future__ import annotations

from buckram.cluster import Client
from buckram.namespace import Namespace
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.shared.ledgers import list_intents


async def test_the_janitor_asks_whether_a_step_is_decided(ns: Namespace, client: Client) -> None:
    await ns.create("s")

    async def left(bulk_age_s: float = 1000) -> list[tuple[str, int]]:
        await Janitor(client, JanitorSettings(grace_s=0, bulk_age_s=bulk_age_s)).clean()
        uid = (await ns.info("s")).uid
        return [(intent.query, intent.step[1]) for intent in await list_intents(ns.store, uid) if intent.step]

    async def made(query: str, version: int, *, publish: bool = False, new_epoch: bool = False) -> None:
        step = await ns.bulk("s", application="app", version=version, query=query, place="p", new_epoch=new_epoch)
        ledger = await step.create_ledger()
        await ledger.append_many([b"x"])
        done = await ledger.close()
        if publish:
            await step.publish([done])

    await made("q1", 5)
    await made("q1", 6)
    assert await left() == [("q1", 5), ("q1", 6)]
    await made("q1", 5, publish=True)
    assert await left() == [("q1", 6)]
    await made("q2", 0)  # Its number is lower than q1's, but it is of another query and not decided.
    assert await left() == [("q1", 6), ("q2", 0)]
    await made("q2", 0, publish=True, new_epoch=True)
    assert await left() == [], "q1 is out for good"
    await made("q2", 1)
    assert await left(bulk_age_s=-1) == [], "nobody is heard of"
    assert [record.value async for record in ns.read("s")] == [b"x", b"x"]
