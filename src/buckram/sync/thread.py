"""An event loop in a background thread, and blocking calls into it from any other thread. Knows nothing of ledgers."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from buckram.client.shared.handles import NotCopied
from buckram.errors import ConfigError, ForkedClient, HandleClosed
from buckram.runtime.process.process_setup import loop_factory

T = TypeVar("T")


class LoopThread(NotCopied):
    """A daemon thread that runs a loop until `stop`. Of no use in a forked child: threads do not survive a fork."""

    def __init__(self) -> None:
        """Start the thread. Raises ConfigError if threads are replaced by green ones, in which the loop would wait for
        itself."""
        refuse_green_threads()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waiting: dict[Future[Any], None] = {}
        self._stopped = False
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._main, name="buckram", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        rest = asyncio.all_tasks(self.loop)
        for task in rest:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    @property
    def forked(self) -> bool:
        return os.getpid() != self._process

    @property
    def usable(self) -> bool:
        return not self._stopped and not self.forked

    def check(self) -> None:
        """ForkedClient, HandleClosed, or RuntimeError for a call that would wait for itself."""
        if self.forked:
            raise ForkedClient(
                f"this client was connected in process {self._process} and this is its child {os.getpid()}: "
                "connect again here"
            )
        if self._stopped:
            raise _closed()
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("a blocking call from a callback of this client waits for itself: use another thread")

    def run(self, make: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Wait for what `make` gives, made on the loop. TimeoutError after `timeout_s`."""
        self.check()

        async def main() -> T:
            async with asyncio.timeout(timeout_s):
                return await make()

        # Under the lock, so that no call slips in behind the last look at `_waiting`.
        with self._lock:
            if self._stopped:
                raise _closed()
            future = asyncio.run_coroutine_threadsafe(main(), self.loop)
            self._waiting[future] = None
        try:
            return future.result()
        except CancelledError:
            if self._stopped:
                raise _closed() from None
            raise
        except BaseException:
            future.cancel()  # without effect unless the wait was interrupted
            raise
        finally:
            with self._lock:
                self._waiting.pop(future, None)

    def start(self, make: Callable[[], Awaitable[T]]) -> Future[T]:
        """Begin what `make` gives, made on the loop, in the order of these calls; the future has its result."""
        self.check()

        async def main() -> T:
            return await make()

        return asyncio.run_coroutine_threadsafe(main(), self.loop)

    def post(self, make: Callable[[], Awaitable[object]]) -> None:
        """Run it some time and wait for nothing; callable from a garbage collector. Dropped when stopped or forked."""

        def begin() -> None:
            if not self._stopped:
                asyncio.ensure_future(main())  # noqa: RUF006 - nobody waits for it; _main ends what is left

        async def main() -> None:
            await make()

        if self.usable:
            self.loop.call_soon_threadsafe(begin)

    def stop(self, last: Callable[[], Awaitable[None]] | None = None, timeout_s: float | None = None) -> None:
        """Run `last`, end the loop and its thread; calls that still wait get HandleClosed. Idempotent."""
        if not self.usable:
            return
        try:
            if last is not None:
                self.run(last, timeout_s)
        finally:
            with self._lock:
                first, self._stopped = not self._stopped, True
            if first:
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._thread.join(timeout_s)
                with self._lock:
                    for future in self._waiting:
                        future.cancel()


def refuse_green_threads() -> None:
    """Raise ConfigError if gevent or eventlet has replaced the threads, locks or sockets that the loop uses."""
    for name, module, question in (
        ("gevent", "gevent.monkey", "is_module_patched"),
        ("eventlet", "eventlet.patcher", "is_monkey_patched"),
    ):
        asked = getattr(sys.modules.get(module), question, None)
        if asked is None:
            continue
        patched = [part for part in ("thread", "threading", "select", "selectors", "socket") if asked(part)]
        if patched:
            raise ConfigError(
                f"{name} has patched {', '.join(patched)} in this process, and the client needs a real thread with an "
                "event loop: use workers of threads or processes (gunicorn --worker-class gthread, celery "
                "--pool threads), call connect() in a process that is not patched, or ask a gateway over HTTP "
                "(`buckram gateway`)"
            )


def each(thread: LoopThread, step: Callable[[], Awaitable[T | None]], source: AsyncIterator[Any]) -> Iterator[T]:
    """Yield what `step` returns until None. The source is closed on the loop, also when the iterator is just
    dropped."""
    try:
        while (item := thread.run(step)) is not None:
            yield item
    finally:
        if isinstance(source, AsyncGenerator):
            thread.post(source.aclose)


def flatten(
    thread: LoopThread, step: Callable[[], Awaitable[Sequence[T] | None]], source: AsyncIterator[Any]
) -> Iterator[T]:
    for chunk in each(thread, step, source):
        yield from chunk


def _closed() -> HandleClosed:
    return HandleClosed("the client is closed; connect again")


def _new_loop() -> asyncio.AbstractEventLoop:
    return (loop_factory(os.environ) or asyncio.new_event_loop)()
