"""Follows the quotas of namespaces, publishes what this bookie counts of each, and gives the rate limiter its limits.

Every two seconds, while the cluster counts at all: this bookie's usage goes into the metadata store, that of the others
is read, and each rate is shared out by what the bookies are asked for. Bytes are counted as they come; now and then
everything is counted anew, which takes a twentieth of the time at most: bytes in this bookie's files, and, for all
bookies, what the records say. Ledgers that metadata does not know any more are nobody's, although their bytes may lie
here for a while. While the store is away, what was known counts. Not here: holding back
(`bookie/service/rate_limiter.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from buckram.bookie.service.tenant import Tally, Tenant
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.store import Store
from buckram.core.security.namespace_rules import namespace_of_ledger
from buckram.core.streams.metadata.head import decode_head
from buckram.core.streams.metadata.purposes import Purpose, purpose_of
from buckram.core.streams.names import OWNER_PURPOSE
from buckram.core.tenants.pacing import share_of
from buckram.core.tenants.quotas import NONE, Counts, Quotas, Usage
from buckram.errors import BuckramError, MalformedRecord, MetadataError, QuotaExceeded
from buckram.metadata.records.tenants import Published, TenantStore
from buckram.metadata.tree.key_operations import all_children, all_names
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore
from buckram.types import BookieId, LedgerId, LedgerMetadata

_PAGE = 1000
APPLICATION = "application"
"""Key of a ledger's custom metadata in which Apache's clients, and others, name their application."""
MOST_APPLICATIONS, OTHER_APPLICATIONS = 20, "(others)"
"""Maximum number of applications that are counted by name in one namespace, and the name for the sum of the others."""
_BULK = b"bulk "


@dataclass(slots=True)
class _Counting:
    ledgers: int = 0
    streams: int = 0
    databases: int = 0
    applications: dict[str, int] = field(default_factory=dict)

    def done(self) -> Counts:
        """Return the counts, with only the largest applications by name: names come from the ledgers, and all counts
        share one key."""
        by = sorted(self.applications.items(), key=lambda one: -one[1])
        named = dict(by[:MOST_APPLICATIONS])
        if rest := by[MOST_APPLICATIONS:]:
            named[OTHER_APPLICATIONS] = named.get(OTHER_APPLICATIONS, 0) + sum(size for _, size in rest)
        return Counts(self.ledgers, self.streams, self.databases, named)


class Recounted(NamedTuple):
    """Bytes in this bookie's files by namespace; and what all namespaces have, if that was asked for."""

    stored: Mapping[str, int]
    counts: Mapping[str, Counts] | None


async def recount(
    store: Store, metadata: MetadataStore, *, everything: bool, before_bytes: Callable[[], None]
) -> Recounted:
    """Read all records, then the store's own sums. `before_bytes` is called between the two.

    Raises MetadataError, StoreError and OSError.
    """
    own = frozenset(await store.live_ledger_ids())
    kinds: dict[LedgerId, str] = {}
    found: dict[str, _Counting] = {}
    after = -1
    while page := await metadata.read_ledgers(after=after, limit=_PAGE):
        for ledger_id, record in page:
            if isinstance(record, MalformedRecord):
                continue
            namespace = namespace_of_ledger(record.metadata.custom_metadata)
            if ledger_id in own:
                kinds[ledger_id] = namespace
            if everything:
                _count_ledger(found.setdefault(namespace, _Counting()), record.metadata)
        after = page[-1][0]
    if everything:
        await _count_streams(metadata, found)
    before_bytes()
    stored = await store.bytes_by(kinds)
    return Recounted(stored, {name: one.done() for name, one in found.items()} if everything else None)


def _count_ledger(counting: _Counting, metadata: LedgerMetadata) -> None:
    counting.ledgers += 1
    name = application_of(metadata.custom_metadata)
    size = (metadata.length or 0) * metadata.write_quorum
    counting.applications[name] = counting.applications.get(name, 0) + size


def application_of(custom_metadata: Mapping[str, bytes]) -> str:
    """Return the application that made a ledger: from its custom metadata, or of a stream's bulk step; "" if neither
    names one."""
    said = custom_metadata.get(APPLICATION)
    if said is not None:
        return said.decode(errors="replace")[:100]
    purpose = custom_metadata.get(OWNER_PURPOSE, b"")
    if purpose.startswith(_BULK):
        return purpose.removeprefix(_BULK).decode(errors="replace").rpartition(" ")[0][:100]
    return ""


async def _count_streams(metadata: MetadataStore, found: dict[str, _Counting]) -> None:
    keys, heads = metadata.keys, f"{metadata.own}/streams/heads"
    async for namespace in all_names(keys, heads):
        counting = found.setdefault(namespace, _Counting())
        counting.streams, counting.databases = await streams_in(metadata, namespace)


