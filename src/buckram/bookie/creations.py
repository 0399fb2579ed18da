"""Holds ledgers, streams and databases that clients create through a bookie to the quotas of their namespaces.

Streams are counted when one is created. Ledgers are counted now and then, by one bookie for all, and each bookie adds
those that were created through it since: with many bookies a namespace may get a few more than its quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from buckram.bookie.recount import is_database, streams_in
from buckram.core.ledgers.metadata_codec import parse
from buckram.core.security.namespaces import namespace_of_ledger
from buckram.core.tenants.quotas import NONE, Quotas
from buckram.core.tenants.usage import Counts
from buckram.errors import BuckramError, QuotaExceeded
from buckram.metadata.tenants import Published
from buckram.seams import MetadataStore


class Known(Protocol):
    """What is known of quotas and use (`bookie/accounting.py`)."""

    quotas: Mapping[str, Quotas]
    published: Published

    @property
    def on(self) -> bool: ...
    def full(self, namespace: str) -> QuotaExceeded | None: ...


class QuotasOfCreations:
    """Asked before each creation; nothing is asked of the store where a namespace has no such quota."""

    def __init__(self, metadata: MetadataStore, known: Known) -> None:
        self._metadata, self._known = metadata, known
        self._created: dict[str, int] = {}
        """Ledgers that were created through this bookie since `_round`."""
        self._round = -1
        self._heads = f"{metadata.own}/streams/heads/"

    async def ledger(self, value: bytes) -> None:
        """A ledger with this record is about to be created. QuotaExceeded."""
        if not self._known.on or not self._known.quotas:
            return
        try:
            namespace = namespace_of_ledger(parse(value).custom_metadata)
        except BuckramError:
            return  # whoever stores it says what is wrong with it
        quotas = self._known.quotas.get(namespace, NONE)
        full = self._known.full(namespace)
        if full is not None:
            raise full
        if quotas.ledgers is None:
            return
        if self._round != self._known.published.counts_round:
            self._round = self._known.published.counts_round
            self._created.clear()
        created = self._created.get(namespace, 0)
        used = self._known.published.counts.get(namespace, Counts()).ledgers + created
        if used >= quotas.ledgers:
            raise QuotaExceeded(namespace, "ledgers", used, quotas.ledgers)
        self._created[namespace] = created + 1

    async def key(self, key: str, value: bytes) -> None:
        """A key is about to be created; it may be a stream's. QuotaExceeded, MetadataError."""
        if not self._known.on or not key.startswith(self._heads):
            return
        namespace, _, stream = key.removeprefix(self._heads).partition("/")
        quotas = self._known.quotas.get(namespace, NONE)
        database = is_database(key, value)
        if not stream or (quotas.streams is None and (quotas.databases is None or not database)):
            return
        streams, databases = await streams_in(self._metadata, namespace)
        if quotas.streams is not None and streams >= quotas.streams:
            raise QuotaExceeded(namespace, "streams", streams, quotas.streams)
        if quotas.databases is not None and database and databases >= quotas.databases:
            raise QuotaExceeded(namespace, "databases", databases, quotas.databases)
