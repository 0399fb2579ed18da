"""What tests of forks share: a stream with three sealed segments, its fork, and what there is of ledgers and files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from buckram.cluster import Client
from buckram.core.streams.names import StreamName
from buckram.core.streams.records.batch import Record
from buckram.errors import NoSuchKey
from buckram.namespace import Namespace
from buckram.seams import KeyStore
from buckram.streams.maintain.janitor import Janitor, JanitorSettings
from buckram.streams.maintain.janitor_report import JanitorReport
from buckram.streams.shared.metadata import StreamStore
from buckram.types import KeyOp

NAME, FORK = StreamName("shop", "s"), StreamName("shop", "f")


async def clean(client: Client) -> JanitorReport:
    report = await Janitor(client, JanitorSettings(grace_s=0, retired_s=0, bulk_age_s=0)).clean()
    assert report.problems == []
    return report


async def records(ns: Namespace, stream: str) -> list[Record]:
    return [record async for record in ns.read(stream)]


async def ledgers(client: Client) -> set[int]:
    return {ledger async for ledger in client.list()}


async def listed(ns: Namespace, *streams: str) -> set[int]:
    return {row.ledger for stream in streams for row in [row async for row in ns.segments(stream)]}


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def three_and_open(ns: Namespace, **policy: object) -> None:
    """Three sealed segments of ten records each, in entries of five."""
    await ns.create("s", ensemble="3/3/2", **policy)
    for number in range(3):
        async with ns.writer("s") as writer:
            for half in range(2):
                await writer.append_many([b"%d" % (number * 10 + half * 5 + place) for place in range(5)])


class Killed(BaseException):
    """A process ends here."""


class DyingKeys:
    """A key store whose process ends before its change number `left`."""

    def __init__(self, keys: KeyStore, left: int) -> None:
        self._keys, self.left = keys, left
        self.get, self.children, self.sync = keys.get, keys.children, keys.sync

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        self._count()
        await self._keys.multi(ops)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        self._count()
        return await self._keys.create(key, value, ephemeral=ephemeral)

    async def set(self, key: str, value: bytes, version: int) -> int:
        self._count()
        return await self._keys.set(key, value, version)

    async def delete(self, key: str, version: int) -> None:
        self._count()
        await self._keys.delete(key, version)


class DyingStreams(StreamStore):
    """Metadata of streams on such a key store. Ledgers are made and deleted all the same."""

    def __init__(self, client: Client, left: int) -> None:
        super().__init__(client.services.store)
        self.dying = DyingKeys(client.services.store.keys, left)

    @property
    def keys(self) -> KeyStore:
        return cast("KeyStore", self.dying)


async def end_leases(ns: Namespace) -> None:
    """End the session of whoever made a fork: the process was killed."""
    streams, keys = ns.store, ns.store.keys
    for uid in await keys.children(streams.layout.all_data):
        with suppress(NoSuchKey):
            await keys.delete(streams.layout.lease(uid), (await keys.get(streams.layout.lease(uid))).version)
