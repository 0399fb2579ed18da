"""Entries that only clients with the key can read: ledgers, streams, rotation, keys that are missing or wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.bookie_kit import CONFIG, STORE, memory_metadata

from buckram import connect
from buckram.bookie.process import Bookie
from buckram.client.shared.encryption import EncryptionKeys
from buckram.cluster import Client
from buckram.config import ClientConfig, EncryptionConfig, NetConfig
from buckram.core.security.encryption import ENCRYPTION, OVERHEAD, Cipher, Key
from buckram.errors import ConfigError, EncryptionKeyMissing, EntryTooLarge
from buckram.metadata.maintain.backup import copy_of, write_file
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime

PLAIN = b"a text that nobody may find on a disk"
SHOP = {"buckram.namespace": b"shop"}


class Keys:
    """Files of keys, one for each namespace."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.config = EncryptionConfig(keys=str(folder / "{namespace}.keys"))

    def put(self, namespace: str, *secrets: bytes) -> list[str]:
        """Returns the ids."""
        path = self.folder / f"{namespace}.keys"
        path.touch(mode=0o600)
        path.write_text("# keys\n" + "".join(f"{secret.hex()}\n" for secret in secrets))
        return [Key.of(secret).key_id for secret in secrets]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TreeStore]:
    """The metadata of a bookie whose files are in tmp_path/bookie."""
    metadata = await memory_metadata()
    os.makedirs(tmp_path / "bookie")
    disk = LocalDisk(str(tmp_path / "bookie"), "inline")
    bookie = Bookie(production_runtime(), disk, metadata, CONFIG, STORE, NetConfig())
    await bookie.start()
    yield metadata
    await bookie.stop()
    await metadata.close()
    disk.close()


@asynccontextmanager
async def client_with(store: TreeStore, encryption: EncryptionConfig | None = None) -> AsyncIterator[Client]:
    async with connect(store, encryption=encryption or EncryptionConfig(), config=ClientConfig()) as client:
        yield client


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


async def test_a_bookies_files_hold_no_plain_text_and_every_way_of_reading_does(
    tmp_path: Path, store: TreeStore, keys: Keys
) -> None:
    (key_id,) = keys.put("shop", b"k" * 32)
    async with client_with(store, keys.config) as client:
        async with client.create(ensemble=1, custom_metadata=SHOP) as writer:
            first = await writer.append(PLAIN)
            await writer.append_many([PLAIN + b"%d" % number for number in range(200)])
            await writer.append_nowait(b"")
        assert writer.metadata.custom_metadata[ENCRYPTION] == key_id.encode()
        async with client.open(writer.ledger_id) as reader:
            wanted = [PLAIN, *(PLAIN + b"%d" % number for number in range(200)), b""]
            assert first == 0
            assert await reader.read_payloads(0, 201) == wanted
            assert [entry.payload for entry in await reader.read(0, 201)] == wanted
            assert (await reader.get(7)).payload == wanted[7]
            assert [entry.payload async for entry in reader.entries()] == wanted
            assert [entry.payload async for entry in reader.tail()] == wanted
            assert reader.length == sum(map(len, wanted)) + 202 * OVERHEAD
        async with client.create(ensemble=1) as other:
            await other.append(b"of a namespace without a key")
        async with client.open(other.ledger_id) as reader:
            assert await reader.read_payloads(0, 0) == [b"of a namespace without a key"]
    found = on_disk(tmp_path / "bookie")
    assert b"of a namespace without a key" in found
    assert PLAIN not in found


async def test_streams_keep_their_offsets_and_are_encrypted_as_a_whole(
    tmp_path: Path, store: TreeStore, keys: Keys
) -> None:
    keys.put("shop", b"k" * 32)
    async with client_with(store, keys.config) as client:
        await client.namespaces.create("shop", ensemble="1/1/1", encryption="required")
        shop = client.namespace("shop")
        for begin in (0, 100):  # the second writer takes over, which reads what the first one wrote
            async with shop.writer("orders") as writer:
                for number in range(begin, begin + 100):
                    offset = await writer.append(
                        PLAIN + b"%d" % number, key=b"secret-key", producer="p", sequence=number
                    )
                assert offset == begin + 99
        assert (await shop.get("orders", 150)).value == PLAIN + b"150"
        async with shop.read("orders") as reader:
            assert [record.value async for record in reader] == [PLAIN + b"%d" % number for number in range(200)]
    found = on_disk(tmp_path / "bookie")
    assert PLAIN not in found
    assert b"secret-key" not in found
    async with client_with(store) as stranger:
        with pytest.raises(EncryptionKeyMissing):
            await stranger.namespace("shop").get("orders", 150)
        with pytest.raises(ConfigError, match="namespace shop is written encrypted"):
            async with stranger.namespace("shop").writer("another") as writer:
                await writer.append(b"plain")


