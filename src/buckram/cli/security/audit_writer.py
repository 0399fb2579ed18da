"""Writes the events that a bookie recorded into the stream `system/audit`, and copies of them outside of the cluster.

The stream is written by bulk steps, so that every bookie writes for itself. Each batch is a ledger of its own that
becomes a segment in one compare-and-set, once; small segments are joined by the janitor. While the trail cannot be
written events wait in the bookie's bounded lists (`bookie/accounting/audit_queue.py`), with the places in the chain
that they have already: a batch whose answer was lost may be written twice, byte for byte.

A copy is a file with one JSON object a line, or syslog. A bookie's events go there as they are noted, with their places
in the chain, in a thread of their own: a sink that hangs or fails delays nothing and loses nothing of the stream. A
file is opened for each few events, so that it may be renamed, and synced before the next ones; its owner alone reads
it. What cannot be written is tried again; beyond `MOST_WAITING` events the oldest go, and are counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.bookie.process import Bookie
from buckram.cluster import Client, connect
from buckram.config import AuthConfig, TlsConfig
from buckram.core.backoff import ROLL, Delays
from buckram.core.tenants.audit_trail import NAMESPACE, STREAM, AuditEvent
from buckram.errors import BuckramError, ConfigError, MetadataError
from buckram.metadata.records.pending_audit_events import drop_note, notes, turn_on
from buckram.metadata.records.security import SecurityStore
from buckram.runtime.disk.syncing import sync_file
from buckram.seams import MetadataStore, Stats
from buckram.streams.system_streams import append_in_one_step, make_system_stream

log = logging.getLogger("buckram.audit")
MOST_WAITING = 20_000
_AT_ONCE = 500
_STOP_S = 2.0
_SYSLOG, _SYSLOG_S = "/dev/log", 2.0
_NOTICE = 10 * 8 + 5
"""Facility authpriv, severity notice."""


class AuditSink(Protocol):
    """Takes events, each a line of JSON without its end, all or in order as far as it gets. Blocks. OSError."""

    name: str

    def write(self, lines: Sequence[bytes]) -> None: ...


class FileSink:
    """Appends to a file."""

    def __init__(self, path: str) -> None:
        self.name, self._path = f"file:{path}", path

    def write(self, lines: Sequence[bytes]) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # A line that was cut, by a disk that was full or a process that died, is kept apart.
            cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = memoryview((b"\n" if cut else b"") + b"".join(line + b"\n" for line in lines))
            while data:
                data = data[os.write(descriptor, data) :]
            sync_file(descriptor)
        finally:
            os.close(descriptor)


class SyslogSink:
    """Sends each event to the syslog daemon of this machine."""

    def __init__(self, path: str = "") -> None:
        self.name, self._path = f"syslog:{path}", path or _SYSLOG

    def write(self, lines: Sequence[bytes]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
            daemon.settimeout(_SYSLOG_S)
            daemon.connect(self._path)
            for line in lines:
                daemon.send(b"<%d>buckram-audit: %s" % (_NOTICE, line))


def open_sink(setting: str) -> AuditSink | None:
    """Return the sink that [bookie] audit_sink names; None for "". Raises ConfigError."""
    kind, colon, path = setting.partition(":")
    if not setting:
        return None
    if kind == "file" and Path(path).is_absolute() and "\0" not in path:
        return FileSink(path)
    if colon and kind == "syslog" and (not path or Path(path).is_absolute()) and "\0" not in path:
        return SyslogSink(path)
    raise ConfigError(
        f"[bookie] audit_sink = {setting!r}: needs file: and an absolute path, syslog:, or syslog: and the path of the "
        "daemon's socket, for example 'file:/var/log/buckram/audit.log'"
    )


class SinkQueue:
    """Bounded queue of audit events that wait to be copied to a sink."""

    def __init__(self, sink: AuditSink, stats: Stats) -> None:
        self._sink = sink
        self._waiting: deque[bytes] = deque()
        self._some, self._ending = asyncio.Event(), asyncio.Event()
        self._failing = False
        self._failures = stats.counter(
            "buckram_bookie_audit_sink_failures_total", "attempts to copy events of the audit trail that failed"
        )
        self._dropped = stats.counter(
            "buckram_bookie_audit_sink_lost_events_total", "events of the audit trail that were not copied"
        )

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event: AuditEvent) -> None:
        """Have it written; never waits."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._dropped.inc()
        self._waiting.append(event.encode())
        self._some.set()

    async def run(self) -> None:
        """Write events until `end` is called, then write the remaining ones once."""
        delays = Delays(ROLL)
        while True:
            await self._some.wait()
            if await self.write():
                delays.reset()
            if self._ending.is_set():
                return
            if self._waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(delays.take()):
                        await self._ending.wait()

    def end(self) -> None:
        self._ending.set()
        self._some.set()

    async def write(self) -> bool:
        """Write the waiting events; return whether that succeeded. A change between success and failure is logged."""
        while self._waiting:
            lines = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            try:
                await self._in_thread(lines)
            except Exception as error:  # whatever it was: it is tried again
                self._waiting.extendleft(reversed(lines))
                self._failures.inc()
                if not self._failing:
                    log.warning("events of the audit trail are not copied to %s: %s", self._sink.name, error)
                self._failing = True
                return False
            if self._failing:
                log.warning("events of the audit trail are copied to %s again", self._sink.name)
            self._failing = False
        self._some.clear()
        return True

    def _in_thread(self, lines: Sequence[bytes]) -> asyncio.Future[None]:
        """Write in a thread that does not keep the process from ending, as one of the loop's own would."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def work() -> None:
            failed: Exception | None = None
            try:
                self._sink.write(lines)
            except Exception as error:
                failed = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, failed)

        threading.Thread(target=work, name="audit sink", daemon=True).start()
        return done


@asynccontextmanager
async def copying(events: AuditLog, sink: AuditSink) -> AsyncIterator[None]:
    """Copy events to a sink during the block. At its end the remaining events are copied, within _STOP_S seconds."""
    copies = SinkQueue(sink, events.stats)
    events.copy_to(copies.add)
    task = asyncio.ensure_future(copies.run())
    try:
        yield
    finally:
        copies.end()
        await asyncio.wait([task], timeout=_STOP_S)
        task.cancel()
        if len(copies):
            log.warning("%d events of the audit trail were not copied to %s", len(copies), sink.name)


BATCH = 2000
GATHER_S = 2.0
"""Events of this time share a ledger."""
LOOK_S = 5.0
"""Seconds between two looks for notes of other processes, independent of watches."""


_TOKEN_S, _SESSION_S = 86_400.0, 0.8 * 86_400.0
"""A bookie makes a token for itself, to be known to the others, and another one in time."""


class AuditWriter:
    """Writes the events of one bookie, and notes left by other processes. `client` needs all rights on `system`."""

    def __init__(self, client: Client, store: MetadataStore, events: AuditLog, process: str) -> None:
        self._client, self._store, self._events, self._process = client, store, events, process
        self._noted = asyncio.Event()
        self._prepared = False

    async def run(self) -> None:
        """Write until cancelled."""
        delays = Delays(ROLL)
        while True:
            try:
                if not self._prepared:
                    await self._prepare()
                await self.write()
                delays.reset()
            except BuckramError as error:
                self._prepared = False  # the stream may be gone
                log.warning("%d events of the audit trail wait: %s", len(self._events), error)
                await asyncio.sleep(delays.take())
                continue
            await self._wait()
            await asyncio.sleep(GATHER_S)

    async def _wait(self) -> None:
        """Wait until there is something to write, for LOOK_S seconds at most."""
        waits = [asyncio.ensure_future(self._events.wait()), asyncio.ensure_future(self._noted.wait())]
        try:
            await asyncio.wait(waits, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _prepare(self) -> None:
        """Make the stream where it is missing."""
        await make_system_stream(self._client, STREAM)
        await turn_on(self._store)
        self._prepared = True

    async def write(self) -> None:
        """Write everything that waits now."""
        self._noted.clear()
        self._events.settle()
        try:
            left = await notes(self._store, self._noted.set)
        except MetadataError as error:
            log.warning("notes of other processes are not read: %s", error)
            left = {}
        self._events.take(left)
        waiting = len(self._events)  # what is noted meanwhile is for the next time
        while waiting > 0:
            events = self._events.batch(min(BATCH, waiting))
            await self._publish(events)
            self._events.written(events)
            waiting -= len(events)
        for key in self._events.written_notes:
            await drop_note(self._store, key)
            self._events.dropped_note(key)

    async def _publish(self, events: Sequence[AuditEvent]) -> None:
        info = await self._client.namespace(NAMESPACE).info(STREAM)
        values, times = [event.encode() for event in events], [event.time_us for event in events]
        await append_in_one_step(self._client, info, f"audit {self._process}", values, times)


@asynccontextmanager
async def writing(
    bookie: Bookie,
    events: AuditLog,
    store: MetadataStore,
    uri: str,
    tls: TlsConfig,
    auth: AuthConfig,
    *,
    sink: AuditSink | None = None,
) -> AsyncIterator[None]:
    """Write the events of a bookie that runs, meanwhile; `store` is its own, and `uri` opens it. `sink` gets a copy."""

    async def keep_writing() -> None:
        delays = Delays(ROLL)
        while True:
            try:
                async with connect(uri, tls=_tls_of_client(tls), token=await _token(bookie, store, auth)) as client:
                    delays.reset()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_SESSION_S):
                            await AuditWriter(client, store, events, events.bookie).run()
            except Exception as error:  # whatever it was: the trail goes on when it is over
                log.warning("the audit trail is not written: %s", error)
                await asyncio.sleep(delays.take())

    async with nullcontext() if sink is None else copying(events, sink):
        task = asyncio.ensure_future(keep_writing())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            events.close()


def _tls_of_client(tls: TlsConfig) -> TlsConfig:
    """Return the TLS settings of the bookie as a client. Its certificate is for servers, so it is shown to other
    bookies only if they require one."""
    if tls.mode == "off":
        return TlsConfig()
    if tls.client_certificates == "required":
        return TlsConfig("required", tls.ca, tls.certificate, tls.key)
    return TlsConfig("required", tls.ca)


async def _token(bookie: Bookie, store: MetadataStore, auth: AuthConfig) -> str:
    """Return a token for the bookie itself; "" if tokens are not required."""
    if "token" not in auth.logins.replace(",", " ").split():
        return ""
    now = time.time()
    name = bookie.info.bookie_id if bookie.info is not None else "?"
    return (await SecurityStore(store).create_token(f"bookie {name}", ("admin",), now, now + _TOKEN_S))[1]
