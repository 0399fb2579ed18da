"""Writers: the open writers of a gateway. Appends of all its clients to one stream share one writer.

A stream's writer is opened by the first append, and closed when idle. If another gateway has the stream, the client is
redirected to it. A ledger's writer stays with the gateway that created it, until it is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.core.backoff import LEADER_WAIT
from buckram.core.streams.names import StreamName, stream_name
from buckram.errors import (
    BuckramError,
    LedgerClosed,
    OffsetMismatch,
    OutOfOrderSequence,
    ProducerForgotten,
    WriterExists,
)
from buckram.runtime.process.handle_cache import HandleCache
from buckram.runtime.process.retry import Retries
from buckram.serve.gateway.shared.error_answers import IN_DOUBT, problem_of, with_unknown_outcome
from buckram.serve.gateway.shared.gateway_registry import Peers, is_gateway
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.problems import HttpProblem
from buckram.streams.write.writer import StreamWriter
from buckram.types import LedgerId

T = TypeVar("T")
LINGER_MS = 20.0
MARK = "buckram.gateway"
"""Key in the custom metadata of a ledger: the sign of the gateway that created it."""


_BY_STATE = (OffsetMismatch, OutOfOrderSequence, ProducerForgotten)
"""Refusals by what a writer knows of the stream."""


class Elsewhere(BuckramError):
    """Another gateway has the writer; `url` is its address."""

    def __init__(self, what: str, url: str) -> None:
        super().__init__(f"the gateway at {url} writes {what}: ask there")
        self.url = url


class Writers:
    """All writers of one gateway. `close` seals what they have written."""

    def __init__(self, client: Client, peers: Peers, limits: GatewayLimits) -> None:
        self._client, self._peers, self._limits = client, peers, limits
        self._streams: HandleCache[StreamWriter] = HandleCache(
            "writers of streams",
            self._open,
            StreamWriter.close,
            lambda writer: writer.closed or writer.lost.is_set(),
            idle_s=limits.writer_idle_s,
            most_open=limits.writers,
            holder=lambda name: name.partition("/")[0],
        )
        self._ledgers: HandleCache[Writer] = HandleCache(
            "writers of ledgers",
            self._created,
            self._end_ledger,
            lambda writer: writer.closed,
            idle_s=limits.writer_idle_s,
            most_open=limits.writers,
            holder=lambda name: self._creators.get(name, ""),
        )
        self._new: dict[str, Writer] = {}
        """Writers of ledgers that were created a moment ago, by the text of their ids."""
        self._creators: dict[str, str] = {}
        """Principals that created the ledgers whose writers are here: each has a share of the limit, so that one
        principal's writers are not closed because of others'.
        """

    @property
    def streams(self) -> list[str]:
        """The full names of the streams that are written here now."""
        return self._streams.names

    async def append(self, stream: StreamName, act: Callable[[StreamWriter], Awaitable[T]]) -> T:
        """Let `act` append with the stream's writer. Raises Elsewhere, WriterExists, and what appending raises.

        HttpProblem 504: no acknowledgement came in time; what was appended may or may not become part of the stream.
        """
        name = str(stream)
        use = await self._streams.take(name)
        try:
            return await self._in_time(f"stream {name}", act(use.item))
        except _BY_STATE as error:
            if await self._is_overtaken(stream, use.item):
                raise _overtaken(name) from error
            raise
        finally:
            use.give()

    async def _is_overtaken(self, stream: StreamName, writer: StreamWriter) -> bool:
        """Return whether another writer has the stream, which this one may not know yet: what it refuses by its own
        records may be right by theirs. Raises MetadataUnavailable, NoSuchStream.
        """
        streams = self._client.namespace(stream.namespace).store
        await streams.keys.sync()
        return (await streams.read(stream)).head.epoch != writer.epoch

    async def end(self, stream: StreamName, *, seal_only: bool) -> int:
        """End the stream, or only seal its segment; the offset after its last record. Raises as `append`."""
        use = await self._streams.take(str(stream))
        try:
            if not seal_only:
                return await use.item.end()
            await use.item.close()
            return use.item.next_offset
        finally:
            use.give()

    # -- ledgers ------------------------------------------------------------------------------------------

    async def keep(self, writer: Writer, creator: str) -> None:
        """Take a ledger's writer that was opened with `mark` in its custom metadata; from now on it is used here."""
        name = str(writer.ledger_id)
        self._new[name], self._creators[name] = writer, creator
        (await self._ledgers.take(name)).give()

    @property
    def mark(self) -> dict[str, bytes]:
        """Custom metadata by which other gateways find the gateway with the writer of a ledger."""
        return {MARK: self._peers.sign.encode()}

    async def append_entries(self, ledger: LedgerId, act: Callable[[Writer], Awaitable[T]]) -> T:
        """Append with the writer of a ledger that this gateway created, as `append`. Raises LedgerClosed if the ledger
        has no writer any more.
        """
        use = await self._ledgers.take(str(ledger))
        try:
            return await self._in_time(f"ledger {ledger}", act(use.item))
        finally:
            use.give()

    async def close_ledger(self, ledger: LedgerId) -> bool:
        """Seal a ledger whose writer is here; False if it is not. Raises Elsewhere."""
        if str(ledger) not in self._ledgers.names:
            await self._refer(ledger)
            return False
        await self.append_entries(ledger, Writer.close)
        return True

    async def close(self) -> None:
        """Close all writers; what they have written is sealed, and their leases are free. Idempotent."""
        await asyncio.gather(self._streams.close(), self._ledgers.close())

    # -- inside -------------------------------------------------------------------------------------------

    async def _in_time(self, what: str, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._limits.append_wait_s):
                return await work
        except IN_DOUBT as error:
            raise with_unknown_outcome(problem_of(error)) from error
        except TimeoutError:
            problem = HttpProblem(
                504,
                "OUTCOME_UNKNOWN",
                f"{what} acknowledged nothing within {self._limits.append_wait_s:g} s: what was sent may still become "
                "part of it; check before you send it again, or send producer and sequence",
                headers={"Retry-After": "1"},
            )
            raise with_unknown_outcome(problem) from None

    async def _open(self, name: str) -> StreamWriter:
        """Open a writer: wait for the lease of a gateway that is gone, and raise for another writer that is alive."""
        full, retries = stream_name(name), Retries(LEADER_WAIT, self._limits.lease_wait_s)
        while True:
            try:
                return await self._client.namespace(full.namespace).writer(
                    full.stream, create=False, name=self._peers.sign, linger_ms=LINGER_MS
                )
            except WriterExists as error:
                url = await self._peers.url_of(error.holder)
                if url is not None:
                    raise Elsewhere(f"stream {name}", url) from None
                if not is_gateway(error.holder):
                    raise
                await retries.wait(error)

    async def _end_ledger(self, writer: Writer) -> None:
        self._creators.pop(str(writer.ledger_id), None)
        await writer.close()

    async def _created(self, name: str) -> Writer:
        writer = self._new.pop(name, None)
        if writer is None:
            await self._refer(int(name))
            raise LedgerClosed(
                int(name),
                "has no writer here: only the gateway that created it appends to it, until it is closed or idle for "
                f"{self._limits.writer_idle_s:g} s; create another ledger",
            )
        return writer

    async def _refer(self, ledger: LedgerId) -> None:
        """Raises Elsewhere if another gateway has the writer of this ledger."""
        metadata = await self._client.metadata(ledger)
        url = await self._peers.url_of(metadata.custom_metadata.get(MARK, b"").decode(errors="replace"))
        if url is not None and not metadata.closed:
            raise Elsewhere(f"ledger {ledger}", url)


def _overtaken(name: str) -> HttpProblem:
    return HttpProblem(
        503,
        "WRITER_OVERTAKEN",
        f"stream {name}: another writer has taken over, and nothing of this request was written: send it again",
        headers={"Retry-After": "1"},
        retryable=True,
    )
