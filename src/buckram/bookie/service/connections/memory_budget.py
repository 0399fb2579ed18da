"""Memory limits of the server: which connections are read, paused or closed.

One Budget for all connections. It counts requests in memory and answers not yet sent, stops reading from the
heaviest connections and closes peers that do not take their answers. It does not know operations.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger("buckram.bookie")
SWEEP_S = 1.0
SLOW_CONSUMER_S = 60.0
"""A peer that reads none of its answers for this long is closed."""
SLOW_CONSUMER_WHEN_FULL_S = 5.0
"""The same limit while the memory of all connections is used up, because other connections wait for it."""
REFUSE_READS, REFUSE_ADDS = 1.5, 2.0
"""Shares of the total limit from which reads, then adds, are answered TOO_MANY_REQUESTS: the last resort."""


FAIR_BYTES = 64 * 1024
"""A connection that holds at most this much is still read when the others have used up the memory."""


class Member(Protocol):
    """One connection as the budget sees it. `charged`, `waiting_since` and `waiting_mark` belong to the budget."""

    charged: int
    reads_paused: bool
    waiting_since: float
    waiting_mark: int

    def held(self) -> int:
        """Bytes of requests in memory and of answers not yet sent."""
        ...

    def unfinished(self) -> int:
        """Return the part of `held` that is an incomplete frame: only reading on releases it."""
        ...

    def in_work(self) -> int:
        """Return the part of `held` that waits for this bookie, and not for the peer to take replies."""
        ...

    def progress(self) -> int:
        """Return a number that grows whenever the peer takes or sends bytes."""
        ...

    def poke(self) -> None:
        """Continue queued work if memory allows."""
        ...

    def pause_reads(self) -> None: ...
    def resume_reads(self) -> None: ...
    def abort(self, why: str) -> None: ...


class Budget:
    """Limits in bytes: one connection, all connections. Members call `update` when what they hold may have changed."""

    def __init__(self, connection_limit: int, total_limit: int, fair_bytes: int = FAIR_BYTES) -> None:
        self.connection_limit, self.total_limit, self._fair_bytes = connection_limit, total_limit, fair_bytes
        self.limit = int(total_limit * REFUSE_ADDS)
        """Maximum number of bytes that are ever held, not counting one frame of each connection; beyond it adds are
        refused."""
        self.total = 0
        self.highest_total = 0
        self._members: dict[Member, None] = {}
        self._paused_members: dict[Member, None] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._backpressure = False

    def join(self, member: Member) -> None:
        self._members[member] = None

    def leave(self, member: Member) -> None:
        self._members.pop(member, None)
        self._paused_members.pop(member, None)
        self.total -= member.charged
        member.charged = 0
        self._resume_some()

    @property
    def refuse_reads(self) -> bool:
        return self.total > self.total_limit * REFUSE_READS

    @property
    def refuse_adds(self) -> bool:
        return self.total > self.limit

    @property
    def full(self) -> bool:
        return self.total > self.total_limit * 3 // 4

    def update(self, member: Member) -> None:
        """Recount one member. May pause it or the heaviest member, or resume paused members."""
        if member not in self._members:
            return
        held = member.held()
        self.total += held - member.charged
        member.charged = held
        if self.total > self.highest_total:
            self.highest_total = self.total
        if held > self.connection_limit and held - member.unfinished() > self.connection_limit:
            self._pause(member)
        if self.total > self.total_limit:
            self._pause_heaviest()
        elif self._paused_members:
            self._resume_some()
        if self.total > 0 and self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._on_sweep)

    def pause_reads_of(self, member: Member) -> None:
        """Stop reading from a member, however little it holds, until `resume_reads`."""
        if member in self._members:
            self._backpressure = True
            self._pause(member)

    def resume_reads(self) -> None:
        """End the backpressure that `pause_reads_of` applied."""
        self._backpressure = False
        self._resume_some()

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _pause(self, member: Member) -> None:
        if not member.reads_paused:
            member.pause_reads()
            self._paused_members[member] = None

    def _pause_heaviest(self) -> None:
        heaviest: Member | None = None
        most = self._fair_bytes
        for member in self._members:
            if not member.reads_paused and member.charged > most:
                heaviest, most = member, member.charged
        if heaviest is not None:
            self._pause(heaviest)

    def _resume_some(self) -> None:
        """Resume members below the low-water marks, so that a connection does not flap between the two states."""
        if self._backpressure or self.total > self.total_limit * 3 // 4:
            return
        for member in list(self._paused_members):
            if member.charged - member.unfinished() <= self.connection_limit // 2:
                del self._paused_members[member]
                member.resume_reads()

    def _on_sweep(self) -> None:
        """Recount, because transports do not report what they have sent, and find peers that stopped reading."""
        self._sweep = None
        now = asyncio.get_running_loop().time()
        for member in list(self._members):
            if member.charged:
                self._look_at(member, now)
        if self.total > 0 and self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._on_sweep)

    def _look_at(self, member: Member, now: float) -> None:
        self.update(member)
        member.poke()
        mark = member.progress()
        if mark != member.waiting_mark or member.in_work() or not member.charged or self._backpressure:
            # A connection with requests in work waits for this bookie, so it is not a slow consumer.
            member.waiting_mark, member.waiting_since = mark, now
            return
        allowed_s = SLOW_CONSUMER_WHEN_FULL_S if self.full and member.reads_paused else SLOW_CONSUMER_S
        if now - member.waiting_since >= allowed_s:
            member.abort(
                f"holds {member.charged} bytes of answers, and the client has read nothing for "
                f"{now - member.waiting_since:.0f} s"
            )
