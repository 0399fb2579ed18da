"""A bookie is taken out only where the table of health advises it: one gate for commands and gateways."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from tests.health.telling import telling
from tests.serve.gateway.kit import Api, serving

from buckram.cli.app import run
from buckram.cli.shared.exits import Exit
from buckram.client.cluster.store_history import unguarded
from buckram.cluster import connect
from buckram.healing.operations.dependency_check import OperationRefused
from buckram.health.removal_gate import check_removable, forget_bookie
from buckram.metadata.maintain.acceptance import accept
from buckram.metadata.maintain.backup import set_history
from buckram.metadata.records.operator_requests import change_wish
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import open_store
from buckram.testing import cluster


async def shown(api: Api, bookie: str) -> dict[str, Any]:
    found: dict[str, Any] = await api.value(f"GET /v2/bookies/{bookie}")
    return found


async def test_a_bookie_that_answers_is_taken_out_by_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    """It has lost its session, say; what it holds may be the newest there is."""
    async with cluster(bookies=1, metadata="sqlite") as running, running.client() as client, serving(client) as gateway:
        api = await Api.to(gateway.url)
        async with telling(client, "", registered=False) as bookie:
            said = f"bookie {bookie.name} is kept: it answers at {bookie.name} and is not registered"
            for words in (
                ("decommission", bookie.name),
                ("replace", bookie.name, "bookie-0"),
                ("forget", bookie.name),
                ("rejoin", bookie.name),
            ):
                code = await asyncio.to_thread(run, ["bookie", *words, "--metadata", running.uri])
                assert (code, said in capfd.readouterr().err) == (Exit.FAILED, True), words
            refused = await api.value(f"POST /v2/bookies/{bookie.name}/decommission", status=409)
            assert (refused["code"], said in refused["message"]) == ("REFUSED", True)
            found = await shown(api, bookie.name)
            assert (found["state"], found["may_be_decommissioned"]) == ("down", False)
            assert said in found["why_kept"]
            assert (await shown(api, "bookie-0"))["may_be_decommissioned"] is False, "it is registered"
            await bookie.kill()
            found = await shown(api, bookie.name)
            assert (found["may_be_decommissioned"], found["why_kept"]) == (True, "")
            assert await asyncio.to_thread(run, ["bookie", "forget", bookie.name, "--metadata", running.uri]) == 0
        await api.raw.close()


async def test_a_bookie_that_was_taken_out_may_answer() -> None:
    """A replacement took it out and was killed before it forgot it: given again, it ends."""
    async with (
        cluster(bookies=1) as running,
        running.client() as client,
        telling(client, "", registered=False) as bookie,
    ):
        store = unguarded(client.services.store)
        assert isinstance(store, TreeStore)
        with pytest.raises(OperationRefused, match="it answers"):
            await forget_bookie(client, bookie.name)
        await change_wish(store, bookie.name, lambda wish: replace(wish, out=True))
        before = await store.history()
        await set_history(store, replace(before, accepted=False))
        with pytest.raises(OperationRefused, match="accept-restore"):
            await check_removable(client, bookie.name)
        await set_history(store, before)
        await forget_bookie(client, bookie.name)
        assert bookie.name not in await store.known_bookies()


async def test_nothing_is_taken_out_before_a_restore_is_accepted() -> None:
    async with cluster(bookies=2, metadata="sqlite") as running, running.client() as client, serving(client) as gateway:
        api, store = await Api.to(gateway.url), await open_store(running.uri)
        assert isinstance(store, TreeStore)
        await running.stop(1)
        assert (await shown(api, "bookie-1"))["may_be_decommissioned"] is True
        await set_history(store, replace(await store.history(), accepted=False))
        refused = await api.value("POST /v2/bookies/bookie-1/decommission", status=409)
        assert "`buckram cluster accept-restore` comes first" in refused["message"]
        await accept(store, random.Random(1), ["bookie-1"])
        async with connect(running.uri) as later, serving(later) as another:
            again = await Api.to(another.url)
            assert (await shown(again, "bookie-1"))["may_be_decommissioned"] is True
            await again.raw.close()
        await api.raw.close()
        await store.close()
