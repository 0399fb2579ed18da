"""Leader: appends a machine's records to its log and applies each when it was acknowledged.

Records of one turn of the event loop go to the stream in one call. It lives from the moment at which everything before
was applied until the stream's writer is lost. `Attempts` decides when callers must learn that attempts to become the
leader fail. Not here: those attempts (`state/machine/replica.py`) and the pauses between them (`core/backoff.py`), what
a record does (`core/machine/fold.py`), snapshots (`state/machine/snapshots.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from buckram.client.shared.services import Services
from buckram.client.write.completions import fail_future
from buckram.core.machine import records
from buckram.core.machine.fold import Applied, Fold, LogTime
from buckram.core.machine.read_proofs import Freshness, Proofs
from buckram.core.machine.records import CommandRecord
from buckram.core.machine.sessions import CommandToken, Forgotten, Outcome
from buckram.errors import (
    BuckramError,
    CommandTooLarge,
    CommandUnknown,
    NotEnoughBookies,
    NotLeader,
    ReplicaStopped,
    check,
    invariant_failed,
)
from buckram.state.machine.settings import MachineSettings
from buckram.streams.write.engine import StreamEngine
from buckram.types import Offset

_log = logging.getLogger("buckram.machine")
FLIGHTS = 2
"""Number of entries in flight at which further commands linger to share the next one: while one entry is on its way,
the callers that the other one has answered send new commands."""
_AT_ONCE = 128
"""Maximum records applied in one turn of the event loop: then answered callers run, and send new commands while more
are applied. Fewer would cut the commands of a group into small entries, each of which costs every bookie a sync."""
OnApplied = Callable[[], None]
"""Callback after every group of records that was applied."""
Result = Outcome | Forgotten


@dataclass(slots=True)
class _Pending:
    """A record that is not acknowledged yet. `others` wait for the same command."""

    value: bytes
    command: CommandRecord | None = None
    token: CommandToken | None = None
    future: asyncio.Future[Result] | None = None
    opened: asyncio.Future[int] | None = None
    others: list[asyncio.Future[Result]] | None = None


@dataclass(slots=True)
class _Durable:
    """Records with consecutive offsets that are acknowledged, and how many of them are applied."""

    group: list[_Pending]
    first: Offset
    sent_at: float
    applied: int = 0


class Leader:
    """The leader's side of a machine. `ended` is set, with the reason, when it leads no more."""

    def __init__(
        self, engine: StreamEngine, fold: Fold, freshness: Freshness, settings: MachineSettings, on_applied: OnApplied
    ) -> None:
        check(
            engine.next_offset == fold.applied, "R5", f"{fold.machine}: {fold.applied} of {engine.next_offset} applied"
        )
        self.engine = engine
        self._fold, self._freshness = fold, freshness
        self._digest_commands, self._max_pending = settings.digest_commands, settings.max_pending
        self._on_applied = on_applied
        self._limit = engine.max_record_bytes - records.COMMAND_OVERHEAD
        self._loop = asyncio.get_running_loop()
        self._batch: list[_Pending] = []
        self._sent: list[_Pending] = []
        """Records in flight, in order; groups are taken from its front as they are acknowledged."""
        self._durable: deque[_Durable] = deque()
        """Records that are acknowledged and not applied, in the order of the log."""
        self._inflight: dict[CommandToken, _Pending] = {}
        """Commands in flight, by tokens that a caller may use again meanwhile."""
        self._next_sent = fold.applied
        """Offset of the next record that is handed to the stream."""
        self._proofs: Proofs[asyncio.Future[None]] = Proofs()
        self._room: deque[asyncio.Future[None]] = deque()
        self._granted = 0
        """Number of callers that were given room and have not put their record yet."""
        self._time = LogTime(fold.time_us)
        self._batch_us = 0
        self._turn_asked = self._marking = False
        self.ended: asyncio.Future[BuckramError] = self._loop.create_future()
        self.gone = asyncio.Event()
        """Set by the replica when the stream was released."""

    @property
    def pending(self) -> int:
        """Number of records that are not applied yet."""
        return len(self._batch) + len(self._sent)

    # -- asking -------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Return whether a record may be put at once."""
        pending = len(self._batch) + len(self._sent) + self._granted
        return pending < self._max_pending and not self._room and not self.ended.done()

    async def room(self) -> None:
        """Wait until there is room for one more record, in the order of the calls. Raises NotLeader.

        The caller puts its record, if it has one after all, before it waits for anything else.
        """
        self._check_leading()
        if self.has_room:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._room.append(future)
        try:
            await future
        finally:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._granted -= 1
                # The caller may not use its room (cancelled, or its command was known): then the next one gets it.
                self._loop.call_soon(self._give_room)
        self._check_leading()

    def _check_leading(self) -> None:
        """Raise the reason if the leadership has ended: a later record would never be answered."""
        if self.ended.done():
            reason = self.ended.result()
            raise reason if isinstance(reason, ReplicaStopped) else NotLeader(self._fold.machine, "")

    def _give_room(self) -> None:
        free = self._max_pending - self.pending - self._granted
        while self._room and free > 0:
            future = self._room.popleft()
            if not future.done():
                future.set_result(None)
                self._granted += 1
                free -= 1

    def command(self, token: CommandToken, lowest: int, payload: bytes) -> asyncio.Future[Result]:
        """Write a command, or join the one in flight under the same token. Raises CommandTooLarge, NotLeader.

        The future fails with CommandUnknown, NotLeader (it was not sent) or ReplicaStopped.
        """
        self._check_leading()
        present = self._inflight.get(token)
        if present is not None:
            future: asyncio.Future[Result] = self._loop.create_future()
            present.others = [*(present.others or ()), future]
            return future
        future = self._write(token, lowest, payload)
        self._inflight[token] = self._batch[-1]
        return future

    def begin(self, token: CommandToken, lowest: int, payload: bytes) -> asyncio.Future[Result] | None:
        """Write a command whose token is not used again before the future is done; None if there is no room now."""
        return self._write(token, lowest, payload) if self.has_room else None

    def _write(self, token: CommandToken, lowest: int, payload: bytes) -> asyncio.Future[Result]:
        if len(payload) > self._limit:
            raise CommandTooLarge(self._fold.machine, len(payload), self._limit)
        future: asyncio.Future[Result] = self._loop.create_future()
        session, sequence = token
        command = CommandRecord(self._now(), session, sequence, lowest, payload)
        self._put(_Pending(records.encode_command(command), command, token, future))
        return future

    def open_session(self) -> asyncio.Future[int]:
        """Open a session and return its id. Raises NotLeader."""
        self._check_leading()
        future: asyncio.Future[int] = self._loop.create_future()
        self._put(_Pending(records.encode_plain(records.SESSION, self._now()), opened=future))
        return future

    def prove(self) -> asyncio.Future[None]:
        """Resolved when a record that is sent after this call was acknowledged: this leader was not fenced (R6).

        Raises NotLeader.
        """
        self._check_leading()
        future: asyncio.Future[None] = self._loop.create_future()
        self._proofs.arrived(future, self._next_sent)
        self._ask_turn()
        return future

    # -- sending ------------------------------------------------------------------------------------------

    def _now(self) -> int:
        """Return the time of the log. Records sent together share one, so the clock is not read for each."""
        if not self._batch:
            moment = self.engine.moment()
            if self._time.goes_back(moment):
                set_back = records.encode_plain(records.TIME, self._time.set_back(moment))
                self._batch.append(_Pending(set_back))
            self._batch_us = self._time.next(moment, int(self._loop.time() * 1_000_000))
        return self._batch_us

    def _put(self, pending: _Pending) -> None:
        self._batch.append(pending)
        if not self._turn_asked:
            self._ask_turn()

    def _ask_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Hand all records of this turn of the event loop to the stream."""
        self._turn_asked = False
        if self.ended.done():
            return
        if not self._batch and self._proofs.lacks_record(self._next_sent):
            self._batch.append(_Pending(records.encode_plain(records.NOOP, self._now())))
        if self._batch:
            group, self._batch = self._batch, []
            self._sent += group
            self._next_sent += len(group)
            try:
                offsets = self.engine.append_values([pending.value for pending in group])
            except BuckramError as error:
                self.fail(error)
            else:
                offsets.add_done_callback(partial(self._stored, group, self._loop.time()))

    def _stored(self, group: list[_Pending], sent_at: float, offsets: asyncio.Future[range]) -> None:
        """Handle the outcome of a group that was sent: it is in the log, or that is unknown."""
        error = None if offsets.cancelled() else offsets.exception()
        if isinstance(error, BuckramError):
            self.fail(error)
        elif error is not None:
            self._broken(error)
        elif not self.ended.done() and not offsets.cancelled():
            self._durable.append(_Durable(group, offsets.result().start, sent_at))
            if len(self._durable) == 1:
                self._go_on()

    # -- applying -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Apply some of the durable records; the rest follows after the answered callers have run."""
        if self.ended.done() or not self._durable:
            return
        try:
            self._apply(self._durable[0])
        except ReplicaStopped as error:
            self.fail(error)
        except Exception as error:
            _log.exception("machine %s: the leader failed", self._fold.machine)
            self._broken(error)
        if self._durable:
            self._loop.call_soon(self._go_on)

    def _apply(self, durable: _Durable) -> None:
        """Apply records in order, and answer their callers (R2)."""
        fold, begin = self._fold, durable.applied
        some = durable.group[begin : begin + _AT_ONCE]
        if self._sent[: len(some)] != some:  # not by `check`: the text is not built for each group
            invariant_failed("R1", f"{fold.machine}: acknowledged out of order")
        for offset, pending in enumerate(some, durable.first + begin):
            command = pending.command
            if command is None:
                self._answer(pending, offset, fold.apply(offset, pending.value))
            else:
                self._tell(pending, fold.command(offset, command, len(pending.value)))
        del self._sent[: len(some)]
        durable.applied += len(some)
        if durable.applied == len(durable.group):
            self._durable.popleft()
            self._freshness.confirmed(durable.sent_at)
        if self._room:
            self._give_room()
        if self._proofs.waiting:
            for proven in self._proofs.applied(fold.applied):
                if not proven.done():
                    proven.set_result(None)
        if not self._marking and fold.commands - fold.mark_commands >= self._digest_commands:
            self._marking = True
            self._put(_Pending(records.encode_plain(records.MARK, self._now())))
        self._on_applied()

    def _tell(self, pending: _Pending, outcome: Result) -> None:
        """Answer the callers that wait for a command."""
        future = pending.future
        if future is not None and not future.done():
            future.set_result(outcome)
        if self._inflight and pending.token is not None:
            self._inflight.pop(pending.token, None)
            for other in pending.others or ():
                if not other.done():
                    other.set_result(outcome)

    def _answer(self, pending: _Pending, offset: Offset, applied: Applied) -> None:
        """Continue after a record that is no command: resolve the opened session, or append the digest of a mark."""
        if pending.opened is not None and not pending.opened.done():
            pending.opened.set_result(offset)
        elif applied.kind == records.MARK:
            self._marking = False
            digest = self._fold.marked(offset)
            if digest is not None:
                self._put(_Pending(records.encode_digest(self._now(), offset, digest)))

    # -- the end ------------------------------------------------------------------------------------------

    def fail(self, error: BuckramError) -> None:
        """End the leadership: records that were sent have an unknown outcome, the others were not written."""
        if self.ended.done():
            return
        self.ended.set_result(error)
        name = self._fold.machine
        sent, batch, self._sent, self._batch = self._sent, self._batch, [], []
        self._inflight.clear()
        self._durable.clear()
        for pending in sent:
            if isinstance(error, ReplicaStopped):
                _fail(pending, error)
            elif pending.token is not None:
                _fail(pending, CommandUnknown(name, pending.token.text(self.engine.uid), str(error)))
            else:
                _fail(pending, NotLeader(name, ""))
        for pending in batch:
            _fail(pending, error if isinstance(error, ReplicaStopped) else NotLeader(name, ""))
        for waiter in (*self._proofs.fail(), *self._room):
            fail_future(waiter, NotLeader(name, ""))
        self._room.clear()

    def _broken(self, error: BaseException) -> None:
        """End after a bug in this code: nothing may be acknowledged any more."""
        self.fail(error if isinstance(error, BuckramError) else NotLeader(self._fold.machine, ""))

    def close(self) -> None:
        """Stop without sealing anything; the stream's writer is the caller's."""
        self.fail(NotLeader(self._fold.machine, ""))


