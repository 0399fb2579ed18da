"""Reads what namespaces and streams show of their health, from the metadata alone: quotas, cursors, mirrors and so on.

All heads come in pages with their values. A look ends after STREAMS_S or MOST_STREAMS streams, and reports so. Not
here: what it means (`core/health/cluster_states.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from buckram.core.health.facts import (
    BackupFacts,
    CursorFacts,
    ForeignFacts,
    MirrorFacts,
    NamespaceFacts,
    QueryFacts,
)
from buckram.core.streams.metadata.head import Head, decode_head
from buckram.core.streams.metadata.mirrors import MIRROR
from buckram.core.streams.metadata.purposes import Purpose, purpose_of
from buckram.core.streams.names import OBJECTS_LOG, StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.core.streams.replication_links import parse_progress
from buckram.core.tenants.quotas import NOTHING, Counts
from buckram.errors import BuckramError, MalformedRecord, MetadataUnavailable, NoSuchKey, NoSuchNamespace
from buckram.metadata.records.foreign_references import foreign_notes
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.tree.key_operations import all_children
from buckram.metadata.tree.store import TreeStore
from buckram.state.db.backups import read_kept
from buckram.streams.read.cursors import cursor_positions
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces, all_namespaces

_log = logging.getLogger("buckram.health")
STREAMS_S = 10.0
FRESH_S = 5.0
"""Seconds for which a look at streams is reused: pages of the console ask every few seconds."""
MOST_STREAMS = 10_000
_PAGE = 500
_CURSORS = 1000


@dataclass(slots=True)
class Found:
    """Facts that a look has gathered so far."""

    namespaces: list[NamespaceFacts] = field(default_factory=list)
    cursors: list[CursorFacts] = field(default_factory=list)
    queries: list[QueryFacts] = field(default_factory=list)
    mirrors: list[MirrorFacts] = field(default_factory=list)
    backups: list[BackupFacts] = field(default_factory=list)
    foreign: list[ForeignFacts] = field(default_factory=list)


class StreamsLook:
    """Looks at one cluster's streams, at most every FRESH_S."""

    def __init__(self, store: TreeStore) -> None:
        self._store, self._streams = store, StreamStore(store)
        self._found, self._missed = Found(), list[tuple[str, str]]()
        self._at: float | None = None

    async def look(self, missed: list[tuple[str, str]]) -> Found:
        """Return the facts as of now, at most `FRESH_S` old.

        What could not be read in time, or at all, is added to `missed`.
        """
        now = asyncio.get_running_loop().time()
        if self._at is None or now - self._at >= FRESH_S:
            self._found, self._missed = Found(), []
            await self._kept("namespaces", self._look_at_namespaces())
            await self._kept("streams", self._look_at_streams())
            await self._kept("notes of foreign ledgers", self._look_at_foreign())
            self._at = now
        missed += self._missed
        return self._found

    async def _kept(self, what: str, work: Any) -> None:
        try:
            async with asyncio.timeout(STREAMS_S):
                await work
        except TimeoutError:
            self._missed.append((what, f"not all were checked within {STREAMS_S:g} s"))
        except BuckramError as error:
            self._missed.append((what, str(error)))

    async def _look_at_namespaces(self) -> None:
        tenants = TenantStore(self._store)
        if not await tenants.is_on():
            return
        published, quotas = await tenants.published(), await tenants.quotas()
        total = published.total
        for name, limits in sorted(quotas.items()):
            counts = published.counts.get(name, Counts())
            used = {
                "stored_bytes": total.get(name, NOTHING).stored_bytes,
                "ledgers": counts.ledgers,
                "streams": counts.streams,
                "databases": counts.databases,
            }
            rows = ((quota, used[quota], limit) for quota, limit in limits.limits().items() if quota in used)
            self._found.namespaces.append(NamespaceFacts(name, tuple(rows)))

    async def _look_at_streams(self) -> None:
        seen = 0
        namespaces = Namespaces(self._streams)
        async for namespace in all_namespaces(namespaces):
            try:
                policy = (await namespaces.get(namespace)).policy
            except NoSuchNamespace:
                continue
            async for name, head in self._heads(namespace):
                seen += 1
                if seen > MOST_STREAMS:
                    self._missed.append(("streams", f"only {MOST_STREAMS} were checked, in the order of their names"))
                    return
                try:
                    await self._look_at(name, head, policy)
                except MetadataUnavailable:
                    raise
                except Exception as error:  # One stream's malformed metadata must not hide the others.
                    if not isinstance(error, BuckramError):
                        _log.error("health failed over stream %s by a mistake", name, exc_info=error)
                    self._missed.append((f"stream {name}", str(error)))

    async def _look_at_foreign(self) -> None:
        notes = await foreign_notes(self._store)
        self._found.foreign += [ForeignFacts(one.stream, one.ledger, one.time_us, one.location) for one in notes]

    async def _heads(self, namespace: str) -> AsyncIterator[tuple[str, Head]]:
        folder = self._streams.layout.heads(namespace)
        async for stream, kept in all_children(self._store.keys, folder, page=_PAGE):
            try:
                head = decode_head(f"{folder}/{stream}", kept.value)
            except MalformedRecord as error:
                self._missed.append((f"stream {namespace}/{stream}", str(error)))
                continue
            if not head.deleting and not head.incomplete:
                yield str(StreamName(namespace, stream)), head

    async def _look_at(self, name: str, head: Head, of_namespace: Mapping[str, Any]) -> None:
        policy = merged(of_namespace, head.policy)
        limits = policy.retention_s is not None or policy.retention_bytes is not None
        if policy.retention_consumed or (policy.retention_cursors and limits):
            for cursor in await cursor_positions(self._streams, head, "", _CURSORS):
                held = head.end - max(cursor.offset, head.earliest)
                self._found.cursors.append(CursorFacts(name, cursor.name, cursor.changed, max(held, 0)))
        for application, step in head.transactions.items():
            if step.query:
                query = QueryFacts(name, application, step.query, step.version, step.time, step.pause)
                self._found.queries.append(query)
        objects = name.endswith(f"/{OBJECTS_LOG}")  # objects' replication writes progress only on changes
        if head.mirror is not None and head.mirror.state == MIRROR and not objects:
            await self._look_at_mirror(name, head)
        if policy.backup_every_s and purpose_of(name, head) is Purpose.DATABASE:
            await self._look_at_backups(name, head, policy)

    async def _look_at_backups(self, name: str, head: Head, policy: Policy) -> None:
        try:
            kept = await read_kept(self._streams, head.uid)
        except MalformedRecord as error:
            self._missed.append((f"backups of {name}", str(error)))
            return
        made = 0 if kept.newest is None else kept.newest.time
        since = kept.since or head.created
        facts = BackupFacts(name, policy.backup_to, policy.backup_every_s, made, since, kept.trouble)
        self._found.backups.append(facts)

    async def _look_at_mirror(self, name: str, head: Head) -> None:
        key = self._streams.layout.progress(head.uid)
        try:
            said = parse_progress(key, (await self._store.keys.get(key)).value)
        except NoSuchKey:
            self._found.mirrors.append(MirrorFacts(name, 0, head.created))
            return
        behind = max(said.source_end - said.copied, 0)
        self._found.mirrors.append(MirrorFacts(name, behind, said.time, said.trouble))
