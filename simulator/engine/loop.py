"""An asyncio event loop with virtual time, one seeded scheduler, and processes that pause and crash.

Every handle belongs to the simulated process in whose context it was created. Handles of one process run in the order
in which they became ready, as asyncio guarantees; the seed chooses the process that runs next. When nothing is ready,
time advances to the next timer. A crashed process runs no more code: its handles are discarded, and its tasks stay
referenced until the life is over, because collecting a suspended coroutine would run its `finally` blocks.

Not here: sockets, threads, signals, child processes. Network, disk and metadata are simulated beside this module.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol, TypeVar, TypeVarTuple

from simulator.engine.trace import Trace

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("buckram_sim_process")


class Stuck(Exception):
    """The life cannot go on: nothing is ready and no timer is set, or it runs without end."""


class Crashed(BaseException):
    """Raised by the simulated seams into code of a dead process, so that it ends without any effect."""


class Process:
    """One simulated operating system process. The process `world` is the simulator itself."""

    def __init__(self, loop: SimLoop, name: str, index: int) -> None:
        self.loop, self.name, self.index = loop, name, index
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.ready: deque[_SimHandle | _SimTimer] = deque()
        self.listed = False
        self.paused = False
        self.dead = False
        self.steps = 0
        self.crash_step: int | None = None
        """The number of handles before which it dies."""
        self._on_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<process {self.name}{' dead' if self.dead else ''}>"

    def spawn(self, coro: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Start a coroutine as code of this process."""
        return self.context.copy().run(self._spawn, coro, name)

    def _spawn(self, coro: Coroutine[Any, Any, T], name: str | None) -> asyncio.Task[T]:
        return self.loop.create_task(coro, name=name)

    def on_death(self, done: Callable[[], None]) -> None:
        """Call `done` when the process crashes, synchronously; for the simulated seams only."""
        self._on_death.append(done)

    def crash_after(self, handles: int) -> None:
        """Crash just before this process would run its n-th handle from now on (so, at any await)."""
        self.crash_step = self.steps + handles

    def crash(self) -> None:
        """Kill the process: none of its code runs any more, not even `finally` blocks."""
        if self.dead:
            return
        self.dead = True
        self.loop.trace.note(self.name, "process dies")
        self.ready.clear()
        for done in self._on_death:
            done()

    def pause(self) -> None:
        if not self.paused and not self.dead:
            self.paused = True
            self.loop.trace.note(self.name, "process stops (pause)")

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.loop.trace.note(self.name, "process continues")
            self.loop.list_ready(self)

    def check_alive(self) -> None:
        if self.dead:
            raise Crashed(self.name)


class _SimFuture(asyncio.Future[Any]):
    """Hashed by a counter: the standard library keeps futures in sets, whose order must not depend on addresses.

    `SimLoop.create_future` sets it: a constructor in Python costs more than all the rest of a future.
    """

    __slots__ = ("serial",)
    serial: int

    def __hash__(self) -> int:
        return self.serial


class _SimTask(asyncio.Task[Any]):
    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: SimLoop, **kwargs: Any) -> None:
        loop.serial += 1
        self._serial = loop.serial
        context = kwargs.get("context")
        self.process = PROCESS.get(loop.world) if context is None else context.get(PROCESS, loop.world)
        super().__init__(coro, loop=loop, **kwargs)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._serial


