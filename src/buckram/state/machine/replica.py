"""Replica: a follower of a log that becomes its leader and back, for anything that is `Replicated`.

It owns the roles and ties the other parts together; the meaning of commands is the state's business. `Machine`
(`state/machine/machine.py`) stands on it, and other engines can. docs/explanation/machines-design.md has the protocol
and its rules. Not here: appending (`state/machine/leader.py`), following (`state/machine/freshness.py`), applying
(`core/machine/fold.py`), snapshots (`state/machine/snapshotter.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from buckram.client.ledger_client import LedgerClient
from buckram.core.backoff import MACHINE, Delays
from buckram.core.machine.fold import Fold, Replicated
from buckram.core.machine.read_proofs import Freshness
from buckram.core.machine.sessions import CommandToken, Forgotten, Outcome
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.mirrors import MIRROR, check_writable
from buckram.core.streams.metadata.purposes import Purpose, purpose_of
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy
from buckram.errors import (
    BuckramError,
    CommandForgotten,
    HandleClosed,
    InvariantViolation,
    MetadataError,
    MirrorStream,
    NoSuchStream,
    NotLeader,
    NotMachineLog,
    OffsetTruncated,
    ReplicaStopped,
    SnapshotDamaged,
    StateLost,
    StreamEnded,
)
from buckram.runtime.process.tasks import TaskScope
from buckram.state.machine.freshness import FreshnessQuestion, load, tail
from buckram.state.machine.leader import FLIGHTS, Attempts, Leader, Result
from buckram.state.machine.settings import MachineSettings
from buckram.state.machine.snapshots import LogHandle
from buckram.state.machine.snapshotter import Failed, Snapshotter
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.write.engine import StreamEngine
from buckram.streams.write.opening import open_writer
from buckram.types import Offset

T = TypeVar("T")
_log = logging.getLogger("buckram.machine")
_STAND_BACK_S = 1.0
"""Time after stepping down in which this replica leaves the leadership to others, seconds."""
_FINAL = (ReplicaStopped, StateLost, HandleClosed, InvariantViolation, NoSuchStream, StreamEnded)
"""Errors after which a replica cannot go on."""


class Role(Enum):
    """Present role of a replica."""

    FOLLOWER = "follower"
    LEADER = "leader"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Candidacy:
    """When a replica stands as leader: `auto`, whenever there is none; else only for `Replica.lead`."""

    auto: bool
    name: str
    mirror_of: str = ""
    """Uid of the log of which this process keeps the mirror; empty if it keeps none."""


class Replica:
    """One replica of a machine, from `open_replica`. `close` ends it."""

    def __init__(
        self,
        place: LogHandle,
        policy: Policy,
        state: Replicated,
        settings: MachineSettings,
        candidacy: Candidacy,
        purpose: Purpose,
    ) -> None:
        """`purpose`: that of the log, for which this process acts when it leads."""
        self.place, self.role = place, Role.FOLLOWER
        self.fold = Fold(str(place.name), state)
        self.damaged_snapshots: list[SnapshotDamaged] = []
        """Published snapshots that could not be restored here."""
        self._policy, self._settings, self._candidacy, self._purpose = policy, settings, candidacy, purpose
        self._services = place.client.services
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope(f"machine {place.name}", self._broken)
        self._freshness = Freshness()
        self._question = FreshnessQuestion(place, self._freshness, self.applied_at_least, self._scope)
        self._snapshotter = Snapshotter(place, policy, self.fold, settings, self._scope)
        self._leader: Leader | None = None
        self._last: Leader | None = None
        """Leader object of the present or last leadership; its `gone` is set when the stream is released."""
        self._leads = asyncio.Event()
        self._answered = asyncio.Event()
        """Set while it leads, cannot lead, or has stopped: callers that wait for the leadership then check which."""
        self._wanted, self._asking, self._takeovers = asyncio.Event(), 0, 0
        self._standing: asyncio.Task[StreamEngine | BuckramError] | None = None
        self._denied: BuckramError | None = None
        """Error by which the last attempt found that no replica can lead in this cluster; None without one."""
        self._attempts = Attempts(self._services)
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """Offsets that callers wait to be applied, with their futures."""
        self._failure: BuckramError | None = None
        if candidacy.auto:
            self._wanted.set()

    async def start(self) -> None:
        """Load the newest snapshot and begin to follow. Raises StateLost and what reading raises."""
        await self._load()
        self._scope.spawn(self._run(), "run")
        self._scope.spawn(self._question.begin(), "begin")

    def check_running(self) -> None:
        """Raise the error that stopped this replica, or HandleClosed; nothing while it runs."""
        self._services.guard()
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    # -- executing ----------------------------------------------------------------------------------------

    async def execute(self, token: CommandToken, lowest: int, payload: bytes) -> Outcome:
        """Write a command, apply it when it is durable, and return its outcome: that of the first time if repeated.

        Raises NotLeader, CommandUnknown, CommandForgotten, CommandTooLarge, ReplicaStopped.
        """
        leader = self._leading() or await self.leading()
        if not leader.has_room:
            await leader.room()
        result = self.fold.sessions.known(*token)
        if not isinstance(result, Outcome):
            # Only the log can prove that the token is unknown: another leader may know more than this one by now.
            result = await leader.command(token, lowest, payload)
        return self.outcome_of(token, result)

    def begin(self, token: CommandToken, lowest: int, payload: bytes) -> asyncio.Future[Result] | None:
        """Write a command under a new token that is used once, without waiting; None if that is not possible now.

        The future has the outcome, or Forgotten.
        """
        self.check_running()
        leader = self._leader
        return None if leader is None else leader.begin(token, lowest, payload)

    def outcome_of(self, token: CommandToken, result: Result) -> Outcome:
        """Return the outcome of a command. Raises CommandForgotten if it is not kept any more."""
        if isinstance(result, Forgotten):
            raise CommandForgotten(str(self.place.name), token.text(self.place.uid), result.message)
        return result

    async def open_session(self) -> int:
        """Open a session in the log and return its id. Raises NotLeader, ReplicaStopped."""
        return await (await self.leading()).open_session()

    @property
    def leads(self) -> bool:
        """Return whether this replica leads, as far as it knows. Any thread."""
        leader = self._leader
        return leader is not None and not leader.ended.done()

    async def leading(self) -> Leader:
        """Return the leader object of this replica, once it leads.

        Raises NotLeader, MirrorStream, NotEnoughBookies (none runs), ReplicaStopped, HandleClosed.
        """
        self.check_running()
        leader = self._leader
        if leader is not None and not leader.ended.done():
            return leader
        reason = self._leader.ended.result() if self._leader is not None else None
        if isinstance(reason, ReplicaStopped):
            raise reason.with_traceback(None)
        with suppress(MetadataError):
            await self.check_writable()
        if (nobody := self._services.bookies.nobody()) is not None:
            raise nobody
        raise NotLeader(str(self.place.name), await self.leader_name())

    async def check_writable(self) -> None:
        """Raise MirrorStream for a log that is written from another cluster, not by this replica. MetadataError."""
        name = self.place.name
        check_writable(str(name), (await self.place.streams.read(name, within_s=0.0)).head, self._candidacy.mirror_of)

    def _leading(self) -> Leader | None:
        """Return the leader object, or None if this replica does not lead. Raises ReplicaStopped, HandleClosed."""
        self.check_running()
        leader = self._leader
        return leader if leader is not None and not leader.ended.done() else None

    async def leader_name(self) -> str:
        """Return the name of the process that leads; empty if none does, or if the metadata store is away."""
        try:
            head = (await self.place.streams.read(self.place.name, within_s=0.0)).head
        except MetadataError:
            return ""
        if head.writer is None or (head.mirror is not None and head.mirror.state == MIRROR):
            return ""  # The process that copies into a mirror is not its leader.
        return head.writer.name

    # -- reading ------------------------------------------------------------------------------------------

    async def prove(self) -> None:
        """Wait until the state has everything acknowledged anywhere before this call. Leader only (R6). NotLeader."""
        await (await self.leading()).prove()

    async def begun(self) -> None:
        """Wait until the state has had all that was in the log when this replica was opened; before, it may be empty.

        Raises TooStale, NotEnoughBookies (none runs), ReplicaStopped, HandleClosed.
        """
        self.check_running()
        if not self._question.has_begun:
            await self._question.begun()
            self.check_running()

    async def fresh(self, at_most_s: float) -> None:
        """Wait until the state lacks nothing that was acknowledged `at_most_s` seconds before this call. TooStale."""
        self.check_running()
        if self._leader is not None:
            age = self._freshness.age(self._loop.time())
            if age is None or age > at_most_s:
                with suppress(NotLeader):
                    await self._leader.prove()
                    return
        await self._question.fresh(at_most_s)
        self.check_running()

    async def applied_at_least(self, offset: Offset) -> None:
        """Wait until everything below the offset is applied. Raises ReplicaStopped, HandleClosed."""
        self.check_running()
        if self.fold.applied < offset:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((offset, future))
            await future

    def _on_applied(self) -> None:
        applied = self.fold.applied
        if self._waiting:
            for offset, future in self._waiting:
                if offset <= applied and not future.done():
                    future.set_result(None)
            self._waiting = [item for item in self._waiting if not item[1].done()]
        if self._leader is not None and self._snapshotter.due:
            self._snapshotter.take(self._leader.engine.epoch)

    # -- roles --------------------------------------------------------------------------------------------

    async def lead(self, *, takeover: bool = False) -> None:
        """Become the leader: wait until there is none, or fence the present one (`takeover`). No-op for the leader.

        Raises MirrorStream if the log is a mirror, which no replica in this cluster can lead, and at once
        NotEnoughBookies if the log needs more bookies than the cluster has, or none runs. Other errors of attempts are
        raised after half a minute in which every attempt has failed.
        """
        self._allow_again()
        while True:
            self.check_running()
            leader = self._leader
            if leader is not None and not leader.ended.done():
                return
            if self._denied is not None:
                raise self._denied.with_traceback(None)
            if takeover and self._standing is not None:
                self._standing.cancel()
            self._wanted.set()
            self._asking += 1
            self._takeovers += takeover
            try:
                # One that has just lost the leadership must have let it go before it can lead again.
                await (self._answered if leader is None else leader.gone).wait()
            finally:
                self._asking -= 1
                self._takeovers -= takeover
                self._want_no_more()

    async def leads_within(self, seconds: float) -> bool:
        """Wait at most `seconds` until this replica leads or has stopped; return whether it leads."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leads.wait()
        return self.role is Role.LEADER

    def _allow_again(self) -> None:
        """Forget the last refusal, so that the next attempt finds out whether this replica can lead."""
        if self._denied is not None:
            self._denied = None
            self._attempts.begin_anew()
            if self._failure is None and self._leader is None:
                self._answered.clear()

    def _want_no_more(self) -> None:
        """Stop standing for the leadership if no caller wants it any more and this is no automatic candidate."""
        if self._asking or self._candidacy.auto or self._leader is not None:
            return
        self._wanted.clear()
        if self._standing is not None:
            self._standing.cancel()

    async def step_down(self) -> None:
        """Stop leading after everything in flight. Others may lead now; this replica after a second, or if asked."""
        self.check_running()
        leader = self._leader
        if leader is not None:
            with suppress(BuckramError):
                await leader.engine.flush()
            leader.fail(NotLeader(str(self.place.name), ""))
            await leader.gone.wait()

    async def snapshot(self) -> int:
        """Take a snapshot now and return its offset. Leader only. Raises NotLeader and why it failed."""
        leader = await self.leading()
        task = self._snapshotter.take(leader.engine.epoch)
        await asyncio.wait((task,))
        if task.cancelled():
            raise NotLeader(str(self.place.name), await self.leader_name())
        result = task.result()
        if isinstance(result, Failed):
            raise result.error
        return result

    async def _run(self) -> None:
        """Follow, lead, follow ... until it is closed or must stop."""
        delays = Delays(MACHINE, self._services.runtime.rng)
        while self._failure is None:
            began = self._loop.time()
            try:
                await self._lead(await self._follow())
                delays.reset()
            except OffsetTruncated:
                error = await _outcome(self._reload)
                if error is None:
                    continue
            except BuckramError as failed:
                error = failed
            else:
                continue
            if isinstance(error, _FINAL) or not (error.retryable or isinstance(error, MetadataError)):
                self._stop(error)
                return
            _log.warning("machine %s: following is tried again: %s", self.place.name, error)
            # A replica that cannot follow cannot lead: each failure to follow ended an attempt to lead, too.
            await self._tell_if_hopeless(error, began)
            self._question.look_for_bookies()
            await asyncio.sleep(delays.take())

    async def _load(self) -> None:
        begun = await load(self.place, self.fold)
        self.damaged_snapshots += begun.damaged
        self._snapshotter.begin(begun.segments)

    async def _reload(self) -> None:
        await self._load()
        self._on_applied()

    async def _follow(self) -> StreamEngine:
        """Apply the log and stand for the leadership; returns the writer when all below its end is applied (R5)."""
        won: StreamEngine | None = None
        standing: asyncio.Task[StreamEngine | BuckramError] | None = None
        async with TaskScope(f"follower of machine {self.place.name}") as scope:
            follower = scope.spawn(_outcome(partial(tail, self.place, self.fold, self._on_applied)), "tail")
            try:
                while True:
                    self._standing = standing = scope.spawn(_outcome(self._stand), "stand")
                    await asyncio.wait((follower, standing), return_when=asyncio.FIRST_COMPLETED)
                    self._standing = None
                    if standing.done() and not standing.cancelled():
                        won, standing = _raised(standing.result()), None
                    if follower.done():
                        _raised(follower.result())
                    if won is None:
                        continue  # A take-over was asked for.
                    lost = scope.spawn(won.lost.wait(), "lost")
                    caught_up = scope.spawn(_outcome(partial(self.applied_at_least, won.next_offset)), "catch up")
                    await asyncio.wait((follower, caught_up, lost), return_when=asyncio.FIRST_COMPLETED)
                    if caught_up.done() and not won.closed:
                        _raised(caught_up.result())
                        # With more applied than this writer found, it was overtaken: another one writes by now.
                        if self.fold.applied <= won.next_offset:
                            engine, won, standing = won, None, None
                            return engine
                    if follower.done():
                        _raised(follower.result())
                    await won.abandon()
                    won = None
            finally:
                self._standing = None
                if standing is not None and standing.done() and not standing.cancelled():
                    found = standing.result()
                    won = found if isinstance(found, StreamEngine) else won
                if won is not None:
                    await won.abandon()

    async def _stand(self) -> StreamEngine:
        """Become the stream's writer when that is wanted and the lease is free, or is to be taken."""
        delays = Delays(MACHINE, self._services.runtime.rng)
        while True:
            await self._wanted.wait()
            takeover, began = self._takeovers > 0, self._loop.time()
            try:
                return await open_writer(
                    self.place.client,
                    self.place.streams,
                    self.place.name,
                    lambda head: self._policy,
                    writer_name=self._candidacy.name,
                    takeover=takeover,
                    wait=not takeover,
                    linger_ms=self._settings.linger_ms,
                    flights=FLIGHTS,
                    on_closed=lambda engine: None,
                    mirror_of=self._candidacy.mirror_of,
                    acting_for=self._purpose,
                )
            except _FINAL:
                raise
            except MirrorStream as error:
                # Callers waiting for the leadership get the error; a candidate stands again: a mirror may be promoted.
                self._denied = error
                self._answered.set()
                await asyncio.sleep(delays.take())
            except BuckramError as error:
                _log.warning("machine %s: could not become the leader, trying again: %s", self.place.name, error)
                await self._tell_if_hopeless(error, began)
                await asyncio.sleep(delays.take())

    async def _tell_if_hopeless(self, error: BuckramError, began: float) -> None:
        """Pass the error of the attempt that began at `began` to callers waiting for the leadership, if it may last."""
        if await self._attempts.hopeless(error, began):
            self._denied = error
            self._answered.set()

    async def _lead(self, engine: StreamEngine) -> None:
        """Lead until the writer is lost, or stepping down is asked for. Raises ReplicaStopped."""
        leader = Leader(engine, self.fold, self._freshness, self._settings, self._on_applied)
        self._leader = self._last = leader
        self._denied = None
        self._attempts.begin_anew()
        self.role = Role.LEADER
        self._question.set_begun()
        self._leads.set()
        self._answered.set()
        try:
            async with TaskScope(f"watch of machine {self.place.name}") as scope:
                scope.spawn(_watch(leader, str(self.place.name)), "lost")
                self._on_applied()
                await asyncio.wait((leader.ended,))
        finally:
            self._leader, self.role = None, Role.FOLLOWER
            self._leads.clear()
            self._answered.clear()
            self._snapshotter.stop()
            try:
                leader.close()
                with suppress(BuckramError):
                    await engine.close(wait=False)
                await engine.abandon()
            finally:
                leader.gone.set()
        reason = leader.ended.result()
        if isinstance(reason, ReplicaStopped | InvariantViolation):
            raise reason
        if not self._asking:
            self._wanted.clear()
        if self._candidacy.auto:
            self._loop.call_later(_STAND_BACK_S if isinstance(reason, NotLeader) else 0.0, self._wanted.set)

    # -- the end ------------------------------------------------------------------------------------------

    def _stop(self, error: BuckramError) -> None:
        """Stop for good: every later call raises this error."""
        if self._failure is None:
            self._failure = error
            if not isinstance(error, HandleClosed):
                _log.error("%s", error)
        self.role = Role.STOPPED
        self._question.set_begun()
        self._leads.set()
        self._answered.set()
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(self._failure)
                future.exception()
        self._waiting.clear()

    def _broken(self, error: BaseException) -> None:
        """Stop after a bug in one of the tasks."""
        name = str(self.place.name)
        text = f"internal error, please report it: {error!r}"
        stopped = ReplicaStopped(name, self.fold.applied, text)
        if self._leader is not None:
            self._leader.fail(stopped)
        self._stop(stopped)

    async def close(self) -> None:
        """Stop following, or give the leadership up after everything in flight. Idempotent."""
        if self._failure is None:
            self._services.check_loop()
        leader = self._last
        closed = HandleClosed(f"machine {self.place.name}: it is closed; open it again")
        if leader is not None:
            with suppress(BuckramError):
                await leader.engine.flush()
            leader.fail(closed)
            await leader.gone.wait()
        self._stop(closed)
        await self._scope.close()


async def open_replica(
    client: LedgerClient,
    streams: StreamStore,
    name: StreamName,
    policy: Policy,
    state: Replicated,
    settings: MachineSettings,
    candidacy: Candidacy,
) -> Replica:
    """Open a replica of the machine whose log is the stream `name`. Raises NoSuchStream, NotMachineLog."""
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    if head.snapshots is None:
        raise NotMachineLog(str(name))
    place = LogHandle(client, streams, name, head.uid)
    replica = Replica(place, policy, state, settings, candidacy, purpose_of(str(name), head))
    await replica.start()
    return replica


async def _watch(leader: Leader, name: str) -> None:
    await leader.engine.lost.wait()
    leader.fail(NotLeader(name, ""))


async def _outcome(work: Callable[[], Coroutine[Any, Any, T]]) -> T | BuckramError:
    """Return the result or the error of a task: a scope treats an exception of a task as a bug."""
    try:
        return await work()
    except InvariantViolation:
        raise
    except BuckramError as error:
        return error


def _raised(result: T | BuckramError) -> T:
    if isinstance(result, BuckramError):
        raise result
    return result
