"""Reports of the replicas of a database: servers publish theirs as ephemeral keys, with offset and digest of each.

They are for operators; no decision rests on them. Not here: what makes a replica stop that differs
(`state/db/table_engine/engine.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from buckram.errors import BuckramError, NoSuchKey
from buckram.runtime.process.tasks import TaskScope
from buckram.state.db.commits.changes import change_fold, ends, folded
from buckram.streams.shared.metadata import retry_metadata

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient
    from buckram.core.streams.names import StreamName
    from buckram.seams import KeyStore
    from buckram.streams.namespace import StreamNamespace
    from buckram.streams.shared.metadata import StreamStore

_EVERY_S = 2.0
_PAGE = 1000


class ReplicaReport(NamedTuple):
    """Self-report of a replica: it has everything below `offset`; `digest` is that of its pages after `groups`."""

    id: str
    role: str
    offset: int
    groups: int
    digest: str


class ReplicaReporter:
    """Publishes one replica from `start` to `close`, calling `report` now and then. Waits while the store is away."""

    def __init__(self, keys: KeyStore, key: str, report: Callable[[], Awaitable[ReplicaReport]]) -> None:
        self._keys, self._key, self._report = keys, key, report
        self._scope = TaskScope(f"sign {key}")

    def start(self) -> None:
        self._scope.keep(self._keep, "keep")

    async def _keep(self) -> None:
        while True:
            # A process without permission to write keys here is not shown, and is a replica all the same.
            with suppress(BuckramError):
                await self._show(json.dumps((await self._report())._asdict()).encode())
            await asyncio.sleep(_EVERY_S)

    async def _show(self, value: bytes) -> None:
        try:
            found = await self._keys.get(self._key)
            if found.value != value:
                await self._keys.set(self._key, value, found.version)
        except NoSuchKey:
            await self._keys.create(self._key, value, ephemeral=True)

    async def close(self) -> None:
        """Delete the key. While the store is away, the end of the session deletes it. Idempotent."""
        await self._scope.close()
        with suppress(BuckramError):
            await self._keys.delete(self._key, (await self._keys.get(self._key)).version)


async def shown_replicas(streams: StreamStore, uid: str) -> list[ReplicaReport]:
    """Return the published reports, by name; they may be some seconds old. Raises MetadataUnavailable."""
    keys, parent, after = streams.keys, streams.layout.replicas(uid), ""
    found = list[ReplicaReport]()
    await retry_metadata(keys.sync)

    async def page() -> list[str]:
        return await keys.children(parent, after=after, limit=_PAGE)

    while names := await retry_metadata(page):
        for name in names:
            with suppress(NoSuchKey, ValueError, TypeError, RecursionError):
                found.append(ReplicaReport(**json.loads((await keys.get(f"{parent}/{name}")).value)))
        after = names[-1]
    return sorted(found)


async def compare_replicas(
    client: LedgerClient, ns: StreamNamespace, name: StreamName
) -> tuple[dict[str, str], list[str]]:
    """Return the digests of the published replicas, and a sentence for each that differs from the log's digest."""
    replicas = await shown_replicas(ns.store, (await ns.store.read(name)).head.uid)
    known = await _log_digests(client, ns, name, {one.groups for one in replicas}) if replicas else {}
    differing = [
        f"{one.id} has the digest {one.digest} after {one.groups} transactions, the log has {known[one.groups]}"
        for one in replicas
        if known.get(one.groups, one.digest) != one.digest
    ]
    return {one.id: one.digest for one in replicas}, differing


async def _log_digests(
    client: LedgerClient, ns: StreamNamespace, name: StreamName, wanted: Collection[int]
) -> dict[int, str]:
    """Return the log's digests after these numbers of groups, as far as the kept log reaches."""
    head = (await ns.store.read(name)).head
    oldest = head.snapshots[0].offset if head.snapshots and head.earliest else 0
    fold, state = await change_fold(client, ns, name, head, oldest)
    found = {state.sequence: state.pages_digest}
    async for _ in folded(ns, name, fold, *await ends(client, ns, name, head)):
        found[state.sequence] = state.pages_digest
        if len(found) > _PAGE:
            found = {groups: digest for groups, digest in found.items() if groups in wanted}
    return {groups: digest for groups, digest in found.items() if groups in wanted}
