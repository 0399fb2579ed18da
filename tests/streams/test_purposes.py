"""Every door to a stream asks what the stream is for: Python, and a bookie's metadata service."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.metadata_service_kit import ServedMetadata
from tests.support.purposes_kit import LOGS, Door, refuses, shop

from buckram import Client, Namespace, StreamPurpose
from buckram.core.streams.metadata.head import Head, decode_head, encode_head
from buckram.core.streams.metadata.purposes import Purpose
from buckram.core.streams.names import OBJECTS_LOG, stream_name
from buckram.errors import AccessRefused, BuckramError, InvalidArgument, NamespaceNotEmpty
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.metadata.tree.store import TreeStore
from buckram.streams.maintain.compaction import plan_compaction
from buckram.streams.maintain.history.export import plan_export
from buckram.streams.maintain.imports import plan_import
from buckram.streams.maintain.offload import plan_offload
from buckram.streams.system_streams import append_in_one_step
from buckram.testing import cluster
from buckram.types import Delete, KeyOp, SetValue

SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}'


def of(client: Client, name: str) -> tuple[Namespace, str]:
    full = stream_name(name)
    return client.namespace(full.namespace), full.stream


async def delete(client: Client, name: str) -> None:
    ns, stream = of(client, name)
    await ns.delete(stream)


async def delete_by_force(client: Client, name: str) -> None:
    ns, stream = of(client, name)
    await ns.delete(stream, force=True)


async def write(client: Client, name: str) -> None:
    ns, stream = of(client, name)
    await ns.writer(stream, takeover=True)


async def publish(client: Client, name: str) -> None:
    ns, stream = of(client, name)
    await ns.bulk(stream, application="a", version=0)


async def truncate(client: Client, name: str) -> None:
    ns, stream = of(client, name)
    await ns.truncate(stream, before=0)


async def fork(client: Client, name: str) -> None:
    ns, stream = of(client, name)
    await ns.fork_stream(stream, "copy")


async def give_a_schema(client: Client, name: str) -> None:
    ns, stream = of(client, name)
    await ns.set_schema(stream, SCHEMA)


async def import_files(client: Client, name: str) -> None:
    await plan_import(of(client, name)[0].store, stream_name(name), SimpleNamespace(), "jsonl", SimpleNamespace())  # type: ignore[arg-type]


async def export(client: Client, name: str) -> None:
    await plan_export(of(client, name)[0].store, stream_name(name), "/tmp/nowhere")


async def offload(client: Client, name: str) -> None:
    await plan_offload(of(client, name)[0].store, stream_name(name), to="/tmp/nowhere")


async def compact(client: Client, name: str) -> None:
    await plan_compaction(of(client, name)[0].store, stream_name(name))


DOORS: dict[Door, tuple[str, ...]] = {
    delete: (*LOGS, "system/audit"),
    delete_by_force: (*LOGS, "system/audit"),
    write: (*LOGS, "system/audit", "system/usage"),
    publish: (*LOGS, "system/audit", "system/usage"),
    import_files: (*LOGS, "system/audit", "system/usage"),
    give_a_schema: (*LOGS, "system/audit", "system/usage"),
    truncate: (*LOGS, "system/audit"),
    fork: LOGS,
    export: LOGS,
    offload: LOGS,
    compact: LOGS,
}


async def test_every_door_refuses_what_would_take_more_along_than_a_stream() -> None:
    async with shop() as client:
        for door, refused in DOORS.items():
            for name in refused:
                assert await refuses(door, client, name), f"{door.__name__} of {name} was not refused"
        for name in (*LOGS, "system/audit", "system/usage"):
            ns, stream = of(client, name)
            head = (await ns.store.read(stream_name(name))).head
            assert (head.deleting, head.epoch, head.earliest) == (False, 0, 0)
            await ns.set_policy(stream, roll_s=60.0)


async def test_owners_go_on_and_whoever_says_the_purpose_deletes() -> None:
    async with shop() as client:
        ns = client.namespace("shop")
        info = await client.namespace("system").info("audit")
        await append_in_one_step(client, info, "b1", [b"{}"], [1])
        assert (await client.namespace("system").get("audit", 0)).value == b"{}"
        with pytest.raises(NamespaceNotEmpty, match=r"buckram\.objects, which is the index of all objects .*--purpose"):
            await client.namespaces.delete("shop")
        with pytest.raises(StreamPurpose, match="its purpose is machine, not database"):
            await ns.delete("inventory", purpose="database")
        with pytest.raises(InvalidArgument, match="needs one of records, machine"):
            await ns.delete("inventory", purpose="everything")
        assert {one: (await ns.info(one)).purpose for one in await ns.list()} == {
            "orders": Purpose.RECORDS,
            "main": Purpose.DATABASE,
            "inventory": Purpose.MACHINE,
            OBJECTS_LOG: Purpose.OBJECTS,
        }
        for stream, purpose in (("main", "database"), ("inventory", "machine"), (OBJECTS_LOG, "objects")):
            await ns.delete(stream, purpose=purpose)
        await ns.delete("orders")
        await client.namespace("system").delete("usage")
        await client.namespace("system").delete("audit", purpose="audit")
        await client.namespaces.delete("shop")


async def test_the_name_of_the_index_of_objects_is_for_nothing_else() -> None:
    async with cluster(bookies=1) as one, one.client() as client:
        ns = client.namespace()
        for making in (lambda: ns.create(OBJECTS_LOG), lambda: ns.create_database(OBJECTS_LOG)):
            with pytest.raises(InvalidArgument, match="index of objects; choose another"):
                await making()


@pytest.mark.parametrize("purpose", [Purpose.MACHINE, Purpose.DATABASE])
async def test_a_bookie_refuses_to_delete_the_head_of_a_log_as_a_stream(tmp_path: Path, purpose: Purpose) -> None:
    properties = {"buckram": "database"} if purpose is Purpose.DATABASE else {}
    head = Head("a" * 16, 1, snapshots=(), properties=properties)

    async def opened() -> TreeStore:
        store = TreeStore(SqliteKeys(tmp_path / "metadata"), "sqlite:test", random.Random(1))
        await store.initialise()
        return store

    served, direct = ServedMetadata(opened), await opened()
    await served.start()
    try:
        keys = await served.open()
        key = f"{direct.own}/streams/heads/shop/log"
        await direct.keys.create(key, encode_head(head))
        begun = replace(head, deleting=True, epoch=1)
        spaced = encode_head(begun).replace(b'"deleting":true', b'"deleting": true')
        refused: list[list[KeyOp]] = [
            [Delete(key, 0)],
            [SetValue(key, encode_head(begun), 0)],
            [SetValue(key, spaced, 0)],
            [SetValue(key, encode_head(replace(begun, deleted_for="objects")), 0)],
            [SetValue(key, encode_head(replace(begun, snapshots=None)), 0)],
            [SetValue(key, encode_head(replace(head, epoch=1)), 0), Delete(key, 1)],
        ]
        for ops in refused:
            with pytest.raises(AccessRefused, match="is the log of a"):
                await keys.multi(ops)
        with pytest.raises(AccessRefused, match="is the log of a"):
            await keys.delete(key, 0)
        assert decode_head(key, (await direct.keys.get(key)).value) == head
        await keys.set(key, encode_head(replace(begun, deleted_for=purpose.value)), 0)
        await keys.delete(key, 1)
        with pytest.raises(BuckramError):
            await direct.keys.get(key)
    finally:
        await served.close()
        await direct.close()
