"""Sides: the two clusters of a replication, and the record that each has of a replicated namespace.

Not here: what a record means and when a replication is refused (`core/streams/replication_links.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from buckram.cluster import Client
from buckram.core.streams.metadata.mirrors import SUPERSEDED
from buckram.core.streams.names import StreamName
from buckram.core.streams.replication_links import Link, encode_link, shown_uri, version_of
from buckram.errors import KeyExists, NoSuchKey, VersionConflict
from buckram.streams.shared.metadata import StreamStore, head_retries, retry_metadata
from buckram.streams.shared.namespaces import Namespaces
from buckram.types import Create, SetValue

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Side:
    """One cluster of a replication."""

    client: Client
    streams: StreamStore
    namespaces: Namespaces
    cluster: str
    """Identity of the cluster."""

    @property
    def uri(self) -> str:
        """Return the cluster's address as it is shown in records."""
        return shown_uri(self.client.uri)

    def now(self) -> int:
        """Return microseconds UTC, by this process's clock: for people only."""
        return self.client.services.runtime.clock.wall_us()


async def side_of(client: Client) -> Side:
    """Return a cluster as a side. Raises ClusterNotInitialised, MetadataUnavailable."""
    cluster = await retry_metadata(client.services.store.instance_id)
    streams = StreamStore(client.services.store)
    return Side(client, streams, Namespaces(streams), cluster)


async def read_link(side: Side, namespace: str) -> Link | None:
    """Return a cluster's record of the replication of a namespace. Raises MalformedRecord, MetadataUnavailable."""
    return await side.streams.link(namespace)


class WrittenLink(NamedTuple):
    """A record as it was written, and the version that the namespace's record got with it; -1: there is none."""

    link: Link
    space: int


async def write_link(side: Side, namespace: str, link: Link) -> WrittenLink:
    """Replace the record that was read with `link.version`, and return the new one.

    The namespace's record is written anew in the same step. Streams are created on condition that it did not change, so
    a stream whose creation began earlier, without reading this link, is not created.

    Raises VersionConflict if somebody else changed it meanwhile, KeyExists if it exists and did not before, and
    NoSuchKey if it or the namespace was deleted meanwhile.
    """
    keys, layout = side.streams.keys, side.streams.layout
    key, value = layout.link(namespace), encode_link(link)
    put = Create(key, value) if link.version < 0 else SetValue(key, value, link.version)
    try:
        space = await retry_metadata(lambda: keys.get(layout.namespace(namespace)))
        await keys.multi([put, SetValue(layout.namespace(namespace), space.value, space.version)])
        return WrittenLink(replace(link, version=link.version + 1), space.version + 1)
    except NoSuchKey as error:
        if error.key != layout.namespace(namespace):
            raise
        await keys.multi([put])
        await _touch(side, namespace)
    return WrittenLink(replace(link, version=link.version + 1), -1)


async def _touch(side: Side, namespace: str) -> None:
    """Write a namespace's record anew, if one was made since there was none."""
    keys, key, retries = side.streams.keys, side.streams.layout.namespace(namespace), head_retries()
    while True:
        try:
            found = await retry_metadata(partial(keys.get, key))
            await keys.set(key, found.value, found.version)
            return
        except NoSuchKey:
            return
        except VersionConflict as error:
            await retries.wait(error)


async def put_link(side: Side, namespace: str, link: Link) -> Link:
    """Have a cluster hold this record, unless the one it holds has a higher epoch; return the one that it
    holds then.

    A side that was reconciled since the promotion of that epoch is not superseded by it again.
    """
    retries = head_retries()
    while True:
        known = await read_link(side, namespace)
        if known is not None:
            same = replace(link, version=known.version, time=known.time) == known
            reconciled = link.state == SUPERSEDED and known.epoch == link.epoch
            if same or reconciled or known.epoch > link.epoch:
                return known
        try:
            return (await write_link(side, namespace, replace(link, version=version_of(known)))).link
        except (KeyExists, VersionConflict, NoSuchKey) as error:
            await retries.wait(error)


async def stream_names(side: Side, namespace: str) -> AsyncIterator[StreamName]:
    """Iterate over the streams of a namespace, in the order of their names."""
    after = ""
    while page := await side.streams.streams(namespace, after=after, limit=_PAGE):
        for stream in page:
            yield StreamName(namespace, stream)
        after = page[-1]
