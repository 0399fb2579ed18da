"""Threads of a simulated process: real ones, of which one runs at a time, while the simulation waits for it.

A thread runs from one place where it waits (for a job, for a decision) to the next, as one step of its process; what it
waits for makes it ready, and it goes on a little later. So a seed decides everything, and a process that is paused or
dead runs no threads either. Not here: jobs that nobody waits for inside (`loop.py: run_in_executor`).
"""

from __future__ import annotations

import contextvars
import random
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Any

from simulator.engine.loop import Crashed, Process, SimLoop

_DELAYS_S = (0.0, 0.0, 0.0, 0.0002, 0.005, 0.05)


class _Thread:
    """One thread. `ready` returns whether the thread may go on."""

    def __init__(self, owner: SimThreads, run: Callable[[], None], name: str) -> None:
        self._owner = owner
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.ready: Callable[[], bool] = lambda: True
        self.scheduled = False
        self.ended = False
        self.error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run, run), name=name, daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return not self.ended

    def _run(self, run: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            run()
        except Crashed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self._back.release()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Let the loop go on until `ready` returns true. Called in the thread."""
        self.ready = ready
        self._back.release()
        self._go.acquire()

    def step(self) -> None:
        """Let the thread run to the next place where it waits. Called on the loop. Raises the thread's own error."""
        owner = self._owner
        owner.running = self
        self._go.release()
        self._back.acquire()
        owner.running = None
        if self.ended:
            self._thread.join()
            if self.error is not None and not owner.over:
                raise self.error


class SimThreads:
    """A seams.Threads, for one process."""

    def __init__(self, loop: SimLoop, process: Process, rng: random.Random) -> None:
        self.loop, self.process, self._rng = loop, process, rng
        self._threads: list[_Thread] = []
        self.running: _Thread | None = None
        self.over = False

    def queue(self) -> _Queue:
        return _Queue(self)

    def event(self) -> _Event:
        return _Event(self)

    def now(self) -> float:
        return self.loop.time()

    def sleep(self, seconds: float) -> None:
        until = self.loop.time() + seconds
        self.loop.call_at(until, self.wake, context=self.process.context)
        self.wait(lambda: self.loop.time() >= until)

    def start(self, run: Callable[[], None], name: str) -> _Thread:
        thread = _Thread(self, run, name)
        self._threads.append(thread)
        self.wake()
        return thread

    def wait(self, ready: Callable[[], bool]) -> None:
        """Let others go on until `ready` returns true, or the life is over. Called in a thread."""
        assert self.running is not None, "the loop waits for itself"
        self.running.wait(ready)

    def wake(self) -> None:
        """Let the threads that are ready go on soon."""
        if self.over:
            return
        for thread in self._threads:
            if not thread.scheduled and not thread.ended and thread is not self.running and thread.ready():
                thread.scheduled = True
                delay = self._rng.choice(_DELAYS_S)
                self.loop.call_later(delay, self._turn, thread, context=self.process.context)

    def _turn(self, thread: _Thread) -> None:
        thread.scheduled = False
        if not thread.ended and thread.ready():
            thread.step()
        self._threads = [thread for thread in self._threads if not thread.ended]
        self.wake()

    def close(self) -> None:
        """End all threads, which then release what they have open. Called after the life."""
        self.over = True
        for thread in self._threads:
            while not thread.ended:
                thread.step()
        self._threads.clear()


class _Queue:
    """A seams.JobQueue. When the life is over, every thread is told to end."""

    def __init__(self, threads: SimThreads) -> None:
        self._threads = threads
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._threads.wake()

    def get(self) -> Any:
        self._threads.wait(lambda: bool(self._items))
        return None if self._threads.over else self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()


class _Event:
    """A seams.Signal."""

    def __init__(self, threads: SimThreads) -> None:
        self._threads = threads
        self._set = False

    def set(self) -> None:
        self._set = True
        self._threads.wake()

    def is_set(self) -> bool:
        return self._set

    def wait(self) -> bool:
        if not self._set:
            self._threads.wait(self.is_set)
        if not self._set:
            raise Crashed(self._threads.process.name)
        return True


__all__ = ["SimThreads"]
