"""Cursors are listed in pages, and the lowest cursor of all pages is the bound for retention."""

from __future__ import annotations

import pytest
from tests.streams.read.test_cursors import cursor_of, fill

from buckram.cluster import Client
from buckram.core.streams.names import stream_name
from buckram.namespace import Namespace
from buckram.streams.read import cursors


@pytest.mark.parametrize("offsets", [[5, 1, 9, 8, 7], [1, 5, 9], [9, 8, 3, 4], [6]])
async def test_the_lowest_cursor_of_all_pages_counts(
    ns: Namespace, client: Client, monkeypatch: pytest.MonkeyPatch, offsets: list[int]
) -> None:
    monkeypatch.setattr(cursors, "_PAGE", 2)
    await fill(ns, "s")
    for number, offset in enumerate(offsets):
        await cursor_of(client, ns, "s", f"c{number}").move(offset)
    head = (await ns.store.read(stream_name("s", ns.name))).head
    assert await cursors.lowest_cursor(ns.store, head) == min(offsets)


async def test_a_page_of_cursors_deleted_meanwhile_is_not_the_last(
    ns: Namespace, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "_PAGE", 2)
    await fill(ns, "s")
    for number in range(4):
        await cursor_of(client, ns, "s", f"c{number}").move(number + 2)
    get, gone = cursors._get, [f"c{number}" for number in range(2)]

    async def after_deletion(streams: object, key: str) -> object:
        while gone:
            await cursor_of(client, ns, "s", gone.pop()).delete()
        return await get(streams, key)  # type: ignore[arg-type]  # It passes its arguments on.

    monkeypatch.setattr(cursors, "_get", after_deletion)
    head = (await ns.store.read(stream_name("s", ns.name))).head
    assert await cursors.lowest_cursor(ns.store, head) == 4
