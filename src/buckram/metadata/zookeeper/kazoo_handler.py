"""Handler in which kazoo's client runs here: one thread for a session, few system calls, results handed on where they
arrive.

kazoo takes threads, sockets and results from a handler. Its own one switches threads twice for each result and makes
about ten system calls for each request; with thousands of requests on their way everything here is done in blocks. What
the requests are is kazoo_session.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import KazooTimeoutError

_log = logging.getLogger("buckram.zookeeper")
_BLOCK = 64 * 1024
_WRITE_BLOCK = 16 * 1024
_UNSENT_LIMIT = 4 * _BLOCK
_SENDS_IN_A_ROW = 32
"""Number of requests after which the socket is read, so that a stream of requests never holds up the answers."""


_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
OnResult = Callable[["Result"], None]
"""Called once with a request's result when it is settled: with a value or an exception."""


class Result:
    """kazoo's IAsyncResult without waiting: linked functions are called at once, in the thread that sets it.

    `settled` is called with each result, linked or not, at its place among everything else that the thread sees.
    """

    __slots__ = ("_links", "_settled", "exception", "follower", "value")

    def __init__(self, settled: OnResult) -> None:
        self.value: Any = None
        self.exception: Any = _UNSET
        self.follower: OnResult | None = None
        """Function to call on the loop with the result; managed by kazoo_link."""
        self._settled = settled
        self._links: list[OnResult] = []

    def ready(self) -> bool:
        return self.exception is not _UNSET

    def successful(self) -> bool:
        return self.exception is None

    def set(self, value: Any = None) -> None:
        self._settle(value, None)

    def set_exception(self, exception: BaseException) -> None:
        self._settle(None, exception)

    def _settle(self, value: Any, exception: BaseException | None) -> None:
        if self.exception is _UNSET:  # kazoo may fail a request that it failed before
            self.value, self.exception = value, exception
            self._settled(self)
            for link in self._links:
                link(self)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.exception is _UNSET:
            raise KazooTimeoutError
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: OnResult) -> None:
        # The connection's thread may settle it between these two lines: then the callback runs twice. What is linked
        # here (kazoo's wrappers, which end in set) takes the first call only.
        self._links.append(callback)
        if self.exception is not _UNSET:
            callback(self)


_UNSET: Any = object()


class _BlockSocket:
    """A connected socket that kazoo reads and writes in small pieces and the kernel sees in blocks."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._in = b""
        self._at = 0
        self._ended = False
        self._out = bytearray()
        self.asked_at: float | None = None
        """Time at which something was sent without anything received since (time.monotonic); None if there is no such
        request.
        """

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(False)

    def close(self) -> None:
        self._sock.close()

    def pending(self) -> int:
        """Return the bytes that are here already: kazoo asks before it selects."""
        return len(self._in) - self._at

    @property
    def readable(self) -> bool:
        return self._at < len(self._in) or self._ended

    @property
    def unsent(self) -> int:
        return len(self._out)

    def recv(self, size: int) -> bytes:
        if self._at == len(self._in):
            self.fill()
        if self._at == len(self._in) and not self._ended:
            raise BlockingIOError
        piece = self._in[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def fill(self) -> None:
        """Take what the kernel has received, without waiting."""
        with contextlib.suppress(*_NOT_NOW):
            block = self._sock.recv(_BLOCK)
            self._ended = not block
            self._in, self._at = block, 0
            self.asked_at = None

    def send(self, data: bytes) -> int:
        if self.asked_at is None:
            self.asked_at = time.monotonic()
        self._out += data
        if len(self._out) >= _WRITE_BLOCK:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Give the kernel what it takes, without waiting."""
        with contextlib.suppress(*_NOT_NOW):
            while self._out:
                del self._out[: self._sock.send(self._out)]


class _Wakes:
    """kazoo's pair of sockets that signals "a request is in the queue": one byte in the kernel for many of them."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._waiting: deque[None] = deque()
        self._signalled = False

    def fileno(self) -> int:
        return self._reader.fileno()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def send(self, data: bytes) -> int:
        """Signal a request. May be called from any thread."""
        self._waiting.append(None)
        if not self._signalled:
            self._signalled = True
            with contextlib.suppress(BlockingIOError):
                self._writer.send(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        if not self._waiting:
            raise BlockingIOError
        self._waiting.popleft()
        return b"\0"

    @property
    def readable(self) -> bool:
        return bool(self._waiting)

    def settle(self) -> None:
        """Empty the signal before waiting for the kernel: what is sent from now on signals again."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        self._signalled = False


