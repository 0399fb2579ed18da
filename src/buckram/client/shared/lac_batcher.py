"""The common timer of all writers of a client that wait until they have been idle, to publish their LACs together.

One timer and one piece of bytes per bookie serve all ledgers that are due, so that many slow writers cost little. Not
here: what a writer publishes, and when (`client/write/explicit_lac.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from buckram.core.wire.client_protocol import LacPacket
from buckram.errors import Code
from buckram.runtime.net.pool import AddLane
from buckram.types import BookieId, EntryId, LedgerId

_TICK_S = 0.002
"""Looks that are due within so many seconds are one."""


class Publisher(Protocol):
    """A writer's `ExplicitLac`."""

    @property
    def lanes(self) -> Sequence[AddLane]:
        """Return the lanes to the bookies that get its packets."""
        ...

    def take(self, now: float) -> LacPacket | None:
        """Return the packet that is to be sent now; None if there is none."""
        ...

    def answered(self, bookie: BookieId, lac: EntryId, code: Code) -> None:
        """Take note of the reply of a bookie."""
        ...


class LacBatcher:
    """Calls `take` of publishers at the times that they named, and sends what they return."""

    def __init__(self) -> None:
        self._due: dict[int, list[Publisher]] = {}
        """Publishers by the tick of their look."""
        self._ticks: list[int] = []
        """A heap of the keys."""
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0
        self._waiting: dict[LedgerId, Publisher] = {}
        """The publishers that sent a packet last, by their ledgers."""

    def at(self, when: float, publisher: Publisher) -> None:
        """Have `take` called at this time of the loop, or up to a tick later."""
        tick = int(when / _TICK_S) + 1
        due = self._due.get(tick)
        if due is None:
            self._due[tick] = [publisher]
            heappush(self._ticks, tick)
            if self._timer is None or tick < self._armed:
                self._arm()
        else:
            due.append(publisher)

    def sent(self, ledger_id: LedgerId, publisher: Publisher) -> None:
        """Have replies about this ledger told to `publisher`."""
        self._waiting[ledger_id] = publisher

    def forget(self, ledger_id: LedgerId, publisher: Publisher) -> None:
        """Tell `publisher` nothing more."""
        if self._waiting.get(ledger_id) is publisher:
            del self._waiting[ledger_id]

    def answered(self, bookie: BookieId, ledger_id: LedgerId, lac: EntryId, code: Code) -> None:
        """Pass on a reply, for `BookiePool.on_lac`."""
        publisher = self._waiting.get(ledger_id)
        if publisher is not None:
            publisher.answered(bookie, lac, code)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = self._ticks[0]
        self._timer = asyncio.get_running_loop().call_at(self._armed * _TICK_S, self._run)

    def _run(self) -> None:
        self._timer = None
        # The timer may be a little early, and a look before its time does nothing.
        now = max(asyncio.get_running_loop().time(), self._armed * _TICK_S)
        packets: dict[AddLane, list[LacPacket]] = {}
        while self._ticks and self._ticks[0] * _TICK_S <= now:
            for publisher in self._due.pop(heappop(self._ticks)):
                packet = publisher.take(now)
                if packet is not None:
                    for lane in publisher.lanes:
                        packets.setdefault(lane, []).append(packet)
        for lane, found in packets.items():
            lane.send_lacs(found)
        if self._ticks and self._timer is None:
            self._arm()
