"""The blocking face of a replicated machine. The class's methods run in the client's thread, as reads' functions do."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from buckram.client.shared.handles import NotAsync
from buckram.errors import SnapshotDamaged
from buckram.state.machine.machine import Consistency, M
from buckram.state.machine.machine import Machine as _Machine
from buckram.sync.thread import LoopThread

R = TypeVar("R")


class Machine(NotAsync, Generic[M]):
    """See buckram.Machine. Safe to use from several threads; `with` or close()."""

    def __init__(self, thread: LoopThread, machine: _Machine[M]) -> None:
        self._thread, self._machine = thread, machine
        self.name = machine.name
        """NAMESPACE/MACHINE."""

    def __repr__(self) -> str:
        return repr(self._machine).replace("<", "<sync.", 1)

    @property
    def role(self) -> str:
        """Role of this replica: "follower", "leader", or "stopped"."""
        return self._machine.role

    @property
    def applied(self) -> int:
        """The offset of the next record; everything below it is applied here."""
        return self._machine.applied

    @property
    def damaged_snapshots(self) -> tuple[SnapshotDamaged, ...]:
        """Published snapshots that could not be restored here, and whose predecessors were taken."""
        return self._machine.damaged_snapshots

    def leader(self) -> str:
        """Return the name of the process that leads; empty if there is none."""
        return self._thread.run(self._machine.leader)

    def execute(self, command: Any, *, token: str | None = None) -> Any:
        """Execute a command on this replica, the leader; errors as in the async one."""
        return self._thread.run(lambda: self._machine.execute(command, token=token))

    def token(self) -> str:
        """Return a new token, under which a command may be repeated."""
        return self._thread.run(self._machine.token)

    def read(
        self,
        function: Callable[[M], R],
        consistency: Consistency = "linearizable",
        *,
        at_most_s: float | None = None,
        after: int | None = None,
    ) -> R:
        """Return function(state), which is called in the client's thread; arguments and errors as in the async one."""
        return self._thread.run(lambda: self._machine.read(function, consistency, at_most_s=at_most_s, after=after))

    def lead(self, *, takeover: bool = False) -> None:
        """Wait until this replica leads. `takeover`: fence the present leader."""
        self._thread.run(lambda: self._machine.lead(takeover=takeover))

    def step_down(self) -> None:
        """Stop leading after everything in flight, so that another replica can."""
        self._thread.run(self._machine.step_down)

    def snapshot(self) -> int:
        """Take a snapshot now and return the offset of its state, once it is published."""
        return self._thread.run(self._machine.snapshot)

    def close(self) -> None:
        """Stop following or leading, after everything in flight. Idempotent."""
        self._thread.run(self._machine.close)

    def __enter__(self) -> Machine[M]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread.forked:
            self.close()