async def test_a_new_key_is_for_new_ledgers_and_the_old_one_stays_for_old_ones(store: TreeStore, keys: Keys) -> None:
    (old_id,) = keys.put("shop", b"o" * 32)
    async with client_with(store, keys.config) as client:
        async with client.create(ensemble=1, custom_metadata=SHOP) as old:
            await old.append(b"old")
        new_id, _ = keys.put("shop", b"n" * 32, b"o" * 32)
        async with client.create(ensemble=1, custom_metadata=SHOP) as new:
            await new.append(b"new")
        ids = [(await client.metadata(one.ledger_id)).custom_metadata[ENCRYPTION] for one in (old, new)]
        assert ids == [old_id.encode(), new_id.encode()]
        for writer, payload in ((old, b"old"), (new, b"new")):
            async with client.open(writer.ledger_id) as reader:
                assert await reader.read_payloads(0, 0) == [payload]
        keys.put("shop", b"n" * 32)
        with pytest.raises(
            EncryptionKeyMissing, match=f"encrypted with key {old_id}, and of its keys {new_id}"
        ) as gone:
            await client.open(old.ledger_id)
        assert (gone.value.namespace, gone.value.key_id, gone.value.known) == ("shop", old_id, (new_id,))


async def test_without_a_key_ledgers_are_recovered_copied_and_deleted_but_not_read(
    store: TreeStore, keys: Keys
) -> None:
    keys.put("shop", b"k" * 32)
    async with client_with(store, keys.config) as client, client_with(store) as stranger:
        writer = await client.create(ensemble=1, custom_metadata=SHOP)
        await writer.append(PLAIN)
        async with stranger.recover(writer.ledger_id) as reader:
            assert reader.last_confirmed == 0
            for attempt in (reader.get(0), reader.read(0, 0), reader.read_payloads(0, 0)):
                with pytest.raises(EncryptionKeyMissing, match="no key of it is here"):
                    await attempt
        async with client.open(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 0) == [PLAIN]
        assert not (await stranger.repair(writer.ledger_id)).problems
        await stranger.delete(writer.ledger_id)


async def test_an_entry_in_another_place_does_not_open(keys: Keys, store: TreeStore) -> None:
    key = Key.of(b"k" * 32)
    writer, reader = Cipher(key, b"b" * 16, b"start!"), Cipher(key, b"b" * 16)
    sealed = writer.seal(7, PLAIN)
    assert reader.open(7, sealed) == PLAIN
    assert reader.open(8, sealed) is None
    assert Cipher(key, b"c" * 16).open(7, sealed) is None
    assert Cipher(Key.of(b"x" * 32), b"b" * 16).open(7, sealed) is None
    assert reader.open(7, sealed[:-1] + bytes([sealed[-1] ^ 1])) is None
    assert reader.open(7, sealed[:20]) is None
    assert writer.seal(7, PLAIN) != sealed


async def test_entries_as_large_as_may_be(store: TreeStore, keys: Keys) -> None:
    keys.put("shop", b"k" * 32)
    async with client_with(store, keys.config) as client:
        async with client.create(ensemble=1, custom_metadata=SHOP) as writer:
            with pytest.raises(EntryTooLarge) as error:
                await writer.append(bytes(6 * 1024 * 1024))
            largest = error.value.limit
            payload = os.urandom(largest)
            await writer.append(payload)
        async with client.open(writer.ledger_id) as reader:
            assert (await reader.get(0)).payload == payload


