"""Holds ledgers, streams and databases that clients create through a bookie to the quotas of their namespaces.

Streams are counted when one is created, and those of one namespace are created one after the other, through whichever
bookie. Ledgers are counted now and then, by one bookie for all, and each bookie adds those that were created through it
since, and those that are being created: with many bookies a namespace may get more than its quota between two counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Protocol

from buckram.bookie.accounting.namespace_usage import is_database, streams_in
from buckram.core.security.namespace_rules import namespace_of_ledger, record_in
from buckram.core.tenants.quotas import NONE, Counts, Quotas
from buckram.errors import BuckramError, QuotaExceeded
from buckram.metadata.records.tenants import Published, TenantStore
from buckram.seams import MetadataStore
from buckram.types import Create, KeyOp


class Known(Protocol):
    """Quotas, usage and recounts as the accounting knows them (`bookie/accounting/namespace_usage.py`)."""

    quotas: Mapping[str, Quotas]
    published: Published

    counts_begun: int
    """Number of full recounts that this bookie has begun since its start."""
    own_count: tuple[int, int]
    """The round of counts that this bookie published last, and the value of `counts_begun` when that recount began."""

    @property
    def on(self) -> bool: ...
    def full(self, namespace: str) -> QuotaExceeded | None: ...


class QuotasOfCreations:
    """Asked before each creation; nothing is asked of the store where a namespace has no such quota."""

    def __init__(self, metadata: MetadataStore, known: Known) -> None:
        self._metadata, self._known = metadata, known
        self._tenants = TenantStore(metadata)
        self._created: dict[str, Counter[int]] = {}
        """Ledgers that were created through this bookie and that the last count may lack: by namespace, and by how many
        counts this bookie had begun then."""
        self._making: Counter[str] = Counter()
        """Number of ledgers that are being created right now, by namespace."""
        self._round = -1
        self._heads = f"{metadata.own}/streams/heads/"
        self._turns: dict[str, asyncio.Lock] = {}
        """Locks by namespace, for namespaces with a quota of streams: one creation of streams at a time."""

    def ledger(self, value: bytes) -> AbstractAsyncContextManager[None]:
        """Hold the creation of a ledger with this record to its namespace's quota; enter at once, leave after it.
        Raises QuotaExceeded."""
        namespace = self._limited(value)
        return nullcontext() if namespace is None else self._counted(namespace)

    @asynccontextmanager
    async def _counted(self, namespace: str) -> AsyncIterator[None]:
        self._making[namespace] += 1
        try:
            yield
            self._created.setdefault(namespace, Counter())[self._known.counts_begun] += 1
        finally:
            self._making[namespace] -= 1

    def _limited(self, value: bytes) -> str | None:
        """Return the namespace of a ledger that a quota of ledgers applies to, else None. Raises QuotaExceeded."""
        if not self._known.on or not self._known.quotas:
            return None
        try:
            namespace = namespace_of_ledger(record_in(value).custom_metadata)
        except BuckramError:
            return None  # the store reports what is wrong with it
        quotas = self._known.quotas.get(namespace, NONE)
        full = self._known.full(namespace)
        if full is not None:
            raise full
        if quotas.ledgers is None:
            return None
        self._forget_counted()
        used = self._known.published.counts.get(namespace, Counts()).ledgers + self._making[namespace]
        used += sum(self._created.get(namespace, Counter()).values())
        if used >= quotas.ledgers:
            raise QuotaExceeded(namespace, "ledgers", used, quotas.ledgers)
        return namespace

    def _forget_counted(self) -> None:
        """Forget creations that the newest published count includes. If this bookie made that count it knows when the
        count began, and keeps what was created since; otherwise it forgets all."""
        published = self._known.published.counts_round
        if self._round == published:
            return
        self._round = published
        number, begun = self._known.own_count
        if number != published:
            self._created.clear()
            return
        for created in self._created.values():
            for since in [one for one in created if one < begun]:
                del created[since]

    def keys(self, ops: Sequence[KeyOp]) -> AbstractAsyncContextManager[Sequence[KeyOp]] | None:
        """Return a context for a change that creates streams in namespaces with a quota of streams or databases, else
        None. The context yields operations to add to the change: they fail if another bookie created streams meanwhile,
        and then the change is tried again."""
        made: dict[str, list[Create]] = {}
        for op in ops if self._known.on else ():
            if not isinstance(op, Create) or not op.key.startswith(self._heads):
                continue
            namespace, _, stream = op.key.removeprefix(self._heads).partition("/")
            quotas = self._known.quotas.get(namespace, NONE)
            if stream and (quotas.streams is not None or quotas.databases is not None):
                made.setdefault(namespace, []).append(op)
        return self._in_turn(made) if made else None

    @asynccontextmanager
    async def _in_turn(self, made: Mapping[str, Sequence[Create]]) -> AsyncIterator[Sequence[KeyOp]]:
        """Create streams one after the other in each namespace. Raises QuotaExceeded and MetadataError."""
        also: list[KeyOp] = []
        async with AsyncExitStack() as turns:
            for namespace in sorted(made):
                await turns.enter_async_context(self._turns.setdefault(namespace, asyncio.Lock()))
                also.append(await self._tenants.turn(namespace))
                await self._check_streams(namespace, self._known.quotas.get(namespace, NONE), made[namespace])
            yield also

    async def _check_streams(self, namespace: str, quotas: Quotas, made: Sequence[Create]) -> None:
        more = sum(is_database(op.key, op.value) for op in made)
        if quotas.streams is None and not more:
            return
        streams, databases = await streams_in(self._metadata, namespace)
        if quotas.streams is not None and streams + len(made) > quotas.streams:
            raise QuotaExceeded(namespace, "streams", streams, quotas.streams)
        if quotas.databases is not None and more and databases + more > quotas.databases:
            raise QuotaExceeded(namespace, "databases", databases, quotas.databases)
