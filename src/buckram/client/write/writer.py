"""Writer: the handle for appending to one ledger. The work is done by LedgerAppender (`client/write/engine.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType

from buckram.client.shared.handles import NotBlocking
from buckram.client.write.engine import LedgerAppender
from buckram.types import Buffer, EntryId, LedgerMetadata


class Writer(NotBlocking):
    """The one writer of a ledger; from `client.create()`.

    `async with` flushes and closes. Errors of appends: LedgerClosed, EntryTooLarge, DuplicateEntry, BufferFull and
    InvalidArgument mean that nothing was written; after any other (LedgerFenced, WriteFailed, Unauthorized,
    QuotaExceeded, HandleClosed) the entry may or may not become part of the ledger, and the writer is finished.
    ForkedClient in a child process. Cancelling an append abandons the wait, not the write.
    """

    def __init__(self, engine: LedgerAppender) -> None:
        self._engine = engine
        self.ledger_id = engine.ledger_id
        """The ledger's id."""
        # The methods below say what there is; on a handle they are the engine's own, so that an append costs no more.
        self.append = engine.append  # type: ignore[method-assign]
        self.append_nowait = engine.append_nowait  # type: ignore[method-assign]

    def __repr__(self) -> str:
        engine = self._engine
        state = "closed" if engine.closed else "degraded" if engine.degraded else "open"
        return f"<Writer ledger={self.ledger_id} {state} last_confirmed={engine.last_confirmed}>"

    # -- what one can know --------------------------------------------------------------------------------

    @property
    def last_confirmed(self) -> EntryId:
        """Return the last entry that every reader may see; -1 before the first. Under deferred sync: the last forced
        one."""
        return self._engine.last_confirmed

    @property
    def last_pushed(self) -> EntryId:
        """Return the highest entry id given out, acknowledged or not."""
        return self._engine.last_pushed

    @property
    def length(self) -> int:
        """Return the payload bytes appended so far, acknowledged or not; those of the whole ledger once it is
        closed."""
        return self._engine.length

    @property
    def pending_bytes(self) -> int:
        """Return the payload bytes that are not yet acknowledged, counted by runs."""
        return self._engine.pending_bytes

    @property
    def pending_entries(self) -> int:
        """Return the number of entries that are not yet acknowledged."""
        return self._engine.pending_entries

    @property
    def metadata(self) -> LedgerMetadata:
        """Return the ledger's metadata as this writer last saw or wrote it."""
        return self._engine.metadata

    @property
    def degraded(self) -> bool:
        """Return whether entries get fewer than Qw copies for now (never fewer than Qa); `degraded_reason` has the
        reason."""
        return self._engine.degraded

    @property
    def degraded_reason(self) -> str:
        """Return why entries get fewer copies than they should; empty if they do not."""
        return self._engine.degraded_reason

    @property
    def misplaced(self) -> tuple[str, ...]:
        """Return one sentence for each rule of the ledger's placement that its bookies break; empty if they keep
        all."""
        return self._engine.misplaced

    @property
    def ensemble_changes(self) -> int:
        """Return how many bookies this writer has replaced so far."""
        return self._engine.ensemble_changes

    @property
    def closed(self) -> bool:
        """Return whether the writer was closed or has failed; it then accepts no further append."""
        return self._engine.closed

    # -- appending ----------------------------------------------------------------------------------------

    async def append(self, payload: Buffer, *, entry_id: EntryId | None = None) -> EntryId:
        """Append one entry; return its id when Qa bookies hold it and all before it. Waits for room, in call order.

        Pass `entry_id` if, and only if, the writer was created with `explicit_ids`; the entry is then acknowledged when
        no smaller id is missing.
        """
        return await self._engine.append(payload, entry_id=entry_id)

    def append_nowait(self, payload: Buffer, *, entry_id: EntryId | None = None) -> asyncio.Future[EntryId]:
        """Append one entry and return its future at once; raises BufferFull where `append` would wait for room.

        The future may be dropped: `flush` and `close` raise the first append that failed.
        """
        return self._engine.append_nowait(payload, entry_id=entry_id)

    async def append_many(self, payloads: Iterable[Buffer]) -> range:
        """Append entries one after another and return their ids when all are acknowledged, with one future for all."""
        self._engine.check_loop()
        return await self._engine.append_many(payloads)

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; raises the first append that failed."""
        self._engine.check_loop()
        await self._engine.flush()

    async def force(self) -> EntryId:
        """Make everything acknowledged so far durable (deferred sync) and return the last durable entry.

        After a BookieError it is unknown what is durable: call again. WriteFailed ends the writer: a bookie was lost
        that may have restarted without what it had acknowledged. Without deferred sync, acknowledged entries are
        durable already.
        """
        self._engine.check_loop()
        return await self._engine.force()

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self, *, wait: bool = True) -> None:
        """Flush, then seal the ledger with the last confirmed entry; raises the first append that failed.

        Appends are refused from now on. With `wait=False`, appends that are not yet acknowledged fail with
        LedgerClosed. Closing again gives the same result. After MetadataUnavailable (or a BookieError of the last
        force) the ledger may or may not be sealed: close again, or recover it. Cancelling `close` does not stop it.
        """
        self._engine.check_loop()
        await self._engine.close(wait=wait)

    async def replicated(self) -> bool:
        """Return, after `close`, whether all bookies have confirmed what they must hold, not only those of each quorum.

        False: some member lacks entries, or did not answer within `request_timeout_s`. `close` has noted that, and
        autorecovery copies what lacks; a client that lives goes on, too, and a later call may return True.
        """
        self._engine.check_loop()
        return await self._engine.replicated()

    async def abandon(self) -> None:
        """Stop without sealing: pending appends fail with HandleClosed, the ledger stays open and can be recovered."""
        self._engine.check_loop()
        await self._engine.abandon()

    async def __aenter__(self) -> Writer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.__aexit__(kind, error, trace)


def engine_of(writer: Writer) -> LedgerAppender:
    """Return the engine, for the parts of Buckram that stand on a ledger's writer; a program uses the handle."""
    return writer._engine
