"""One look at a cluster, through the client and the metadata store.

What becomes a metric is serve/exporter/gauges.py.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from buckram.cluster import Client
from buckram.core.tenants.quotas import Quotas
from buckram.errors import BuckramError
from buckram.healing.overview import Overview, overview
from buckram.metadata.records.tenants import Published, TenantStore
from buckram.state.db.commits.database_log import is_database
from buckram.state.db.commits.replica_reports import ReplicaReport, shown_replicas
from buckram.streams.info import StreamInfo
from buckram.streams.read.cursors import CursorInfo

AT_ONCE = 16
PAGE = 1000
MOST_CURSORS = 100
"""Maximum cursors that are exported for one stream: those with the largest lag."""


@dataclass(frozen=True, slots=True)
class StreamLook:
    """A stream with its cursors, and where it is the log of a database, with the replicas that are shown."""

    info: StreamInfo
    cursors: tuple[CursorInfo, ...] = ()
    replicas: tuple[ReplicaReport, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """A cluster at one moment. `left_out`: streams beyond the limit, or that could not be read now."""

    bookies: Mapping[str, int]
    """Numbers of bookies by state: writable, readonly, down."""
    healing: Overview
    streams: tuple[StreamLook, ...] = ()
    left_out: int = 0
    usage: Published = field(default_factory=Published)
    quotas: Mapping[str, Quotas] = field(default_factory=dict)


async def look(client: Client, most_streams: int) -> ClusterSample:
    """Look at a cluster once, at the first `most_streams` streams in the order of their names. Raises MetadataError."""
    store = client.services.store
    registered = await store.bookies()
    known = {*await store.known_bookies(), *registered.writable, *registered.readonly}
    bookies = {"writable": len(registered.writable), "readonly": len(registered.readonly)}
    bookies["down"] = len(known) - sum(bookies.values())
    healing = await overview(store, client.services.runtime.clock.wall_us() // 1000)
    names, left_out = await _names(client, most_streams)
    found: list[StreamLook] = []
    for first in range(0, len(names), AT_ONCE):
        part = await asyncio.gather(*(_look_at_stream(client, *one) for one in names[first : first + AT_ONCE]))
        found += [one for one in part if one is not None]
    tenants = TenantStore(store)
    usage, quotas = Published(), dict[str, Quotas]()
    if await tenants.is_on():
        usage, quotas = await tenants.published(), await tenants.quotas()
    return ClusterSample(bookies, healing, tuple(found), left_out + len(names) - len(found), usage, quotas)


async def _names(client: Client, most: int) -> tuple[list[tuple[str, str]], int]:
    """Return pairs of namespace and stream, at most `most`, and how many streams there are beyond."""
    names: list[tuple[str, str]] = []
    left_out = 0
    for namespace in await client.namespaces.list():
        after = ""
        while page := await client.namespace(namespace).list(after=after, limit=PAGE):
            taken = page[: most - len(names)]
            names += [(namespace, stream) for stream in taken]
            left_out += len(page) - len(taken)
            after = page[-1]
    return names, left_out


async def _look_at_stream(client: Client, namespace: str, name: str) -> StreamLook | None:
    """Return a stream with its cursors and replicas; None if it was deleted or cannot be read now."""
    place = client.namespace(namespace)
    try:
        info = await place.info(name)
        cursors: list[CursorInfo] = []
        after = ""
        while page := await place.cursors(name, after=after, limit=PAGE):
            cursors = heapq.nlargest(MOST_CURSORS, [*cursors, *page], key=lambda one: one.lag)
            after = page[-1].name
        replicas = await shown_replicas(place.store, info.uid) if is_database(info) else ()
        return StreamLook(info, tuple(cursors), tuple(replicas))
    except BuckramError:
        return None
