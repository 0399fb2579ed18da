"""One look at a cluster's health. It needs no client, because a store that was restored or went back has none.

Not here: asking bookies (`health/bookie_reports.py`), reading streams (`health/stream_facts.py`), and what a long look
finds (`healing/cleanup.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast

from buckram.client.cluster.bookies import BookieWatcher
from buckram.client.cluster.store_history import unguarded
from buckram.config import ClientConfig, NetConfig, load
from buckram.core.cluster.store_history import why_not_accepted
from buckram.core.healing.operator_requests import NOTHING
from buckram.core.health.facts import BookieFacts, Facts, HealingFacts, LackingLedger, Noted, Suspect
from buckram.core.health.findings import Finding, findings, healthy
from buckram.core.ledgers.quorum import Quorum
from buckram.errors import (
    AccessRefused,
    BuckramError,
    ClusterNotInitialised,
    KeyExists,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    VersionConflict,
)
from buckram.healing.overview import Overview, overview
from buckram.health.bookie_reports import Asking, ClockReadings
from buckram.health.stream_facts import StreamsLook
from buckram.metadata.maintain.acceptance import Suspect as Doubting
from buckram.metadata.maintain.acceptance import suspects
from buckram.metadata.maintain.checkup import examine_members
from buckram.metadata.records.operator_requests import read_wishes
from buckram.metadata.tree.layout import HEALTH
from buckram.metadata.tree.store import TreeStore
from buckram.seams import Runtime
from buckram.types import BookieId, BookieSet, History

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient

T = TypeVar("T")
METADATA_S = 15.0
"""Deadline for opening the metadata store, and for each part of a look, seconds."""
_SHAPE = Quorum(3, 3, 2)
"""Quorum for which the placement has to suffice: the one that most ledgers are made with."""
_LATE = "no answer within {:g} s"
PROBE_S = 10.0
"""Interval at which one gatherer writes to the metadata store, to see whether it takes changes, seconds."""


@dataclass(frozen=True, slots=True)
class Health:
    """A cluster at one moment: the facts, and the list that is made of them."""

    facts: Facts
    findings: tuple[Finding, ...]
    healing: Overview | None = None
    """Overview of autorecovery; None if it could not be read."""

    @property
    def healthy(self) -> bool:
        """Return whether none of the findings is an error."""
        return healthy(self.findings)

    def with_noted(self, noted: tuple[Noted, ...]) -> Health:
        """Return the same health with findings of a longer look added."""
        facts = replace(self.facts, noted=(*self.facts.noted, *noted))
        return replace(self, facts=facts, findings=findings(facts))


def unreachable(uri: str, error: BaseException) -> Health:
    """Return the health of a cluster whose metadata store cannot be opened."""
    facts = Facts(uri=uri, unreachable=str(error), accepted=None)
    return Health(facts, findings(facts))


def refused(uri: str, error: BaseException) -> Health:
    """Return the health of a cluster whose metadata store refuses the credentials."""
    facts = Facts(uri=uri, accepted=None, noted=(Noted("metadata-refused", uri, str(error)),))
    return Health(facts, findings(facts))


async def opened(opening: Awaitable[TreeStore]) -> TreeStore:
    """Return the store, opened before the deadline. Raises MetadataUnavailable."""
    try:
        async with asyncio.timeout(METADATA_S):
            return await opening
    except TimeoutError:
        raise MetadataUnavailable(_LATE.format(METADATA_S)) from None


class Gatherer:
    """Looks as often as `look` is called, and keeps its connections to bookies. `close` it."""

    def __init__(self, store: TreeStore, runtime: Runtime, net: NetConfig | None = None) -> None:
        self._store, self._runtime = store, runtime
        self._asking = Asking(store, runtime, net or NetConfig())
        self._streams = StreamsLook(store)
        self._watcher: BookieWatcher | None = None
        """The watcher of registrations and topology; it tells which placements the bookies cannot give."""
        self._probed_at: float | None = None
        self._refusal = ""

    @classmethod
    def of(cls, client: LedgerClient) -> Gatherer:
        """Return a gatherer for a client's cluster, also if the client refuses the store."""
        services = client.services
        return cls(cast(TreeStore, unguarded(services.store)), services.runtime, services.net)

    @property
    def uri(self) -> str:
        return self._store.uri

    async def close(self) -> None:
        """End the connections to bookies; the store is the caller's."""
        await self._asking.close()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            await watcher.close()

    async def _shortages(self) -> tuple[tuple[str, str], ...]:
        if self._watcher is None:
            config: ClientConfig = load("client", environment=os.environ)[0]
            self._watcher = BookieWatcher(self._runtime, self._store, config)
            await self._watcher.start()
        else:
            await self._watcher.refresh()
        return tuple((one.level, str(one)) for one in self._watcher.shortages(_SHAPE))

    async def look(self) -> Health:
        """Return the health of the cluster as it is now.

        Raises ClusterNotInitialised if there is none; LoginRequired or AccessRefused if every bookie refused to tell.
        """
        try:
            async with asyncio.timeout(METADATA_S):
                await self._store.instance_id()
        except ClusterNotInitialised:
            raise
        except TimeoutError:
            return unreachable(self.uri, MetadataUnavailable(_LATE.format(METADATA_S)))
        except AccessRefused as error:
            return refused(self.uri, error)
        except MetadataUnavailable as error:
            return unreachable(self.uri, error)
        return await self._looked()

    async def about(self, bookie: BookieId) -> Facts:
        """Return the facts that decide whether a bookie that is not registered may be taken out: the history of the
        store, the bookies that do not believe it, and whether a process answers for the bookie.

        One that an operator had taken out of the cluster, by a command that was interrupted before the bookie was
        forgotten, counts as gone: its process makes no registration any more. Raises MetadataError if they could not be
        read.
        """
        try:
            async with asyncio.timeout(METADATA_S):
                history, doubted = await self._store.history(), await suspects(self._store)
                state = (await self._store.bookies()).state_of(bookie)
                wish = (await read_wishes(self._store)).get(bookie, NOTHING)
        except TimeoutError:
            raise MetadataUnavailable(_LATE.format(METADATA_S)) from None
        addresses = {one.bookie_id: one.address for one in doubted if one.bookie_id == bookie}
        found: tuple[BookieFacts, ...] = (BookieFacts(bookie, state),)
        if state == "down":
            found = await self._asking.ask(
                BookieSet({}, {}), [bookie], {}, addresses, ClockReadings(self._runtime.clock)
            )
        if wish.out:
            found = tuple(replace(one, answers=False) for one in found)
        return Facts(
            uri=self.uri,
            accepted=history.accepted,
            moved=_moved(history),
            suspects=_suspects(doubted),
            bookies=found,
        )

    async def _looked(self) -> Health:
        missed: list[tuple[str, str]] = []
        history = await self._part("metadata history", self._store.history(), missed)
        doubted = await self._part("bookies that doubt the store", suspects(self._store), missed) or []
        refusal = await self._probe() if history is not None and history.accepted else ""
        clocks = ClockReadings(self._runtime.clock)
        bookies = await self._part(
            "bookies", self._bookies(clocks, {one.bookie_id: one.address for one in doubted}), missed
        )
        if bookies and (refused := bookies[0].refused) is not None and all(one.refused for one in bookies):
            raise refused  # nothing is known of any of them, and nothing is wrong with them
        now_us = clocks.now()
        found = await self._part("autorecovery", overview(self._store, now_us // 1000), missed)
        members = await self._part("records of bookies", examine_members(self._store), missed)
        shortages = await self._part("placement", self._shortages(), missed)
        streams = await self._streams.look(missed)
        facts = Facts(
            now_us=now_us,
            uri=self.uri,
            refusal=refusal,
            accepted=None if history is None else history.accepted,
            moved=_moved(history),
            suspects=_suspects(doubted),
            bookies=bookies or (),
            healing=None if found is None else healing_facts(found),
            shortages=shortages or (),
            clock_doubt=clocks.doubt(),
            namespaces=tuple(streams.namespaces),
            cursors=tuple(streams.cursors),
            queries=tuple(streams.queries),
            mirrors=tuple(streams.mirrors),
            backups=tuple(streams.backups),
            foreign=tuple(streams.foreign),
            noted=(*(() if members is None else members.problems), *(_shortfalls(found) if found and bookies else ())),
            not_asked=tuple(missed),
        )
        return Health(facts, findings(facts), found)

    async def _part(self, what: str, work: Awaitable[T], missed: list[tuple[str, str]]) -> T | None:
        """Return the result of one part of the look; None if it failed or was late, which is added to `missed`."""
        try:
            async with asyncio.timeout(METADATA_S):
                return await work
        except TimeoutError:
            missed.append((what, _LATE.format(METADATA_S)))
        except BuckramError as error:
            missed.append((what, str(error)))
        return None

    async def _bookies(self, clocks: ClockReadings, doubting: dict[str, str]) -> tuple[BookieFacts, ...]:
        registered, known = await self._store.bookies(), await self._store.known_bookies()
        wishes = await read_wishes(self._store)
        asked = {bookie: wish.asked for bookie, wish in wishes.items()}
        return await self._asking.ask(registered, known, asked, doubting, clocks)

    async def _probe(self) -> str:
        """Return why the metadata store takes no changes; empty if it takes them, or if these credentials may only
        read.
        """
        now = asyncio.get_running_loop().time()
        if self._probed_at is None or now - self._probed_at >= PROBE_S or self._refusal:
            self._probed_at, self._refusal = now, ""
            try:
                async with asyncio.timeout(METADATA_S):
                    await self._write()
            except (KeyExists, VersionConflict, NoSuchKey):
                pass  # somebody else has changed it at this moment
            except AccessRefused:
                pass  # these credentials may only read
            except MetadataError as error:
                self._refusal = str(error)
            except TimeoutError:
                self._refusal = f"a change was not made within {METADATA_S:g} s"
        return self._refusal

    async def _write(self) -> None:
        key = f"{self._store.own}/{HEALTH}/probe"
        with suppress(NoSuchKey):
            found = await self._store.keys.get(key)
            await self._store.keys.set(key, b"", found.version)
            return
        await self._store.keys.create(key, b"")


def _shortfalls(found: Overview) -> list[Noted]:
    """Return the reasons why it cannot be said that all copies are there (`core/healing/status.py`)."""
    return [
        Noted(one.state, one.where, one.why, bookie="" if one.where == "cluster" else one.where)
        for one in found.shortfalls
    ]


def healing_facts(found: Overview) -> HealingFacts:
    """Return an overview of autorecovery as facts."""
    queue = (LackingLedger(one.ledger, one.state, one.why, one.age_s, one.unreadable) for one in found.queue)
    return HealingFacts(found.enabled, found.auditor, found.brake, tuple(queue), found.misplaced or 0)


def _suspects(doubted: Iterable[Doubting]) -> tuple[Suspect, ...]:
    return tuple(Suspect(one.bookie_id, one.address, one.why) for one in doubted)


def _moved(history: History | None) -> str:
    return why_not_accepted(history) if history is not None and history.moved and not history.accepted else ""
