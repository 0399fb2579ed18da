"""TaskScope: the only way a long-lived object starts tasks. Nothing else lives here.

An object that owns tasks owns one scope and closes it in its own close(); then none of its tasks is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from buckram.core.backoff import FOLLOWER, Delays
from buckram.seams import StartedThread

T = TypeVar("T")
_LOOK_S = 0.002
_log = logging.getLogger("buckram.tasks")


async def thread_ended(thread: StartedThread) -> None:
    """Wait for the end of a thread, also while the interpreter ends, when the loop's own threads are gone already."""
    while thread.is_alive():  # noqa: ASYNC110 - a thread sets no event when it has really ended
        await asyncio.sleep(_LOOK_S)


class Cancellable(Protocol):
    """Its `cancel` drops nothing from a scope before the loop's next turn."""

    def cancel(self) -> object: ...


OnError = Callable[[BaseException], None]
"""Called once with what a task raised, other than cancellation."""


class TaskScope:
    """A set of tasks that ends together.

    A task that fails with anything but cancellation is logged and reported once to `on_error`; the others go on.
    """

    def __init__(self, name: str, on_error: OnError | None = None) -> None:
        self._name = name
        self._on_error = on_error
        # A dict, not a set: cancellation order must be the same in every run of the simulator.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._held: dict[Cancellable, None] = {}
        self.closed = False
        """True once it ends, or has ended: no task starts any more."""

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start `coro` now. RuntimeError, and it is closed, when the scope is closed already or no loop runs."""
        try:
            if self.closed:
                raise RuntimeError(f"{self._name} is closed, {name} cannot start")
            loop = asyncio.get_running_loop()  # None runs where a coroutine is closed after its loop has ended.
        except RuntimeError:
            coro.close()
            raise
        task = loop.create_task(coro, name=f"{self._name}:{name}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def keep(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, *, wake: Callable[[], None] = lambda: None
    ) -> asyncio.Task[None]:
        """Start a task that runs as long as the scope: a failure is reported, and the task is restarted after a delay.

        Meant for followers of a state: one that ended for good would leave a stale state behind. `wake` is called
        before it begins anew, to have it look at once.
        """

        async def again() -> None:
            delays, loop = Delays(FOLLOWER), asyncio.get_running_loop()
            while True:
                began = loop.time()
                try:
                    return await work()
                except Exception as error:
                    self._report(f"{self._name}:{name}", error)
                if loop.time() - began > FOLLOWER.most_s:
                    delays.reset()
                await asyncio.sleep(delays.take())
                wake()

        return self.spawn(again(), name)

    def hold(self, one: Cancellable) -> None:
        """Cancel this with the tasks, unless `drop` comes first: for who waits without a task."""
        self._held[one] = None

    def drop(self, one: Cancellable) -> None:
        self._held.pop(one, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._report(task.get_name(), error)

    def _report(self, name: str, error: BaseException) -> None:
        if isinstance(error, OSError) and not _log.isEnabledFor(logging.DEBUG):
            _log.error("task %s ended: %s", name, error)  # of a disk or a network: where in here says nothing
        else:
            _log.error("task %s failed: %r", name, error, exc_info=error)
        if self._on_error is not None:
            self._on_error(error)

    def cancel(self) -> None:
        """Ask every task to stop, without waiting; new tasks may still be spawned."""
        for one in self._held:
            one.cancel()
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait until they are gone; idempotent; safe from inside one of them (it is left out)."""
        self.closed = True
        for one in self._held:
            one.cancel()
        self._held.clear()
        current = asyncio.current_task()
        while rest := [task for task in self._tasks if task is not current]:
            for task in rest:
                task.cancel()
            await asyncio.wait(rest)
            for task in rest:
                self._tasks.pop(task, None)

    async def __aenter__(self) -> TaskScope:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
