"""Machine: the handle for a class with apply(command), the same state in every process that opens it.

`m = await ns.machine("inventory", Inventory)`; `await m.execute(command)`; `await m.read(lambda state: ...)`. Not here:
how replicas agree (`state/machine/replica.py`); the rules for a class are in docs/tutorial/machine.md.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypeVar

from buckram.client.shared.handles import NotBlocking
from buckram.core.machine.fold import LogEntry
from buckram.core.machine.sessions import CommandToken, Outcome, Sequences, parse_token
from buckram.core.machine.value_encoding import decode_value, encode_value
from buckram.errors import (
    CommandForgotten,
    CommandRefused,
    CommandUnknown,
    InvalidArgument,
    SnapshotDamaged,
    UnknownCommand,
)
from buckram.state.machine.replica import Replica

R = TypeVar("R")
Consistency = Literal["linearizable", "leader", "stale"]
"""Required freshness of the state that a read sees; `Machine.read` explains each value."""


class StateMachine(Protocol):
    """Interface of a state machine's class. All methods run on the event loop and must not wait.

    It may also have `encode(command) -> bytes` and `decode(data) -> command` (without them commands are bytes or what
    JSON has), `validate(command)`, which raises for a command that must not be written, `digest() -> bytes` of the
    state, and an attribute `now_us`, which is set to the time of the log (microseconds UTC) before each command. With
    `now_us` it may have `set_back(time_us)`: the log's time was ahead, as clocks were wrong, and goes back to this one,
    so that times that the state keeps and that are later are to be taken for this one.
    """

    def apply(self, command: Any) -> Any:
        """Change the state by a command and return a result (bytes, or what JSON has), from these two alone.

        Raise CommandRefused, before any change, for a command that the state does not allow, and UnknownCommand for one
        that this version does not know. Any other error stops the replica.
        """
        ...

    def snapshot(self) -> bytes | Iterable[bytes]:
        """Return the state as bytes, equal for equal states; or an iterable that later commands do not disturb."""
        ...

    def restore(self, data: bytes) -> None:
        """Take over the state of a snapshot. It is called on a new instance."""
        ...


M = TypeVar("M", bound=StateMachine)
S = TypeVar("S", bound=StateMachine)


class ClassState(Generic[S]):
    """Adapter of a state machine's class to the state of a replica (Replicated)."""

    def __init__(self, factory: Callable[[], S]) -> None:
        self._factory = factory
        self.instance = factory()
        self._look_at_class()
        for needed in ("apply", "snapshot", "restore"):
            if not callable(getattr(self.instance, needed, None)):
                raise InvalidArgument(f"{factory!r} gives no state machine: {needed}() is missing")

    def _look_at_class(self) -> None:
        """Find the optional methods of the class, once and not for each command."""
        instance: Any = self.instance
        self._validate = getattr(instance, "validate", None)
        self._encode = getattr(instance, "encode", None)
        self._decode: Callable[[bytes], Any] = getattr(instance, "decode", decode_value)
        self._has_time = hasattr(instance, "now_us")

    def encode(self, command: Any) -> bytes:
        """Return a command's bytes if the class has nothing against it. Raises InvalidArgument, or validate's error."""
        if self._validate is not None:
            self._validate(command)
        if self._encode is None:
            return encode_value(command)
        data = self._encode(command)
        if not isinstance(data, bytes):
            raise InvalidArgument(f"encode() gave {type(data).__name__}, and not bytes")
        return data

    def apply_entry(self, entry: LogEntry) -> bytes:
        instance: Any = self.instance
        try:
            command = self._decode(entry.payload)
        except (ValueError, KeyError) as error:
            raise UnknownCommand(f"its bytes cannot be decoded: {error}") from error
        if self._has_time:
            instance.now_us = entry.time_us
        return encode_value(instance.apply(command), "a result of apply()")

    def set_back(self, time_us: int) -> None:
        instance: Any = self.instance
        if self._has_time and hasattr(instance, "set_back"):
            instance.now_us = time_us
            instance.set_back(time_us)

    def snapshot(self) -> Iterable[bytes]:
        data = self.instance.snapshot()
        if isinstance(data, bytes | bytearray | memoryview):
            return (bytes(data),)
        return data

    def fault(self, chunks: Sequence[bytes]) -> str:
        return ""  # Only the class can tell, by failing.

    def room(self) -> None:
        return None

    def restore(self, chunks: Iterable[bytes]) -> None:
        instance = self._factory()
        pieces = list(chunks)
        if pieces:
            with _without_gc():
                instance.restore(b"".join(pieces))
        self.instance = instance
        self._look_at_class()

    def digest(self) -> bytes:
        instance: Any = self.instance
        if hasattr(instance, "digest"):
            return bytes(instance.digest())
        found = hashlib.sha256()
        for chunk in self.snapshot():
            found.update(chunk)
        return found.digest()


