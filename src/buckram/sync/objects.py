"""The blocking face of objects."""

from __future__ import annotations

from types import TracebackType

from buckram.client.shared.handles import NotAsync
from buckram.state.objects.objects import Objects as _Objects
from buckram.sync.calls.machines import ObjectsCalls
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
