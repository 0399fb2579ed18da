"""Writes the events that a bookie recorded into the stream `system/audit`: bulk steps, so that every bookie writes for
itself.

Each batch is a ledger of its own that becomes a segment in one compare-and-set, once; small segments are joined by the
janitor. While the trail cannot be written events wait in the bookie's bounded lists
(`bookie/accounting/audit_queue.py`), with the places in the chain that they have already: a batch whose answer was lost
may be written twice, byte for byte.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress

from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.bookie.process import Bookie
from buckram.cli.security.audit_sinks import AuditSink, copying
from buckram.cluster import Client, connect
from buckram.config import AuthConfig, TlsConfig
from buckram.core.backoff import ROLL, Delays
from buckram.core.tenants.audit_trail import NAMESPACE, STREAM, AuditEvent
from buckram.errors import BuckramError, MetadataError
from buckram.metadata.records.pending_audit_events import drop_note, notes, turn_on
from buckram.metadata.records.security import SecurityStore
from buckram.seams import MetadataStore
from buckram.streams.system_streams import append_in_one_step, make_system_stream

log = logging.getLogger("buckram.audit")
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