class OneThreadHandler:
    """A kazoo handler (IHandler): the connection's thread is the only one, callbacks run in it and must not block.

    A server gets `connect_s` to take a connection, and is left when it has been silent for `silence_s` after a request:
    kazoo itself stays with a silent one as long as there are requests. `on_result` is called with each result that is
    settled, mostly in the thread; `on_end` in the thread, as its last action. `tls` gives the context of a new
    connection; None: no TLS.
    """

    name = "buckram"
    timeout_exception = KazooTimeoutError
    sleep_func = staticmethod(time.sleep)

    def __init__(
        self,
        connect_s: float,
        silence_s: float,
        on_result: OnResult,
        on_end: Callable[[], None],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.running = False
        self._connect_s, self._silence_s, self._tls = connect_s, silence_s, tls
        self._on_result, self._on_end = on_result, on_end
        self._sends = 0

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def event_object(self) -> threading.Event:
        return threading.Event()

    def lock_object(self) -> Any:
        return threading.Lock()

    def rlock_object(self) -> Any:
        return threading.RLock()

    def async_result(self) -> Result:
        return Result(self._on_result)

    def spawn(self, function: Callable[..., None], *args: Any, **kwargs: Any) -> threading.Thread:
        def run() -> None:
            try:
                function(*args, **kwargs)
            except Exception as error:
                # kazoo ends so on an answer that it does not understand; the session starts it anew.
                _log.error("the connection to ZooKeeper ended: %s: %s", type(error).__name__, error)
            finally:
                self._on_end()

        thread = threading.Thread(target=run, name="zookeeper", daemon=True)
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(
        self, address: tuple[str, int], timeout: float | None = None, hostname: str = "", **others: Any
    ) -> _BlockSocket:
        """Connect to an address, which `hostname` was resolved to; the handshake of TLS is part of it."""
        sock = socket.create_connection(address, self._connect_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            try:
                sock = self._tls().wrap_socket(sock, server_hostname=hostname.strip("[]") or address[0])
            except BaseException:
                sock.close()
                raise
        return _BlockSocket(sock)

    def create_socket_pair(self) -> tuple[_Wakes, _Wakes]:
        wakes = _Wakes()
        return wakes, wakes

    def select(
        self, readers: list[Any], writers: list[Any], errors: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Work as select.select; a write is always taken, because it waits here until there is nothing else to do."""
        if writers:
            return [], writers if self._make_room(writers[0], timeout) else [], []
        self._sends += 1
        ready = [reader for reader in readers if reader.readable]
        if ready and self._sends % _SENDS_IN_A_ROW:
            return ready, [], []
        return self._look(readers, timeout), [], []

    def _make_room(self, writer: _BlockSocket, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while writer.unsent >= _UNSENT_LIMIT:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._wait([], writer, left)
            writer.flush()
        return True

    def _look(self, readers: list[Any], timeout: float | None) -> list[Any]:
        """Send what is left, then wait until something can be read.

        Raises KazooTimeoutError when the server is silent.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            unsent: _BlockSocket | None = None
            limits = [] if deadline is None else [deadline]
            for reader in readers:
                if isinstance(reader, _Wakes):
                    reader.settle()
                    continue
                reader.flush()
                if not reader.readable:
                    reader.fill()
                if reader.unsent:
                    unsent = reader
                if not reader.readable and reader.asked_at is not None:
                    limits.append(reader.asked_at + self._silence_s)
                    if limits[-1] <= time.monotonic():
                        raise KazooTimeoutError(f"nothing heard for {self._silence_s:g} s")
            ready = [reader for reader in readers if reader.readable]
            if ready:
                return ready
            now = time.monotonic()
            if deadline is not None and deadline <= now:
                return []
            self._wait(readers, unsent, max(0.0, min(limits) - now) if limits else None)

    def _wait(self, readers: list[Any], writer: _BlockSocket | None, timeout: float | None) -> None:
        poll = select.poll()
        for reader in readers:
            poll.register(reader.fileno(), select.POLLIN | (select.POLLOUT if reader is writer else 0))
        if writer is not None and writer not in readers:
            poll.register(writer.fileno(), select.POLLOUT)
        poll.poll(None if timeout is None else max(0.0, timeout) * 1000)
