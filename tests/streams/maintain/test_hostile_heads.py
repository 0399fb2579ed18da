"""Whatever stands in the metadata of one stream, a janitor goes on with all others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from buckram.cluster import Client
from buckram.core.streams.names import StreamName
from buckram.health.stream_facts import StreamsLook
from buckram.metadata.tree.store import TreeStore
from buckram.namespace import Namespace
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.shared.metadata import StreamStore

pytestmark = pytest.mark.share(4)
ODD: dict[str, dict[str, Any]] = {
    "a setting that nobody knows": {"policy": {"colour": "red"}},
    "a setting of another type": {"policy": {"retention_s": "soon"}},
    "a setting of ten thousand digits": {"policy": {"retention_s": 10**4000}},
    "a setting that is no number": {"policy": {"retention_s": float("nan"), "retention_bytes": float("inf")}},
    "a list of settings": {"policy": [["retention_s", 5]]},
    "settings in settings": {"policy": {"ensemble": [1, 1, 1], "digest": [], "compression": {}}},
    "an ensemble of nothing": {"policy": {"ensemble": "0/0/0"}},
    "a placement of nonsense": {"policy": {"placement": "rack:x:-1"}},
    "half a character": {"properties": {"a": "\ud800"}},
    "half a character in the uid": {"uid": "\udfff"},
    "a property in a property": {"properties": {"buckram": {"a": []}}},
    "an end without end": {"end": 10**400, "earliest": 10**399},
    "a time without end": {"created": -(10**400), "last_append": 10**400},
    "pages without end": {"first": 0, "paged": 256 * 50_000},
    "negative pages": {"first": -(10**6), "paged": -5, "next_number": -1},
    "a row of a time without end": {"tail": [[0, "ledger", 5, 0, 10**400]], "next_number": 1},
    "a row that is not there": {"tail": [[0, "ledger", -5, -7, 1, 3, 2, 1, 1, 1, 1, 1, 1, 9]], "next_number": 1},
    "rows in the wrong order": {
        "tail": [[7, "ledger", 5, 90, 1, 3, 2, 1, 1, 1, 1, 1, 1, 9], [3, "ledger", 5, 1, 1, 3, 2, 1, 1, 1, 1, 1, 1, 9]],
        "next_number": 4,
    },
    "a row of another kind": {"tail": [[0, "moon", 5, 0, 1, 3, 2, 1, 1, 1, 1, 1, 1, 9]], "next_number": 1},
    "garbage that is none": {"garbage": [-1, 2**63 - 1, 10**30]},
    "a table that is none": {"table": [0, "ledger", 2**62, 0, 1], "producers": 0},
    "producers that are none": {"producers": 10**9},
    "a fork of nothing": {"fork": ["", "", -1, False]},
    "a mirror of nothing": {"mirror": ["moon", "", "", -1, -1]},
    "snapshots of nothing": {"snapshots": [[5, 5, 5, 5, "", 5], [4, 4, 4, 4, "", 4]]},
    "a transaction of nothing": {"transactions": {"": [2**62, -1, -2, 2**62, "", "", []]}},
    "a writer of nothing": {"writer": ["\n" * 100, "", 2**62], "epoch": -(2**62)},
    "offload to nowhere": {"policy": {"offload_to": "nowhere", "offload_bytes": 0}},
    "an end that no segment has": {"end": 2**62, "garbage": [987654321]},
    "a beginning behind its end": {"earliest": 2**62, "garbage": [987654321]},
    "a time that never comes": {"last_append": 2**62, "end": 0, "garbage": [987654321]},
    "offload everywhere": {"policy": {"offload_to": "/proc/buckram", "offload_bytes": 0, "offload_after_s": 0}},
}


@pytest.mark.parametrize("what", ODD)
async def test_a_pass_goes_on_whatever_one_head_says(client: Client, ns: Namespace, what: str) -> None:
    store = ns.store
    for name in ("a", "b"):
        async with ns.writer(name) as writer:
            await writer.append(b"x")
    await changed(store, StreamName(ns.name, "b"), lambda raw: raw.update(deleting=True))
    await changed(store, StreamName(ns.name, "a"), lambda raw: raw.update(ODD[what]))
    await Janitor(client, JanitorSettings(grace_s=0, seal_s=0)).clean()
    assert "b" not in await ns.list()


async def changed(store: StreamStore, name: StreamName, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the head as no program of ours would."""
    key = store.layout.head(name)
    found = await store.keys.get(key)
    raw = json.loads(found.value)
    change(raw)
    await store.keys.set(key, json.dumps(raw).encode(), found.version)


INTENTS = [
    {"purpose": "bulk a \u00b2"},
    {"purpose": "bulk a " + "9" * 5000},
    {"purpose": "bulk"},
    {"time": 10**400},
    {"time": -(10**400), "purpose": "retired"},
    {"epoch": 10**400},
    {"place": "\ud800", "purpose": "export"},
    {"place": "/", "purpose": "offload", "epoch": -1, "state": "discard"},
    {"place": "//x\x00y", "purpose": "offload", "epoch": -1, "state": "discard"},
    {"state": "moon", "query": "q" * 3000, "purpose": "bulk a 1"},
]


@pytest.mark.parametrize("fields", INTENTS, ids=range(len(INTENTS)))
async def test_a_pass_goes_on_whatever_one_intent_says(client: Client, ns: Namespace, fields: dict[str, Any]) -> None:
    store = ns.store
    for name in ("a", "b"):
        async with ns.writer(name) as writer:
            await writer.append(b"x")
    await changed(store, StreamName(ns.name, "b"), lambda raw: raw.update(deleting=True))
    uid = (await ns.info("a")).uid
    ledger = await client.services.store.allocate_ledger_id()
    value = {"epoch": 0, "purpose": "segment", "time": 1, "state": "made", **fields}
    await store.keys.create(store.layout.intent(uid, ledger), json.dumps(value).encode())
    await Janitor(client, JanitorSettings(grace_s=0)).clean()
    assert "b" not in await ns.list()


@pytest.mark.parametrize("what", ODD)
async def test_health_sees_all_others_whatever_one_head_says(client: Client, ns: Namespace, what: str) -> None:
    await ns.create("a")
    await ns.create("b", retention_consumed=True)
    async with ns.writer("b") as writer:
        await writer.append(b"x")
    cursor = f"{ns.store.layout.cursors((await ns.info('b')).uid)}/c"
    await ns.store.keys.create(cursor, b'{"offset": 0, "changed": 1}')
    await changed(ns.store, StreamName(ns.name, "a"), lambda raw: raw.update(ODD[what]))
    missed = list[tuple[str, str]]()
    found = await StreamsLook(cast(TreeStore, client.services.store)).look(missed)
    assert [one.cursor for one in found.cursors] == ["c"], missed
