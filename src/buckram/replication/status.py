"""The state of a replicated namespace, seen from one of its clusters: its role, the lag of its mirrors, and its gauges.

Not here: how a lag is measured (`replication/lag.py`), serving the gauges (`serve/cluster_exporter.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from buckram.cluster import Client, connect
from buckram.core.streams.metadata.mirrors import MIRROR, SUPERSEDED
from buckram.core.streams.names import OBJECTS_LOG
from buckram.core.streams.replication_links import Link
from buckram.errors import BuckramError, NoSuchStream
from buckram.metadata.tree.key_operations import all_names
from buckram.metadata.uri import ETCD_AUTH, ZOOKEEPER_AUTH
from buckram.replication.lag import Lag, lag_of, read_progress
from buckram.replication.object_differences import MissingObjects, missing_objects
from buckram.replication.run import Replication
from buckram.replication.sides import Side, read_link, side_of, stream_names
from buckram.runtime.net.security.logins import TOKEN_VARIABLE
from buckram.runtime.process.stats import PrometheusStats
from buckram.streams.shared.metadata import retry_metadata


@dataclass(frozen=True, slots=True)
class NamespaceStatus:
    """State of one namespace. `reached`: the other side was asked; otherwise lags are as last written down."""

    namespace: str
    link: Link
    reached: bool
    streams: tuple[Lag, ...]
    objects: MissingObjects | None = None
    """Objects that a mirror lacks; None if there is no mirror of objects."""

    @property
    def worst(self) -> float | None:
        """Return the greatest lag in seconds; None if it is not known."""
        known = [one.seconds for one in self.streams if one.seconds is not None]
        return max(known) if len(known) == len(self.streams) else None

    def as_json(self) -> dict[str, Any]:
        lags = [one.records for one in self.streams]
        sizes = [one.bytes for one in self.streams]
        return {
            "namespace": self.namespace,
            "state": self.link.state,
            "other": self.link.cluster,
            "uri": self.link.uri,
            "epoch": self.link.epoch,
            "other_reached": self.reached,
            "lag_records": sum(one or 0 for one in lags) if None not in lags else None,
            "lag_bytes": sum(one or 0 for one in sizes) if None not in sizes else None,
            "lag_s": 0.0 if not self.streams else self.worst,
            "streams": [one.as_json() for one in self.streams],
            "objects": None if self.objects is None else self.objects.as_json(),
        }


_LOGINS = (
    TOKEN_VARIABLE, "BUCKRAM_AUTH_TOKEN_FILE", "BUCKRAM_AUTH_SASL_USER", ZOOKEEPER_AUTH, ETCD_AUTH,
)  # fmt: skip


def has_login(environment: Mapping[str, str]) -> bool:
    """Return whether the environment has credentials, which would be used for any cluster that is connected to."""
    return any(environment.get(name) for name in _LOGINS)


@asynccontextmanager
async def other_side(link: Link | None, uri: str = "", within_s: float = 5.0) -> AsyncIterator[Side | None]:
    """Return the other cluster of a replication, None if it cannot be reached now. `uri`: its address, if not as
    recorded.

    The recorded address is not followed if this process `has_login`: whoever administers a namespace can write its
    link, and would be sent the credential.
    """
    where = uri or (link.uri if link is not None and not has_login(os.environ) else "")
    if not where:
        yield None
        return
    client: Client | None = None
    try:
        client, side = await _reach(where, within_s)
    except (BuckramError, OSError, TimeoutError):
        yield None
        return
    try:
        yield side
    finally:
        await client.close()


async def _reach(uri: str, within_s: float) -> tuple[Client, Side]:
    async with asyncio.timeout(within_s):
        client = await connect(uri)
        try:
            return client, await side_of(client)
        except BaseException:
            await client.close()
            raise


async def replicated_namespaces(side: Side) -> list[str]:
    """Return the namespaces of which a cluster has a record, in order. Raises MetadataUnavailable."""
    folder = f"{side.streams.layout.root}/replication"

    async def read() -> list[str]:
        return [name async for name in all_names(side.streams.keys, folder)]

    return await retry_metadata(read)


async def status_of(side: Side, namespace: str, uri: str = "") -> NamespaceStatus | None:
    """Return the state of a namespace; None if it is not replicated. `uri` is that of `other_side`."""
    link = await read_link(side, namespace)
    if link is None:
        return None
    async with other_side(link, uri) as other:
        if other is not None and other.cluster != link.cluster:
            other = None
        objects: MissingObjects | None = None
        if link.state == MIRROR:
            found = await _lags(other, side, namespace)
            objects = await missing_objects(other, side, namespace)
        elif link.state == SUPERSEDED or other is None:
            found = ()
        else:  # This is the source: the mirror is there.
            there = await read_link(other, namespace)
            is_mirror = there is not None and there.state == MIRROR and there.cluster == side.cluster
            found = await _lags(side, other, namespace) if is_mirror else ()
            objects = await missing_objects(side, other, namespace) if is_mirror else None
        return NamespaceStatus(namespace, link, other is not None, found, objects)


async def _lags(source: Side | None, target: Side, namespace: str) -> tuple[Lag, ...]:
    found: list[Lag] = []
    async for name in stream_names(target, namespace):
        try:
            head = (await target.streams.read(name)).head
            mark, uid = head.mirror, head.uid
            if mark is not None and mark.state == MIRROR and name.stream != OBJECTS_LOG:
                lag, said = await lag_of(source, target, name), await read_progress(target, uid)
                found.append(lag if said is None else replace(lag, trouble=said.trouble, since=said.since))
        except NoSuchStream:
            continue
    return tuple(found)


# -- gauges of a running replication ----------------------------------------------------------------------


async def show_replication(work: Replication, source: Side, target: Side, stats: PrometheusStats) -> None:
    """Set the gauges of every stream and of the objects that are copied. Raises MetadataUnavailable."""
    for name, copying in list(work.streams.items()):
        labels = {"stream": str(name)}
        copied = stats.gauge("buckram_replication_copied_offset", "the offset up to which the mirror is", **labels)
        copied.set(copying.copy.copied)
        moved = stats.gauge("buckram_replication_copied_bytes", "bytes that this process has copied", **labels)
        moved.set(copying.copy.bytes)
        failing = stats.gauge("buckram_replication_failing", "1 while the stream cannot be copied", **labels)
        failing.set(int(bool(copying.trouble)))
        try:
            lag = await lag_of(source, target, name)
        except NoSuchStream:
            continue
        except BuckramError:
            if copying.trouble:
                continue
            raise
        if lag.records is not None:
            stats.gauge("buckram_replication_lag_records", "records that the mirror lacks", **labels).set(lag.records)
        if lag.bytes is not None:
            stats.gauge("buckram_replication_lag_bytes", "bytes of the records that the mirror lacks", **labels).set(
                lag.bytes
            )
        if lag.seconds is not None:
            behind = stats.gauge(
                "buckram_replication_lag_seconds", "the age of the oldest record that the mirror lacks", **labels
            )
            behind.set(lag.seconds)
    for namespace, objects in work.objects.items():
        labels = {"namespace": namespace}
        copied = stats.gauge("buckram_replication_objects_copied", "objects that this process has copied", **labels)
        copied.set(objects.copy.objects)
        lacking = objects.copy.lacking
        missing = stats.gauge("buckram_replication_objects_missing", "objects that the mirror lacks", **labels)
        missing.set(0 if lacking is None else len(lacking.puts))
        failing = stats.gauge("buckram_replication_objects_failing", "1 while some objects cannot be copied", **labels)
        failing.set(int(bool(objects.trouble)))
