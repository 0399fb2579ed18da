"""Whose turn it is among very many notes, and how little is read for it."""

from __future__ import annotations

import asyncio

from tests.support.bookie_kit import memory_metadata
from tests.support.polling import eventually

from buckram.healing.auditing.absence_checks import AWAY_AT_ONCE, NoteQueue
from buckram.metadata.records.incomplete_copies import noted_members
from buckram.metadata.tree.store import TreeStore

MANY = 3 * AWAY_AT_ONCE + 7


async def store_with(notes: int, bookie: str = "away:1") -> TreeStore:
    store = await memory_metadata()
    for ledger in range(notes):
        await store.keys.create(f"{store.own}/healing/behind/{ledger:019d}@{bookie}", b"")
    return store


def queue(store: TreeStore, *, least_s: float = 0.0, most_s: float = 3600.0) -> tuple[NoteQueue, asyncio.Event]:
    woken = asyncio.Event()
    return NoteQueue(store, woken.set, least_s=least_s, most_s=most_s), woken


async def test_of_bookies_that_are_away_a_part_is_looked_at_and_all_in_turn() -> None:
    notes, _ = queue(await store_with(MANY))
    await notes.refresh()
    turns = [notes.due({"here:1": "s"}) for _ in range(4)]
    assert max(map(len, turns)) == AWAY_AT_ONCE
    assert len({note for turn in turns for note in turn}) == MANY


async def test_a_bookie_that_is_back_has_all_of_its_turns_at_once_and_then_with_pauses() -> None:
    notes, _ = queue(await store_with(MANY, "b:1"), least_s=1000.0)
    await notes.refresh()
    turn = notes.due({"b:1": "first"})
    assert len(turn) == MANY
    for note in turn[:-1]:
        notes.unsettled(note, "first")
    notes.settled(turn[-1])
    assert notes.due({"b:1": "first"}) == []
    assert len(notes.due({"b:1": "second"})) == MANY - 1
    assert len(notes) == MANY - 1


async def test_it_is_listed_anew_when_a_note_came_and_not_else() -> None:
    store = await store_with(2)
    notes, woken = queue(store)
    await notes.refresh()
    listings = 0

    children = store.keys.children

    async def counted(*arguments: object, **options: object) -> list[str]:
        nonlocal listings
        listings += 1
        return await children(*arguments, **options)  # type: ignore[arg-type]

    store.keys.children = counted  # type: ignore[method-assign]
    await notes.refresh()
    assert (listings, len(notes)) == (0, 2)
    await store.keys.create(f"{store.own}/healing/behind/{9:019d}@new:1", b"")
    await woken.wait()

    async def listed() -> bool:  # no more than a small share of the time
        await notes.refresh()
        return len(notes) == 3

    await eventually(listed, "the new one is known")
    assert listings == 2
    assert (9, "new:1") in await noted_members(store)