async def test_keys_from_a_command(tmp_path: Path) -> None:
    script = tmp_path / "vault"
    script.write_text('#!/bin/sh\n[ "$1" = shop ] && cat "$2"\nexit 0\n')
    script.chmod(0o700)
    answer = tmp_path / "answer"
    answer.write_text(f"{'ab' * 32}\n")
    keys = EncryptionKeys(EncryptionConfig(command=f"{script} {{namespace}} {answer}"))
    found = await keys.current("shop")
    assert found == Key.of(b"\xab" * 32)
    assert await keys.current("other") is None
    answer.write_text("a secret that is no key\n")
    with pytest.raises(ConfigError) as error:
        await asyncio.to_thread(keys.load, "shop", anew=True)
    assert "a secret" not in str(error.value)
    late = EncryptionKeys(EncryptionConfig(command=f"{script} {{namespace}} {answer}"))
    answer.write_text("")
    with pytest.raises(ConfigError, match="this process has no key of it"):
        await late.sealing(SHOP, required=True)
    answer.write_text(f"{'ab' * 32}\n")
    assert (await late.sealing(SHOP, required=True)).key == found, "it is asked again"
    for command, why in (("/nowhere/vault {namespace}", "No such file"), ("false {namespace}", "exit code 1")):
        with pytest.raises(ConfigError, match=why):
            await EncryptionKeys(EncryptionConfig(command=command)).current("shop")


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("", 0o600, "0 keys"),
        ("abc\n", 0o600, "line 1 is no key"),
        (f"{'ab' * 32}\nnonsense\n", 0o600, "line 2 is no key"),
        (f"{'ab' * 32}\n", 0o644, "others can read this key"),
    ],
)
async def test_files_that_do_not_do(keys: Keys, text: str, mode: int, why: str) -> None:
    path = keys.folder / "shop.keys"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=why) as error:
        await EncryptionKeys(keys.config).current("shop")
    assert "ab" * 32 not in str(error.value)
    assert "nonsense" not in str(error.value)


async def test_settings_without_a_place_for_the_namespace_are_refused_and_names_are_no_paths(keys: Keys) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        EncryptionKeys(EncryptionConfig(keys="/etc/keys"))
    keys.put("shop", b"k" * 32)
    found = EncryptionKeys(EncryptionConfig(keys=str(keys.folder / "x" / "{namespace}.keys")))
    assert await found.current("../shop") is None
    assert "k" * 32 not in repr(Key.of(b"k" * 32))
    assert (b"k" * 32).hex() not in repr(Key.of(b"k" * 32))


class Notes:
    """A machine that keeps what it is told."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def apply(self, command: str) -> int:
        self.kept.append(command)
        return len(self.kept)

    def snapshot(self) -> bytes:
        return "\n".join(self.kept).encode()

    def restore(self, data: bytes) -> None:
        self.kept = data.decode().split("\n")


async def filled(client: Client, namespace: str, secret: str) -> None:
    """Keep `secret` in every way there is, each with a snapshot where it has such."""
    space = client.namespace(namespace)
    async with space.writer("records") as writer:
        await writer.append(secret.encode(), key=secret.encode(), headers={"note": secret.encode()})
    async with client.objects(namespace) as objects:
        await objects.put(f"{secret}.txt", secret.encode(), metadata={"about": secret})
        await objects.put("large", secret.encode() * 100_000)
    async with space.machine("notes", Notes) as machine:
        await machine.lead()
        await machine.execute(secret)
        await machine.snapshot()
    async with space.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE t (a TEXT)")
        await db.execute("INSERT INTO t VALUES (?)", [secret])
        await db.snapshot()


async def test_objects_machines_databases_and_backups_of_the_cluster_hold_no_plain_text(
    tmp_path: Path, store: TreeStore, keys: Keys
) -> None:
    """But a database that somebody writes into a file, with the key, is a file of SQLite's for anybody."""
    keys.put("shop", b"k" * 32)
    secret, public = "only-for-who-has-the-key", "everybody-may-know-this"
    async with client_with(store, keys.config) as client:
        await client.namespaces.create("shop", ensemble="1/1/1", encryption="required")
        await client.namespaces.create("open", ensemble="1/1/1")
        await filled(client, "shop", secret)
        await filled(client, "open", public)
        await client.namespace("shop").backup_database("main", str(tmp_path / "main.db"))
        write_file(tmp_path / "bookie" / "backup-of-the-metadata", await copy_of(store))
    found = on_disk(tmp_path / "bookie")
    assert found.count(public.encode()) > 6
    assert secret.encode() not in found
    assert secret.encode() in (tmp_path / "main.db").read_bytes()