class _SimHandle(asyncio.Handle):
    """A handle that does not ask the loop for its debug mode. A life makes tens of thousands."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: SimLoop, context: contextvars.Context
    ) -> None:
        self._callback, self._args, self._loop, self._context = callback, args, loop, context
        self._cancelled = False
        self._source_traceback = self._repr = None


class _SimTimer(asyncio.TimerHandle):
    """A timer of the same kind."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: contextvars.Context,
    ) -> None:
        self._callback, self._args, self._loop, self._context = callback, args, loop, context
        self._cancelled = self._scheduled = False
        self._source_traceback = self._repr = None
        self._when = when

    def cancel(self) -> None:
        """Cancelled timers stay in the heap until their time; lives are short."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]  # as asyncio does


class ReportUncaught(Protocol):
    """Gets each exception that no code of a process has caught."""

    def __call__(self, process: Process, message: str, error: BaseException | None, /) -> None: ...


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one life. Times are virtual seconds."""

    def __init__(
        self,
        rng: random.Random,
        trace: Trace,
        *,
        on_error: ReportUncaught | None = None,
        max_steps: int = 3_000_000,
        max_idle_steps: int = 100_000,
    ) -> None:
        self.rng, self.trace = rng, trace
        self.serial = 0
        self.steps = 0
        self._max_steps, self._max_idle_steps = max_steps, max_idle_steps
        self._on_error = on_error
        self._now = 0.0
        self._timers: list[tuple[float, int, _SimTimer]] = []
        self._timer_serial = 0
        self._runnable: list[Process] = []
        self._tasks: list[_SimTask] = []
        self._idle_steps = 0
        self._running = self._closed = self._stopping = False
        self.processes: list[Process] = []
        self.job_late_s: Callable[[], float] | None = None
        """Returns by how many seconds a job for a thread begins late; None: none does."""
        self.world = self.process("world")

    # processes

    def process(self, name: str) -> Process:
        process = Process(self, name, len(self.processes))
        self.processes.append(process)
        return process

    def list_ready(self, process: Process) -> None:
        """Make the process a candidate of the scheduler if it has a ready handle."""
        if process.ready and not process.listed and not process.paused and not process.dead:
            process.listed = True
            self._runnable.append(process)

    # what asyncio code calls

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = _SimHandle(callback, args, self, context)
        self._make_ready(handle, context)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def _make_ready(self, handle: _SimHandle | _SimTimer, context: contextvars.Context) -> None:
        process = context.get(PROCESS, self.world)
        if process.dead or self._closed:
            return
        process.ready.append(handle)
        if not process.listed and not process.paused:
            process.listed = True
            self._runnable.append(process)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self._set_timer(self._now + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self._set_timer(when, callback, args, context)

    def _set_timer(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> _SimTimer:
        timer = _SimTimer(when, callback, args, self, contextvars.copy_context() if context is None else context)
        self._timer_serial += 1
        heapq.heappush(self._timers, (when, self._timer_serial, timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        future = _SimFuture(loop=self)
        self.serial += 1
        future.serial = self.serial
        return future

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = _SimTask(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > 4096:
            self._tasks = [t for t in self._tasks if not t.done()]
        return task

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignored: debug mode would put real time into the traces."""

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def stop(self) -> None:
        self._stopping = True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        task = context.get("task") or context.get("future")
        process = task.process if isinstance(task, _SimTask) else PROCESS.get(self.world)
        if self._closed or process.dead or self._on_error is None:
            return
        error = context.get("exception")
        if not isinstance(error, Crashed):
            self._on_error(process, str(context.get("message")), error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def _finish_asyncgen(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed and not PROCESS.get(self.world).dead:
            self.create_task(generator.aclose(), name="aclose")

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: an abandoned generator was closed when its last reference was dropped."""

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run the function without a thread, now or as late as `job_late_s` says; its result comes in a later turn."""
        future: asyncio.Future[T] = self.create_future()
        late = 0.0 if self.job_late_s is None else self.job_late_s()
        if late:
            self.call_later(late, self._run_job, future, func, args)
        else:
            self._run_job(future, func, args)
        return future

    def _run_job(self, future: asyncio.Future[T], func: Callable[[*Ts], T], args: tuple[*Ts]) -> None:
        settle: Callable[[], None]
        try:
            result = func(*args)
        except Exception as error:
            failed = error
            settle = lambda: None if future.done() else future.set_exception(failed)  # noqa: E731
        else:
            settle = lambda: None if future.done() else future.set_result(result)  # noqa: E731
        self.call_soon(settle)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there are no threads."""

    # running

    def run_until_complete(self, future: Any) -> Any:
        """Run the coroutine, as code of `world`, to its end. Raises Stuck if it would never end."""
        main = self.world.spawn(future) if asyncio.iscoroutine(future) else future
        main.add_done_callback(lambda _: self.stop(), context=self.world.context)
        self._run()
        if not main.done():
            raise Stuck(f"stopped after {self.steps} steps at {self._now:.3f} s before the life was over")
        return main.result()

    def run_forever(self) -> None:
        self._run()

    def _run(self) -> None:
        previous = events._get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        self._running, self._stopping = True, False
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=lambda _: None, finalizer=self._finish_asyncgen)
        try:
            while not self._stopping:
                if self._runnable:
                    self._run_ready()
                else:
                    self._advance_time()
        finally:
            self._running = False
            events._set_running_loop(previous)
            sys.set_asyncgen_hooks(*hooks)

    def _run_ready(self) -> None:
        """Run ready handles until there is none or the life is over, each time some of one process.

        The seed chooses the process and how many. This and the next two functions are run most in every life.
        """
        candidates, draw, mix = self._runnable, self.rng.random, self.trace.mix
        while candidates and not self._stopping:
            several = len(candidates) > 1
            at = int(draw() * len(candidates)) if several else 0
            process = candidates[at]
            burst = len(process.ready)
            if not burst or process.paused or process.dead:
                candidates[at] = candidates[-1]
                candidates.pop()
                process.listed = False
                continue
            if several and burst > 1:
                burst = 1 + int(draw() * burst)
            mix(process.index << 16 | burst)
            self._run_burst(process, burst)
            self._idle_steps += burst
            if self._idle_steps > self._max_idle_steps or self.steps > self._max_steps:
                where = f"{self.steps} steps, {self._idle_steps} of them at {self._now:.6f} s"
                raise Stuck(f"{process.name} spins: {where}; {self.waiting()}")

    def _run_burst(self, process: Process, burst: int) -> None:
        """Run so many handles of a process, unless it stops."""
        ready = process.ready
        for _ in range(burst):
            if process.dead or process.paused or self._stopping:
                return
            if process.crash_step is not None and process.steps >= process.crash_step:
                process.crash()
                return
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process.steps += 1
            self.steps += 1
            try:
                handle._context.run(handle._callback, *handle._args)
            except Crashed:
                pass
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                if not process.dead and self._on_error is not None:
                    self._on_error(process, f"exception in {handle!r}", error)
            del handle  # what it refers to is finalised now, not after the next one

    def _advance_time(self) -> None:
        """Advance the time to the next timers and make them ready."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stuck(f"deadlock at {self._now:.3f} s: nothing is ready and no timer is set; {self.waiting()}")
        self._now = max(self._now, timers[0][0])
        self.trace.now = self._now
        self.trace.mix(int(self._now * 1e9))
        self._idle_steps = 0
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                self._make_ready(handle, handle._context)

    def waiting(self) -> str:
        """Describe the unfinished tasks of living processes, for the report of a life that is stuck."""
        rows = []
        for task in self._tasks:
            process = task.process
            if not task.done() and not process.dead:
                stack = task.get_stack(limit=1)
                where = f"{stack[0].f_code.co_filename.rsplit('/', 1)[-1]}:{stack[0].f_lineno}" if stack else "?"
                rows.append(f"{process.name}/{task.get_name()} at {where}")
        return "waiting: " + (", ".join(rows[:40]) or "nobody")

    def close(self) -> None:
        """End the life: close every coroutine that is still suspended. Whatever they do then has no effect."""
        unseen = any(task.done() and task._log_traceback for task in self._tasks)
        self._tasks = [task for task in self._tasks if not task.done()]  # those with an unseen exception report it now
        if unseen:
            gc.collect()  # from Python 3.12 on the frames of the exception hold its task
        self._closed = True
        for process in self.processes:
            process.dead = True
            process.ready.clear()
        self._timers.clear()
        self._runnable.clear()
        for task in self._tasks:
            if not task.done():
                _close_coroutine(task)
        self._tasks.clear()


def make_loop(
    rng: random.Random,
    trace: Trace,
    on_error: ReportUncaught | None = None,
) -> SimLoop:
    return SimLoop(rng, trace, on_error=on_error)  # type: ignore[abstract]  # no sockets, signals, processes in here


def _close_coroutine(task: asyncio.Task[Any]) -> None:
    coro = task.get_coro()
    for _ in range(10):
        try:
            coro.close()
        except RuntimeError:
            continue  # it awaited something in a finally block; close again until it ends
        except BaseException:
            return
        return
