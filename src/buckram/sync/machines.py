"""The blocking faces of a replicated machine and of objects.

The methods of a machine's class run in the client's thread, as reads' functions do.
"""

from __future__ import annotations

from types import TracebackType

from buckram.client.shared.handles import NotAsync
from buckram.state.machine.machine import M
from buckram.state.machine.machine import Machine as _Machine
from buckram.state.objects.objects import Objects as _Objects
from buckram.sync.calls.machines import MachineCalls, ObjectsCalls
from buckram.sync.thread import LoopThread


class Objects(ObjectsCalls, NotAsync):
    """Objects without async; see buckram.Objects. Safe to use from several threads; `with` or close()."""

    def __init__(self, thread: LoopThread, objects: _Objects) -> None:
        super().__init__(thread, objects)
        self.namespace = objects.namespace
        """The namespace's name."""

    def __enter__(self) -> Objects:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread.forked:
            self.close()


class Machine(MachineCalls[M], NotAsync):
    """See buckram.Machine. Safe to use from several threads; `with` or close()."""

    def __init__(self, thread: LoopThread, machine: _Machine[M]) -> None:
        super().__init__(thread, machine)
        self.name = machine.name
        """NAMESPACE/MACHINE."""

    def __enter__(self) -> Machine[M]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread.forked:
            self.close()
