"""Deleting a stream: first nobody can use it any more, then its writer is fenced, then everything goes, the head last.

May be stopped anywhere; asking again (or the janitor) goes on. Only records of the open segment can still be
acknowledged, so its ledger is recovered before anything is deleted. What no list names is never acknowledged.
"""

from __future__ import annotations

from buckram.client.client import Client
from buckram.core.streams.changes import deleted
from buckram.core.streams.head import PAGE_SEGMENTS, Head
from buckram.core.streams.names import StreamName
from buckram.errors import KeyNotEmpty, NoSuchKey, NoSuchLedger, NoSuchStream, RecoveryFailed, VersionConflict
from buckram.seams import KeyStore
from buckram.streams.shared.ledgers import discard, drop_ledger, intents
from buckram.streams.shared.metadata import StreamStore

_PAGE = 1000


async def delete_stream(
    client: Client, streams: StreamStore, name: StreamName, *, uid: str | None = None, force: bool = False
) -> None:
    """NoSuchStream if there is none; RecoveryFailed when its writer could not be fenced, unless `force`.

    `uid`: only this incarnation of the name.
    """
    head = await streams.change(name, deleted, uid=uid)
    if not force:
        await _fence(client, name, head)
    await _drop_ledgers(client, streams, head)
    await _drop_keys(streams, head)
    while True:
        try:
            at = await streams.read(name)
        except NoSuchStream:
            return
        if at.head.uid != head.uid:
            return
        try:
            await streams.remove(name, at.version)
            return
        except (NoSuchKey, VersionConflict):
            continue


async def _fence(client: Client, name: StreamName, head: Head) -> None:
    """After this nothing more of the stream is acknowledged."""
    row = head.open_segment
    if row is None:
        return
    try:
        async with client.recover(row.ledger):
            return
    except NoSuchLedger:
        return  # deleted by an earlier try, after it was fenced
    except RecoveryFailed as error:
        raise RecoveryFailed(
            row.ledger,
            f"stream {name} is marked as deleted and nothing of it was deleted yet, because its writer could not be "
            f"fenced and may still get acknowledgements: {error}. Delete it again when the bookies are back (the "
            "janitor does, too), or with force=True (--force) if they never come back",
        ) from error


async def drop_leftovers(client: Client, streams: StreamStore, uid: str) -> None:
    """What late requests left below a stream that is gone: intents, their ledgers, keys."""
    head = Head(uid, 0)
    await _drop_ledgers(client, streams, head)
    await _drop_keys(streams, head)


async def _drop_ledgers(client: Client, streams: StreamStore, head: Head) -> None:
    async for row in streams.segments(head):
        await drop_ledger(client, row.ledger)
    for ledger in (*head.garbage, *([head.table.ledger] if head.table is not None else ())):
        await drop_ledger(client, ledger)
    while found := await intents(streams, head.uid, limit=_PAGE):
        for intent in found:
            await discard(client, streams, head.uid, intent)


async def _drop_keys(streams: StreamStore, head: Head) -> None:
    keys, layout = streams.keys, streams.layout
    for number in range(head.first // PAGE_SEGMENTS, head.paged // PAGE_SEGMENTS):
        await _drop(keys, layout.page(head.uid, number))
    for parent in (layout.cursors(head.uid), layout.intents(head.uid), f"{layout.data(head.uid)}/pages"):
        while names := await keys.children(parent, limit=_PAGE):
            for child in names:
                await _drop(keys, f"{parent}/{child}")
        await _drop(keys, parent)
    await _drop(keys, layout.lease(head.uid))
    await _drop(keys, layout.data(head.uid))


async def _drop(keys: KeyStore, key: str) -> None:
    """Whatever its version; a key that somebody just put something under stays for the janitor."""
    while True:
        try:
            found = await keys.get(key)
            await keys.delete(key, found.version)
            return
        except VersionConflict:
            continue
        except (NoSuchKey, KeyNotEmpty):
            return