async def streams_in(metadata: MetadataStore, namespace: str) -> tuple[int, int]:
    """Return the number of streams of a namespace, and how many of them are logs of databases. Raises MetadataError."""
    folder = f"{metadata.own}/streams/heads/{namespace}"
    streams = databases = 0
    async for name, value in all_children(metadata.keys, folder):
        streams += 1
        databases += is_database(f"{folder}/{name}", value.value)
    return streams, databases


def is_database(key: str, value: bytes) -> bool:
    """Return whether a stream's head is that of a database's log."""
    try:
        head = decode_head(key, value)
    except BuckramError:
        return False
    return purpose_of("", head) is Purpose.DATABASE


log = logging.getLogger("buckram.bookie")
ROUND_S = 2.0
LOOK_S = 60.0
"""Longest interval, seconds, between two looks at whether the cluster counts, while it does not: watches are not relied
on alone."""
SILENT_ROUNDS = 4
"""Number of rounds without a change of its usage after which another bookie no longer counts as asking for anything."""
_SHARE_OF_TIME = 20
_UNLIMITED = 2**63
_RATES = (
    ("in_bytes", "in_bytes_per_s", "wanted_in_bytes"),
    ("in_entries", "in_entries_per_s", "wanted_in_entries"),
    ("out_bytes", "out_bytes_per_s", "wanted_out_bytes"),
)


class LimitedTenants(Protocol):
    """The limiter as seen by the accounting: the tenants whose requests it holds back
    (`bookie/service/rate_limiter.py`)."""

    tenants: dict[str, Tenant]

    def tenant(self, namespace: str) -> Tenant: ...


