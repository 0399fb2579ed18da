"""The end of a loop turn, shared by all writers of a client: one callback and one send per bookie for all of them.

With many ledgers most writers have few entries a turn; what the lanes and the matching of answers cost per send is
then paid once a turn, not once a writer.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from buckram.core.wire.acks import SentRun
from buckram.errors import BuckramError
from buckram.runtime.net.pool import AddLane
from buckram.seams import Counter

_STALL_CHECK_S = 0.005


class Sender(Protocol):
    """Has something to send at the end of this turn."""

    def check_client(self) -> None:
        """Raise if the client may not be used."""
        ...

    def send_now(self) -> None:
        """Put it into Loads."""
        ...

    def send_failed(self, error: BaseException) -> None: ...
    def has_full_lane(self) -> bool:
        """Return whether one of the lanes it sends to is full. After a True it is called again when lanes have room."""
        ...


class LaneBatch:
    """The adds for one lane that leave at the end of this turn."""

    __slots__ = ("_active", "acks", "data", "deferred", "lane", "runs")

    def __init__(self, active: list[LaneBatch], lane: AddLane, deferred: bool) -> None:
        self._active, self.lane, self.deferred = active, lane, deferred
        self.data: list[bytes] = []
        self.acks: list[bytes] = []
        self.runs: list[SentRun] = []

    def put(self, data: bytes, acks: bytes, run: SentRun) -> None:
        if not self.data:
            self._active.append(self)
        self.data.append(data)
        self.acks.append(acks)
        self.runs.append(run)


class SendBatcher:
    """Calls `send_now` of everybody who asked in this turn, in the order of asking, then sends the loads."""

    def __init__(self) -> None:
        self._senders: list[Sender] = []
        self._batches: dict[tuple[AddLane, bool], LaneBatch] = {}
        self._active: list[LaneBatch] = []
        self._waiting: dict[Sender, None] = {}
        self._asked = False
        self._count = 0
        """Senders of this turn that did not wait for its end."""
        self._alone = False
        """The last turn had one sender only."""
        self.lane_limit = 0
        """A lane with more bytes than this makes writers wait."""
        self.entries = 0
        """Entries and payload bytes sent in this turn, added by the senders."""
        self.bytes = 0
        self.entries_total: Counter | None = None
        self.bytes_total: Counter | None = None

    def ask(self, sender: Sender) -> None:
        if not self._asked:
            self._asked = True
            asyncio.get_running_loop().call_soon(self._run)
        self._senders.append(sender)

    def flush_now(self, sender: Sender) -> None:
        """Send the loads now if `sender` is the only writer, because it has all that it will have in this turn. With
        other writers about they share the sends at the end of the turn."""
        if self._alone and not self._count and self._senders == [sender]:
            self._count = 1
            self._send()

    def load(self, lane: AddLane, deferred: bool) -> LaneBatch:
        """Return the batch of a lane: always the same one for the same lane."""
        load = self._batches.get((lane, deferred))
        if load is None:
            load = self._batches[lane, deferred] = LaneBatch(self._active, lane, deferred)
        return load

    def _run(self) -> None:
        self._asked = False
        self._alone = len(self._senders) + self._count == 1
        self._count = 0
        if self._senders:
            self._send()

    def _send(self) -> None:
        senders, self._senders = self._senders, []
        try:
            senders[0].check_client()
        except BuckramError as error:
            for sender in senders:
                sender.send_failed(error)
            return
        for sender in senders:
            try:
                sender.send_now()
            except Exception as error:
                # One writer's bug is that writer's end; the others' entries still leave.
                sender.send_failed(error)
                context = {"message": "sending appended entries failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        self.send_loads(senders)
        if self.entries_total is not None and self.bytes_total is not None:
            self.entries_total.value += self.entries
            self.bytes_total.value += self.bytes
        self.entries = self.bytes = 0

    def send_loads(self, senders: list[Sender]) -> None:
        """Send what was put so far; `senders` hear of a lane that has too much."""
        active = self._active
        full = False
        parts: list[bytes] = []
        data = acks = b""
        for load in active:
            if load.data != parts:  # equal, and compared by identity, where all writers use the same bookies
                parts = load.data
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                acks = load.acks[0] if len(parts) == 1 else b"".join(load.acks)
            runs, load.data, load.acks, load.runs = load.runs, [], [], []
            # At once: what a turn has is gathered here already.
            if load.lane.send(data, acks, runs, deferred_sync=load.deferred, at_once=True) > self.lane_limit:
                full = True
        active.clear()
        if full:
            for sender in senders:
                self._watch(sender)

    def _watch(self, sender: Sender) -> None:
        # A timer asks again: other senders may have filled the lane, and no answer to `sender` tells that it has room.
        if sender.has_full_lane():
            if not self._waiting:
                asyncio.get_running_loop().call_later(_STALL_CHECK_S, self._recheck)
            self._waiting[sender] = None

    def _recheck(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for sender in waiting:
            self._watch(sender)