def _fail(pending: _Pending, error: BuckramError) -> None:
    for future in (pending.future, pending.opened, *(pending.others or ())):
        if future is not None:
            fail_future(future, error)


# -- attempts to become the leader ------------------------------------------------------------------------

_TROUBLE_S = 30.0
"""Time of uninterrupted failures after which callers that wait for the leadership get the error, seconds."""


class Attempts:
    """The attempts of one replica. Times are those of the running loop, in seconds."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._failing_since: float | None = None
        """Time of the first of the failures so far, None after a success."""

    def begin_anew(self) -> None:
        """Forget the failures so far: one attempt succeeded, or a caller asks again."""
        self._failing_since = None

    async def hopeless(self, error: BuckramError, began: float) -> bool:
        """Return whether callers that wait for the leadership get the error of the attempt that began at `began`.

        They do after half a minute of errors, when no bookie runs, or when the log needs more bookies than the cluster
        has.
        """
        now = self._loop.time()
        if self._failing_since is None or now - began >= _TROUBLE_S:  # it waited that long for another leader
            self._failing_since = now
        if now - self._failing_since >= _TROUBLE_S or self._services.bookies.nobody() is not None:
            return True
        if not isinstance(error, NotEnoughBookies):
            return False
        try:
            store = self._services.store
            known, current = await store.known_bookies(), await store.bookies()
        except BuckramError:
            return False
        return error.needed > len({*known, *current.writable, *current.readonly})