class Accounting:
    """The accounting of one bookie. `switch` is called with whether the bookie is to look at namespaces. `always`: it
    is to do so also while the cluster does not count."""

    def __init__(
        self,
        store: Store,
        metadata: MetadataStore,
        bookie_id: BookieId,
        limiter: LimitedTenants,
        switch: Callable[[bool], None],
        *,
        always: bool = False,
    ) -> None:
        self._store, self._metadata, self._bookie_id = store, metadata, bookie_id
        self._limiter, self._switch, self._always = limiter, switch, always
        self._tenants = TenantStore(metadata)
        self._scope = TaskScope("accounting")
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.quotas: Mapping[str, Quotas] = {}
        self.published = Published()
        self.rounds = 0
        self._on = False
        self._base: dict[str, int] = {}
        """Bytes of each namespace at the last recount, less what the tallies had counted by then."""
        self._before: dict[str, Tally] = {}
        self._before_at = self._loop.time()
        self._last_round: dict[BookieId, tuple[int, int]] = {}
        """For each other bookie: the round number that it published last, and our round in which that was new."""
        self._recount_at = float("-inf")
        self._recounting: asyncio.Task[None] | None = None
        self._counts_round = 0
        self.counts_begun = 0
        """Number of full recounts that this bookie has begun since its start."""
        self.own_count = (-1, 0)
        """The round of counts for all namespaces that this bookie published last, and the value of `counts_begun` when
        that recount began; (-1, 0) before the first."""
        self._counted = False

    @property
    def on(self) -> bool:
        return self._on

    async def run(self) -> None:
        """Follow the quotas until cancelled."""
        self._switch(self._always)
        try:
            while True:
                wait_s = LOOK_S
                self._changed.clear()
                try:
                    self._on = await self._tenants.is_on(self._changed.set)
                    if self._on:
                        await self.round()
                        wait_s = ROUND_S
                    self._switch(self._on or self._always)
                except MetadataError as error:
                    log.warning("the usage of namespaces cannot be published now: %s", error)
                    wait_s = ROUND_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
        finally:
            await self._scope.close()

    async def round(self) -> None:
        """Publish this bookie's usage, read what the other bookies published, and set limits. Raises MetadataError."""
        self.rounds += 1
        self._recount_soon()
        mine = self._count()
        self.quotas = await self._tenants.quotas()
        if self._counted:
            await self._tenants.publish(self._bookie_id, mine, self.rounds)
        self.published = await self._tenants.published()
        self._apply(mine)

    def _recount_soon(self) -> None:
        running = self._recounting is not None and not self._recounting.done()
        if not running and self._loop.time() >= self._recount_at:
            self._recounting = self._scope.spawn(self._recount(), "recount")

    async def _recount(self) -> None:
        began = self._loop.time()
        tallies: dict[str, int] = {}

        def remember() -> None:
            tallies.update({name: one.tally().stored for name, one in self._limiter.tenants.items()})

        try:
            known = await self._metadata.known_bookies()
            self.counts_begun += 1
            begun = self.counts_begun
            found = await recount(self._store, self._metadata, everything=self._counts_for_all(), before_bytes=remember)
            names = dict.fromkeys([*found.stored, *tallies])
            if not self._counted:
                self._counted = True
                self._changed.set()
            self._base = {name: found.stored.get(name, 0) - tallies.get(name, 0) for name in names}
            if found.counts is not None:
                self._counts_round = max(self._counts_round, self.published.counts_round) + 1
                self.own_count = self._counts_round, begun
                await self._tenants.publish_counts(found.counts, self._counts_round)
                for gone in set(self.published.bookies) - set(known) - {self._bookie_id}:
                    await self._tenants.drop(gone)
        except (MetadataError, StoreError, OSError) as error:
            log.warning("the bytes that namespaces store cannot be recounted now: %s", error)
        took = self._loop.time() - began
        self._recount_at = self._loop.time() + max(ROUND_S / 2, _SHARE_OF_TIME * took)

    def _counts_for_all(self) -> bool:
        """Return whether this bookie counts the records for all: it is the first by id of those that still publish."""
        alive = [one for one in self.published.bookies if not self._is_silent(one)]
        return self._bookie_id <= min([*alive, self._bookie_id])

    def _is_silent(self, bookie: BookieId) -> bool:
        _, since = self._last_round.get(bookie, (0, self.rounds))
        return bookie != self._bookie_id and self.rounds - since > SILENT_ROUNDS

    def _count(self) -> dict[str, Usage]:
        """Return the usage of each namespace on this bookie since the last call."""
        now = self._loop.time()
        elapsed = now - self._before_at
        tenants = self._limiter.tenants
        found: dict[str, Usage] = {}
        for name in dict.fromkeys([*self._base, *tenants]):
            tenant = self._limiter.tenant(name)
            tenant.purge()
            stored = max(0, self._base.get(name, 0) + tenant.tally().stored)
            found[name] = tenant.usage(self._before.get(name, Tally(0, 0.0, 0.0, 0)), elapsed, stored)
        self._before = {name: one.tally() for name, one in tenants.items()}
        self._before_at = now
        return found

    def _apply(self, mine: Mapping[str, Usage]) -> None:
        """Give every namespace its part of each quota."""
        now = self._loop.time()
        for bookie, number in self.published.rounds.items():
            if self._last_round.get(bookie, (None, 0))[0] != number:
                self._last_round[bookie] = number, self.rounds
        others = {bookie: one for bookie, one in self.published.bookies.items() if bookie != self._bookie_id}
        asking = [one for bookie, one in others.items() if not self._is_silent(bookie)]
        for name in dict.fromkeys([*self.quotas, *self._limiter.tenants]):
            tenant, quotas = self._limiter.tenant(name), self.quotas.get(name, NONE)
            own = mine.get(name, Usage())
            theirs = [one.get(name, Usage()) for one in asking]
            for rate, quota, wanted in _RATES:
                limit = getattr(quotas, quota)
                share = (
                    None
                    if limit is None
                    else share_of(limit, getattr(own, wanted), [getattr(t, wanted) for t in theirs])
                )
                tenant.limit(rate, share, now)
            tenant.stored_left = _UNLIMITED
            if quotas.stored_bytes is not None:
                stored = own.stored_bytes + sum(one[name].stored_bytes for one in others.values() if name in one)
                since = tenant.tally().stored - self._before.get(name, Tally(0, 0.0, 0.0, 0)).stored
                tenant.stored_left = quotas.stored_bytes - stored - since
            tenant.most_connections = _UNLIMITED if quotas.connections is None else quotas.connections

    # -- what others ask

    def full(self, namespace: str) -> QuotaExceeded | None:
        """Return the error for a namespace that may store nothing more, else None."""
        limit = self.quotas.get(namespace, NONE).stored_bytes if self._on else None
        if limit is None:
            return None
        left = self._limiter.tenant(namespace).stored_left
        return QuotaExceeded(namespace, "stored_bytes", limit - left, limit) if left <= 0 else None

    def used_up(self, allowed: Callable[[str], bool]) -> dict[str, int]:
        """Return NAMESPACE/QUOTA/used and NAMESPACE/QUOTA/limit of each used-up quota, for namespaces that are
        `allowed`."""
        found: dict[str, int] = {}
        for namespace in self.quotas if self._on else ():
            error = self.full(namespace) if allowed(namespace) else None
            if error is not None and error.used is not None and error.limit is not None:
                found[f"{namespace}/{error.quota}/used"] = error.used
                found[f"{namespace}/{error.quota}/limit"] = error.limit
        return found