@contextmanager
def _without_gc() -> Iterator[None]:
    """Switch the garbage collector off: restoring a large state makes millions of objects, and collecting would take
    more time than all the rest."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Machine(NotBlocking, Generic[M]):
    """One process's replica of a machine, from `ns.machine(name, factory)`. `async with` or close().

    Errors of every call: ReplicaStopped (it met a command that it cannot apply), ReplicaDiverged, StateLost,
    HandleClosed.
    """

    def __init__(self, name: str, replica: Replica, state: ClassState[M], on_closed: Callable[[object], None]) -> None:
        self.name = name
        """Full name, NAMESPACE/MACHINE."""
        self._replica, self._state, self._on_closed = replica, state, on_closed
        self._sequences: Sequences | None = None
        """Session of commands without a token of the caller; results are dropped when they were fetched."""
        self._kept: Sequences | None = None
        """Session of the tokens that `token` returned."""
        self._opening: asyncio.Lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Machine {self.name} {self.role} applied={self.applied}>"

    # -- what one can know --------------------------------------------------------------------------------

    @property
    def role(self) -> str:
        """Role of this replica: "follower", "leader", or "stopped" (then each call raises the reason)."""
        return self._replica.role.value

    @property
    def applied(self) -> int:
        """Offset of the next record; everything below it is applied here."""
        return self._replica.fold.applied

    @property
    def damaged_snapshots(self) -> tuple[SnapshotDamaged, ...]:
        """A SnapshotDamaged for each published snapshot that could not be restored here: the one before was taken."""
        return tuple(self._replica.damaged_snapshots)

    async def check_writable(self) -> None:
        """Raise MirrorStream for a machine whose log is a mirror of one in another cluster. Raises MetadataError."""
        await self._replica.check_writable()

    async def leader(self) -> str:
        """Return the name of the process that leads; empty if none does."""
        return await self._replica.leader_name()

    # -- executing ----------------------------------------------------------------------------------------

    async def execute(self, command: Any, *, token: str | None = None) -> Any:
        """Execute a command on this replica, the leader, and return what apply returned, once the command is durable.

        The command is applied once for each token, however often and by whoever it is repeated; without one it gets a
        token of its own. Raises CommandRefused (apply refused it), NotLeader (nothing was written), CommandUnknown
        (repeat it with the token of the error), CommandForgotten, CommandTooLarge, InvalidArgument. Cancelling it
        abandons the wait, not the command.
        """
        payload = self._state.encode(command)
        if token is not None:
            return _result(await self._replica.execute(self._given(token), 0, payload))
        again = False
        while True:
            own = self._sequences or await self._session()
            given, known = own.take(), True
            try:
                flying = self._replica.begin(given, own.lowest, payload)
                if flying is None:
                    return _result(await self._replica.execute(given, own.lowest, payload))
                outcome = await flying
                return _result(outcome if type(outcome) is Outcome else self._replica.outcome_of(given, outcome))
            except CommandUnknown:
                known = False
                raise
            except CommandForgotten:
                if again:
                    raise
                # A new token that is not known: replicas dropped the session after a long silence.
                self._sequences, again = None, True
            finally:
                # Its result is not kept, unless the caller does not know the outcome.
                if known:
                    own.done(given)

    async def token(self) -> str:
        """Return a new token; stored before its command is executed, it lets a restarted program repeat the command.

        The results of the last 4096 tokens of this handle are kept. Raises NotLeader.
        """
        async with self._opening:
            if self._kept is None:
                self._kept = Sequences(await self._replica.open_session())
            return self._kept.take().text(self._replica.place.uid)

    def _given(self, text: str) -> CommandToken:
        log, token = parse_token(text)
        if log != self._replica.place.uid:
            raise CommandForgotten(self.name, text, "it is of another machine, of this name or another")
        return token

    async def _session(self) -> Sequences:
        async with self._opening:
            if self._sequences is None:
                self._sequences = Sequences(await self._replica.open_session())
            return self._sequences

    # -- reading ------------------------------------------------------------------------------------------

    async def read(
        self,
        function: Callable[[M], R],
        consistency: Consistency = "linearizable",
        *,
        at_most_s: float | None = None,
        after: int | None = None,
    ) -> R:
        """Return function(state). It must not change the state, nor keep parts of it.

        "linearizable": everything that was executed anywhere before this call is in the state; leader only, and costs a
        round to the bookies, shared by all reads that wait. "leader": the state of a process that believes that it
        leads, without a question. "stale": this replica's state as it is, at least that of the log's end when it was
        opened; with `at_most_s` it lacks nothing that was acknowledged so many seconds before the call. With `after`
        everything below this offset (`applied` of the leader after a write) is in it. Raises NotLeader, TooStale,
        InvalidArgument.
        """
        if consistency not in ("linearizable", "leader", "stale"):
            raise InvalidArgument(f"consistency {consistency!r}: choose linearizable, leader or stale")
        if consistency != "stale" and at_most_s is not None:
            raise InvalidArgument(f'at_most_s={at_most_s!r} is for consistency="stale", not {consistency!r}')
        replica = self._replica
        if consistency == "linearizable":
            await replica.prove()
        elif consistency == "leader":
            await replica.leading()
        else:
            await replica.begun()
            if at_most_s is not None:
                if (
                    isinstance(at_most_s, bool)
                    or not isinstance(at_most_s, int | float)
                    or not 0 <= at_most_s <= 86_400
                ):
                    raise InvalidArgument(f"at_most_s={at_most_s!r}: needs seconds from 0 to 86400")
                await replica.fresh(at_most_s)
        if after is not None:
            if type(after) is not int or after < 0:
                raise InvalidArgument(f"after={after!r}: an offset is an int from 0 on")
            await replica.applied_at_least(after)
        return function(self._state.instance)

    # -- leading ------------------------------------------------------------------------------------------

    async def lead(self, *, takeover: bool = False) -> None:
        """Wait until this replica leads. `takeover`: fence the present leader, who may not know what is in flight.

        Raises MirrorStream if its log is a mirror of one in another cluster, which is led there.
        """
        await self._replica.lead(takeover=takeover)

    async def step_down(self) -> None:
        """Stop leading after everything in flight, so that another replica can."""
        await self._replica.step_down()

    async def snapshot(self) -> int:
        """Take a snapshot now and return the offset of its state once it is published. NotLeader, SnapshotFailed."""
        return await self._replica.snapshot()

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop following or leading, after everything in flight. Idempotent."""
        await self._replica.close()
        self._on_closed(self)

    async def __aenter__(self) -> Machine[M]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def process_name() -> str:
    """Return the name by which others see this process when it leads: HOST:PID."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _result(outcome: Outcome) -> Any:
    if outcome.refused:
        raise CommandRefused(outcome.result.decode(errors="replace"))
    return decode_value(outcome.result)
