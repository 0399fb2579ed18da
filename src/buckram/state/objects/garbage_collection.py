"""Sweeping, by the process that leads the index: expired objects go, dead ledgers are deleted, sparse packs rewritten,
and what processes left behind that died while they wrote is given up.

No step relies on a guess. A writer that seems to be dead is fenced first, and the index, not a clock, decides whether
bytes may still get a name: a ledger is deleted only after a command has made it dead, and then no put can name it. Not
here: which ledgers are dead or sparse (`core/objects/ledger_use.py`), moving live objects out of sparse ones
(`state/objects/rewriting.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from buckram.client.ledger_client import LedgerClient
from buckram.core.cluster.wall_time import APART_US
from buckram.core.streams.names import StreamId
from buckram.errors import BuckramError, CommandRefused, ForeignLedger, HandleClosed, NoSuchLedger, ReplicaStopped
from buckram.state.objects.index_client import IndexClient
from buckram.state.objects.presence import present_writers
from buckram.state.objects.rewriting import Rewriter
from buckram.streams.shared.ledgers import OBJECT, Intent, discard, let_go, read_intent
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.streams.shared.ownership import recovered
from buckram.types import LedgerId

K = TypeVar("K", bound=Hashable)
_log = logging.getLogger("buckram.objects")
SWEEP_S = 5.0
GRACE_S = 30.0
"""Time that a dead ledger is kept after this process saw it, seconds, because a reader may still use an object that was
there; also the time that a writer may be away before its ledgers are given up."""
SEARCH_S = 600.0
"""Interval of the search for ledgers unknown to the index, seconds; it is long, as it lists all of the namespace."""
_AT_ONCE = 64
_PARALLEL = 16
_PAGE = 1000


class ConditionTimes:
    """Remembers for each ledger since when a condition has held."""

    def __init__(self) -> None:
        self._since: dict[LedgerId, float] = {}
        self._loop = asyncio.get_running_loop()

    def clear(self) -> None:
        self._since.clear()

    def update(self, ledgers: Iterable[LedgerId], seconds: float) -> list[LedgerId]:
        """Note that the condition holds for exactly these ledgers; return those for which it has held for `seconds`."""
        now = self._loop.time()
        self._since = {ledger: self._since.get(ledger, now) for ledger in ledgers}
        return [ledger for ledger, since in self._since.items() if now - since >= seconds]


class Sweeper:
    """Sweeps one namespace's objects while this process leads their index."""

    def __init__(
        self, client: LedgerClient, streams: StreamStore, uid: str, index: IndexClient, rewriter: Rewriter
    ) -> None:
        self._client, self._streams, self._uid = client, streams, uid
        self._index, self._rewriter = index, rewriter
        self._loop = asyncio.get_running_loop()
        self._abandoned, self._unknown, self._dead = ConditionTimes(), ConditionTimes(), ConditionTimes()
        self._search_at = 0.0
        self._sweeping = asyncio.Lock()

    async def run(self) -> None:
        """Sweep now and then, for ever; ends when the index is closed or stops."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if not self._index.leads:
                for since in (self._abandoned, self._unknown, self._dead):
                    since.clear()
                continue
            try:
                await self.sweep()
            except (HandleClosed, ReplicaStopped):
                return
            except BuckramError as error:
                _log.warning("objects of %s: sweeping is tried again: %s", self._index.machine.name, error)

    async def sweep(self, grace_s: float = GRACE_S, *, at_once: bool = False) -> int:
        """Sweep once; returns the number of ledgers deleted, all of them dead for `grace_s`.

        `at_once`: give up what is abandoned without waiting whether its writer comes back, and look for everything.
        """
        async with self._sweeping:
            away_s = 0.0 if at_once else GRACE_S
            await self._expire()
            await self._purge()
            await self._give_up_abandoned(away_s)
            search = at_once or self._loop.time() >= self._search_at
            if search and not await self._adopt_unknown(away_s):
                self._search_at = self._loop.time() + SEARCH_S
            await self._rewriter.rewrite(again=at_once)
            return await self._delete(grace_s)

    async def _purge(self) -> None:
        while await self._index.look(lambda state: bool(state.trash)):
            await self._index.execute(["purge"])

    async def _expire(self) -> None:
        """Remove what has expired; nothing while the time is in doubt (T2)."""
        index, clocks = self._index, self._client.services.clocks
        due, doubtful, log_us = await index.look(
            lambda state: (state.next_expiry_us, bool(state.doubtful), state.now_us)
        )
        moment = clocks.moment()
        ahead = log_us - moment.low > APART_US
        if not (doubtful or ahead or (due is not None and due <= moment.best)) or await clocks.doubt():
            return
        if doubtful:
            await index.execute(["settle"])
        elif ahead:
            await index.execute(["purge"])  # any command: before it the leader sets the time of the log back
        due = await index.look(lambda state: state.next_expiry_us)
        while due is not None and due <= clocks.moment().earliest and await index.execute(["expire"]):
            due = await index.look(lambda state: state.next_expiry_us)

    async def _give_up_abandoned(self, away_s: float) -> None:
        """Fence and seal the open ledgers of writers that are gone."""
        # The index is read first: a writer shows itself before it begins a ledger.
        written = await self._index.look(lambda state: dict(state.space.open))
        if not written:
            self._abandoned.clear()
            return
        present = await present_writers(self._streams, self._uid)
        gone = [ledger for ledger, writer in written.items() if writer not in present]
        for ledger in self._abandoned.update(gone, away_s):
            try:
                async with recovered(self._client, StreamId(None, self._uid), ledger) as reader:
                    size = reader.metadata.length
            except (NoSuchLedger, ForeignLedger):
                size = 0
            except BuckramError as error:
                _log.warning("objects: ledger %d of a writer that is gone is not closed yet: %s", ledger, error)
                continue
            await self._index.execute(["seal", ledger, size])

    async def _adopt_unknown(self, away_s: float) -> int:
        """Take over the ledgers of processes that died before they told the index; returns how many are in doubt."""
        unknown: list[LedgerId] = []
        parent, after = self._streams.layout.intents(self._uid), ""

        async def page() -> list[str]:
            return await self._streams.keys.children(parent, after=after, limit=_PAGE)

        while names := await retry_metadata(page):
            after = names[-1]
            unknown += await self._unknown_of([int(name) for name in names])
        found = self._unknown.update(unknown, away_s)
        for ledger in found:
            intent = await self._intent(ledger)
            if intent is not None and intent.purpose == OBJECT:
                try:
                    await self._index.execute(["begin", ledger, ""])
                except CommandRefused:
                    continue  # It was begun in the meantime.
                await self._index.execute(["seal", ledger, 0])
        return len(unknown) - len(found)

    async def _unknown_of(self, ledgers: list[LedgerId]) -> list[LedgerId]:
        return await self._index.look(lambda state: [one for one in ledgers if one not in state.space])

    async def _intent(self, ledger: LedgerId) -> Intent | None:
        return await retry_metadata(lambda: read_intent(self._streams, self._uid, ledger))

    async def _delete(self, grace_s: float) -> int:
        """Delete the ledgers that are dead for `grace_s` seconds."""
        dead = await self._index.look(lambda state: list(state.space.dead))
        gone = self._dead.update(dead, grace_s)
        for begin in range(0, len(gone), _AT_ONCE):
            part = gone[begin : begin + _AT_ONCE]
            for some in _groups(part, _PARALLEL):
                await asyncio.gather(*map(self._drop, some))
            await self._index.execute(["gone", part])
        return len(gone)

    async def _drop(self, ledger: LedgerId) -> None:
        intent = await self._intent(ledger)
        if intent is not None:
            await discard(self._client, self._streams, self._uid, intent)
        else:
            await let_go(self._client, self._streams, self._uid, ledger)


def _groups(items: Sequence[K], size: int) -> list[Sequence[K]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]
