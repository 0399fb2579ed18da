"""Contents of the cluster, read through the public client. They are judged elsewhere; copies are read in `copies`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

from buckram.client.maintain.placement import misplaced
from buckram.cluster import Client
from buckram.errors import NoSuchLedger
from buckram.healing.overview import Overview, overview
from buckram.types import BookieId, LedgerId, LedgerMetadata
from chaos.actors.ledgers import PLACEMENT
from chaos.actors.stage import MARK, STREAMS
from chaos.payloads import entry_payload, producer_of
from chaos.verdict.bank import DatabaseEnd
from chaos.verdict.database import read_database

AT_ONCE = 8
"""Ledgers that are read at the same time."""


@dataclass
class LedgerState:
    """A ledger after it was recovered and read whole. `wrong`: what of it is not as it was written."""

    ledger: LedgerId
    metadata: LedgerMetadata
    last: int
    length: int
    wrong: list[str] = field(default_factory=list)
    total: int = 0
    """Bytes of all its payloads."""
    entries: int = 0
    """Number of entries that were read from its beginning to its end."""


@dataclass
class StreamState:
    """The records of a stream in order: producer and sequence, and each value."""

    stream: str
    records: list[tuple[str, int]] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    segments: list[tuple[int, int, bool]] = field(default_factory=list)
    """Base and end of each segment, and whether it is sealed."""

    def digest(self, first: int, stop: int) -> str:
        """Return the digest that a reader records for a batch."""
        whole = hashlib.blake2b(digest_size=8)
        for value in self.values[first:stop]:
            whole.update(value)
        return whole.hexdigest()


@dataclass
class State:
    """All of it. `misplaced`: ledgers with an enforced placement that is not met, in sentences."""

    ledgers: dict[LedgerId, LedgerState] = field(default_factory=dict)
    streams: dict[str, StreamState] = field(default_factory=dict)
    misplaced: list[str] = field(default_factory=list)
    database: DatabaseEnd | None = None

    def count(self) -> int:
        """Return the number of ledgers, streams and databases that were read."""
        return len(self.ledgers) + len(self.streams) + (self.database is not None)


async def lacking(client: Client, lost: Collection[BookieId]) -> tuple[Overview, list[LedgerId]]:
    """Return the overview of autorecovery, and the ledgers whose metadata name a lost bookie."""
    found = await overview(client.services.store)
    naming = list[LedgerId]()

    async def look(ledger: LedgerId) -> None:
        try:
            metadata = await client.metadata(ledger)
        except NoSuchLedger:
            return
        if any(bookie in lost for fragment in metadata.fragments for bookie in fragment.ensemble):
            naming.append(ledger)

    await for_each([ledger async for ledger in client.list()], look)
    return found, naming


async def for_each(ledgers: Iterable[LedgerId], work: Callable[[LedgerId], Awaitable[None]]) -> None:
    """Do this for all ledgers, several at a time. The first error ends it."""
    left = iter(ledgers)

    async def take() -> None:
        for ledger in left:
            await work(ledger)

    takers = [asyncio.ensure_future(take()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*takers)
    finally:
        for taker in takers:
            taker.cancel()
        await asyncio.gather(*takers, return_exceptions=True)


async def read_state(client: Client, state: State) -> None:
    """Recover and read everything that is not in `state` yet. Raises what the client raises: nothing may be unreadable
    by now. After an error it can be called again, and goes on where it was."""
    for stream in STREAMS:
        if stream not in state.streams and await client.namespace().exists(stream):
            state.streams[stream] = await _read_stream(client, stream)
    if state.database is None:
        state.database = await read_database(client)

    async def read(ledger: LedgerId) -> None:
        if ledger not in state.ledgers and MARK in (await client.metadata(ledger)).custom_metadata:
            state.ledgers[ledger] = await _read_ledger(client, ledger)

    await for_each([ledger async for ledger in client.list()], read)
    state.misplaced.clear()
    async for one in misplaced(client.services):
        if PLACEMENT in str(one.policy):
            state.misplaced.append(f"ledger {one.ledger_id}: {one.fragments}")


async def _read_ledger(client: Client, ledger: LedgerId) -> LedgerState:
    async with client.recover(ledger) as reader:
        found = LedgerState(ledger, reader.metadata, reader.last_confirmed, reader.length or 0)
        following = total = 0
        async for payloads in reader.payload_chunks():
            for payload in payloads:
                if payload != entry_payload(ledger, following):
                    found.wrong.append(f"entry {following} is {payload[:60]!r}")
                total += len(payload)
                following += 1
        found.total, found.entries = total, following
        return found


async def _read_stream(client: Client, stream: str) -> StreamState:
    # Whoever opens it as a writer seals what a killed writer left; then everything is readable.
    async with client.namespace().writer(stream, takeover=True, name="verdict"):
        pass
    found = StreamState(stream)
    async for segment in client.namespace().segments(stream):
        found.segments.append((segment.base, segment.end, segment.sealed))
    async for record in client.namespace().read(stream):
        value = bytes(record.value or b"")
        if record.offset != len(found.records):
            found.wrong.append(f"offset {record.offset} where {len(found.records)} was expected")
        try:
            found.records.append(producer_of(value))
        except ValueError as error:
            found.wrong.append(f"offset {record.offset}: {error}")
            found.records.append(("", -1))
        found.values.append(value)
    return found
