"""Asks every bookie, registered or not, for its report on itself, each with a deadline.

Not here: what the answers mean (`core/health/bookie_states.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from buckram.addresses import address_of_id
from buckram.config import NetConfig
from buckram.core.cluster.bookie_report import FILE_SYSTEM_FIGURE, BookieReport, parse_report
from buckram.core.cluster.wall_time import WallClocks
from buckram.core.health.facts import BookieFacts
from buckram.core.wire.introduction import (
    Expected,
    Identity,
    Introduction,
    expected_of,
)
from buckram.core.wire.messages import (
    DISK_STATE,
    FREE_DISK_SPACE,
    REPORT,
    TOTAL_DISK_CAPACITY,
    BookieInfoReply,
    GetBookieInfo,
)
from buckram.errors import AccessRefused, BuckramError, Code, LoginRequired, MalformedRecord
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.net.introductions import Introductions
from buckram.runtime.net.pool import BookiePool
from buckram.seams import Clock, Runtime
from buckram.types import BookieAddress, BookieId, BookieInfo, BookieSet

ASK_S = 5.0
"""Deadline for the answer of a bookie, seconds."""
AT_ONCE = 64
_EVERYTHING = GetBookieInfo(TOTAL_DISK_CAPACITY | FREE_DISK_SPACE | DISK_STATE | REPORT)


class ClockReadings:
    """Our own clock, compared with those of the bookies that answer in one look."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._known = clock, WallClocks()

    def heard(self, bookie: BookieId, wall_us: int) -> int:
        """Record the time that a bookie has just reported. Return how far its clock is ahead of ours."""
        own = self._clock.wall_us()
        self._known.observe(bookie, wall_us, self._mono(), own)
        return wall_us - own

    def now(self) -> int:
        """Return the wall clock time: ours, or the median of the bookies if the two are far apart."""
        return self._known.best(self._clock.wall_us(), self._mono())

    def doubt(self) -> str:
        """Return why our own clock is in doubt; empty if nothing speaks against it."""
        reading = self._known.reading(self._clock.wall_us(), self._mono())
        return str(reading) if reading is not None and reading.apart else ""

    @staticmethod
    def _mono() -> int:
        return int(asyncio.get_running_loop().time() * 1e6)


class Asking:
    """Connections to bookies at the addresses that were found in the newest look. `close` it."""

    def __init__(self, store: TreeStore, runtime: Runtime, net: NetConfig) -> None:
        self._store = store
        self._addresses: dict[BookieId, BookieAddress] = {}
        self._expected: dict[BookieId, Expected] = {}
        self._pool = BookiePool(runtime, net, self._resolve, introductions=Introductions(self))

    async def close(self) -> None:
        await self._pool.close()

    async def ask(
        self,
        registered: BookieSet,
        known: Collection[BookieId],
        asked: Mapping[BookieId, str],
        doubting: Mapping[BookieId, str],
        clocks: ClockReadings,
    ) -> tuple[BookieFacts, ...]:
        """Ask all bookies at once.

        `asked`: what operators ask of them; `doubting`: addresses of those that do not believe the store.
        """
        cluster = await self._store.instance_id()
        infos = dict(registered.everybody())
        names = sorted({*known, *infos, *doubting})
        for name in names:
            self._place(cluster, name, infos.get(name), doubting.get(name, ""))
        room = asyncio.Semaphore(AT_ONCE)

        async def one(name: BookieId) -> BookieFacts:
            async with room:
                return await self._one(name, infos.get(name), registered.state_of(name), asked.get(name, ""), clocks)

        return tuple(await asyncio.gather(*(one(name) for name in names)))

    # -- as ExpectedIdentities ----------------------------------------------------------------------------

    def expected(self, bookie_id: BookieId) -> Expected | None:
        return self._expected.get(bookie_id)

    def on_identity(self, bookie_id: BookieId, identity: Identity) -> None:
        """Ignore the identity: nothing depends on it."""

    def on_wrong_bookie(self, bookie_id: BookieId) -> None:
        """Ignore the event: the connection is refused, which the look reports."""

    # -- inside -------------------------------------------------------------------------------------------

    def _resolve(self, bookie: BookieId) -> BookieAddress | None:
        return self._addresses.get(bookie)

    def _place(self, cluster: str, name: BookieId, info: BookieInfo | None, doubting: str) -> None:
        """Record the bookie's address, and which id has to answer there. The same address stays the same object."""
        address = info.address if info is not None else address_of_id(doubting) or address_of_id(name)
        if address is None:
            self._addresses.pop(name, None)
        elif self._addresses.get(name) != address:
            self._addresses[name] = address
        self._expected[name] = Expected(Introduction(cluster, name)) if info is None else expected_of(cluster, info)

    async def _one(
        self, name: BookieId, info: BookieInfo | None, state: str, asked: str, clocks: ClockReadings
    ) -> BookieFacts:
        address = self._addresses.get(name)
        facts = BookieFacts(
            name,
            state,
            address=str(address or ""),
            incarnation=(info.incarnation if info is not None else None) or "",
            asked=asked,
        )
        if address is None:
            return facts if info is None else _silent(facts, "its registration has no address")
        try:
            async with asyncio.timeout(ASK_S):
                reply = await self._pool.call(name, _EVERYTHING, timeout_s=ASK_S)
        except TimeoutError:
            return _silent(facts, f"no answer within {ASK_S:g} s")
        except (LoginRequired, AccessRefused) as error:
            # A process serves there, and nobody may take it for one that is gone.
            return replace(facts, answers=True, refused=error, trouble=str(error))
        except BuckramError as error:
            return _silent(facts, str(error))
        if not isinstance(reply, BookieInfoReply) or reply.code is not Code.OK:
            return replace(facts, answers=True)
        report, trouble = _report(name, reply.report)
        return replace(
            facts,
            answers=True,
            trouble=trouble,
            free_bytes=reply.free_bytes,
            total_bytes=reply.total_bytes,
            troubles=tuple((one.what, one.why) for one in reply.troubles),
            report=report,
            certain=None if report is None or not report.time_is else report.time_is == "certain",
            file_system=reply.figures.get(FILE_SYSTEM_FIGURE, 0),
            sync_us=reply.figures.get("sync_us", 0),
            clock_ahead_us=clocks.heard(name, report.wall_us) if report is not None and report.wall_us else None,
        )


def _report(bookie: BookieId, said: bytes | None) -> tuple[BookieReport | None, str]:
    """Return the bookie's report on itself, None if there is none, and why it cannot be read, empty if it can."""
    if said is None:
        return None, ""
    try:
        return parse_report(bookie, said), ""
    except MalformedRecord as error:
        return None, str(error)


def _silent(facts: BookieFacts, why: str) -> BookieFacts:
    return replace(facts, trouble=why)
