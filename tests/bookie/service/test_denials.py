"""What a bookie says to whom it denies metadata: namespace and permission, no place in the store, no name of others."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.bookie.service.security.test_entry_access import AUTH, client_of, grant, prepared
from tests.support.secure_kit import Guarded, guarded

from buckram.cluster import Client
from buckram.core.security.namespace_rules import UNSEEN
from buckram.core.streams.metadata.head import Head, encode_head
from buckram.errors import AccessRefused
from buckram.types import Create, Delete, SetValue

PLACE = re.compile(r"/(buckram|ledgers)\b|\d{4}/|/heads/|/data/")


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through them the tests' user would be an administrator."""
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


@dataclass
class Shop:
    """Namespaces `shop` and `other`; eve may do everything in `other`."""

    running: Guarded
    eve: Client
    ledger: int
    record: str
    """The key of the ledger of stream shop/orders."""
    uid: str


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with guarded(tmp_path, auth=AUTH) as running:
        await prepared(running)
        await grant(running, "token:eve", "other", {"read", "append", "create", "delete"})
        async with client_of(running, "root", "admin") as admin, client_of(running, "eve") as eve:
            (segment,) = [one async for one in admin.namespace("shop").segments("orders")]
            uid = (await admin.namespace("shop").info("orders")).uid
            record = await running.store.ledgers.key(segment.ledger)
            yield Shop(running, eve, segment.ledger, record, uid)


async def told(work: Awaitable[object]) -> str:
    with pytest.raises(AccessRefused) as refused:
        await work
    assert "may not" in str(refused.value)
    assert not PLACE.search(str(refused.value)), refused.value
    return str(refused.value)


async def test_whose_a_ledger_is_learns_only_who_may_use_that(shop: Shop) -> None:
    keys = shop.eve.services.store.keys
    record = await shop.running.store.keys.get(shop.record)
    doings: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: keys.get(shop.record),
        lambda: keys.set(shop.record, record.value, record.version),
        lambda: keys.delete(shop.record, record.version),
        lambda: keys.multi([SetValue(shop.record, record.value, record.version)]),
        lambda: keys.multi([Delete(shop.record, record.version)]),
        lambda: keys.create(f"{shop.record}/{shop.uid}", b"other/orders"),
        lambda: shop.eve.metadata(shop.ledger),
    )
    for doing in doings:
        text = await told(doing())
        assert text.startswith(f"ledger {shop.ledger}: token:eve may not ")
        assert UNSEEN in text
        assert "shop" not in text
    await grant(shop.running, "token:eve", "shop/orders", {"append"})
    assert "no permission `read` on stream shop/orders" in await told(shop.eve.metadata(shop.ledger))


async def test_a_uid_of_another_is_as_one_that_is_not_there(shop: Shop) -> None:
    keys, data = shop.eve.services.store.keys, f"{shop.running.store.own}/streams/data"
    texts = set()
    for uid in (shop.uid, "f" * len(shop.uid)):
        for doing in (keys.get(f"{data}/{uid}/lease"), keys.children(f"{data}/{uid}/intents")):
            text = await told(doing)
            assert UNSEEN in text
            texts.add(re.sub(r"may not \w+ it", "", text))
    assert len(texts) == 1
    await grant(shop.running, "token:eve", "shop/orders", {"read"})
    await shop.eve.namespace("shop").info("orders")
    assert "no permission `append` on stream shop/orders" in await told(keys.create(f"{data}/{shop.uid}/lease", b""))


async def test_a_denial_names_namespace_and_permission(shop: Shop) -> None:
    keys, own = shop.eve.services.store.keys, shop.running.store.own
    head = encode_head(Head("e" * 32, 1))
    for doing, text in (
        (keys.get(f"{own}/streams/heads/shop/orders"), "no permission `read` on stream shop/orders"),
        (keys.get(f"{own}/streams/heads/absent/orders"), "no permission `read` on stream absent/orders"),
        (keys.create(f"{own}/streams/heads/shop/new", head), "no permission `create` on stream shop/new"),
        (keys.multi([Create(f"{own}/streams/heads/shop/new", head)]), "no permission `create` on stream shop/new"),
        (keys.get(f"{own}/streams/namespaces/shop"), "no permission `read` on namespace shop"),
        (keys.set(f"{own}/streams/namespaces/other", b"", 0), "no permission `admin` on namespace other"),
        (keys.get(f"{own}/tenants/quotas/shop"), "no permission `read` on namespace shop"),
        (keys.children(f"{own}/streams/heads/shop"), "no permission `read` on namespace shop"),
        (keys.get(f"{own}/wishes/b"), "it is for administrators"),
        (keys.children(shop.running.store.root), "it is for administrators"),
    ):
        found = await told(doing)
        assert text in found
        assert "access list changed" not in found  # it is no node's
    with pytest.raises(AccessRefused, match="read and written in the store itself only") as refused:
        await keys.get(f"{own}/security/signing")
    assert not PLACE.search(str(refused.value))


async def test_names_of_namespaces_are_shown_to_those_only_who_may_use_something_in_them(shop: Shop) -> None:
    keys, streams = shop.eve.services.store.keys, f"{shop.running.store.own}/streams"
    assert await shop.eve.namespaces.list() == ["other"]
    for folder in ("heads", "namespaces"):
        assert await keys.children(f"{streams}/{folder}") == ["other"], folder
        assert [name for name, _ in await keys.children_with_values(f"{streams}/{folder}")] == ["other"], folder
    await grant(shop.running, "token:eve", "shop/orders", {"read"})
    assert await shop.eve.namespaces.list() == ["other", "shop"]
    assert await shop.eve.namespace("shop").list() == ["orders"]


async def command(shop: Shop, *words: str) -> tuple[int, str]:
    """The exit code of a command that eve gives, and what it says."""
    told = {"BUCKRAM_METADATA": shop.running.service, "BUCKRAM_TOKEN": await shop.running.token("eve")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "buckram", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **told},
    )
    out, error = await process.communicate()
    assert process.returncode is not None
    return process.returncode, (out + error).decode()


async def test_commands_of_a_tenant_say_what_is_missing(shop: Shop) -> None:
    """With exit code 5."""
    ledger = str(shop.ledger)
    for words, text in (
        (("stream", "show", "shop/orders"), "no permission `read` on stream shop/orders"),
        (("stream", "delete", "shop/orders", "--yes"), "no permission `read` on stream shop/orders"),
        (("namespace", "show", "shop"), "no permission `read` on namespace shop"),
        (("namespace", "set", "other", "--set", "retention_s=60"), "no permission `admin` on namespace other"),
        (("ledger", "show", ledger), UNSEEN),
    ):
        code, said = await command(shop, *words)
        assert (code, text in said) == (5, True), (words, said)
        assert not PLACE.search(said.replace(shop.running.service, "")), (words, said)
        assert words[0] != "ledger" or "shop" not in said
    code, said = await command(shop, "namespace", "list")
    assert (code, "shop" in said, "other" in said) == (0, False, True)
