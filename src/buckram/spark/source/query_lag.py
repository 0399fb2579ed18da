"""Lag of streaming queries behind their streams: measured in the source, shown by `lag(query)` and to Prometheus.

PySpark has no metrics of a source's own. The source therefore puts the lag into what it reports as its latest offset,
which Spark copies into the query's progress; a listener in the driver program takes it from there. Not here: the
offsets (`micro_batches.py`), how a lag is measured (`streams/read/lag.py`), cursors and their lag (`query_cursor.py`).
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from pyspark.sql.streaming.listener import StreamingQueryListener

from buckram.errors import BuckramError, InvalidArgument
from buckram.runtime.process.stats import PrometheusStats
from buckram.seams import Stats
from buckram.spark.shared.bounded_gather import run_in_order
from buckram.spark.shared.clients import connection
from buckram.spark.shared.cluster_uri import cluster_uri
from buckram.spark.source.stream_planner import Planner, StreamState
from buckram.streams.read.lag import Behind, behind

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

    from buckram.cluster import Client

log = logging.getLogger("buckram.spark")
LAG = "lag"
"""The key beside the streams in what the source reports."""
WITHIN_S = 2.0
"""Maximum time that a trigger waits for the lag, seconds."""
MOST_STREAMS = 1000
"""Maximum streams of one query that are shown to Prometheus: those that are furthest behind."""


class Lag(TypedDict):
    """Distance of a query from the end of one stream."""

    records: int
    bytes: int
    seconds: float


# -- measuring --------------------------------------------------------------------------------------------


async def measured_within(
    planner: Planner, states: Mapping[str, StreamState], positions: Mapping[str, int]
) -> dict[str, Lag] | None:
    """Return the lag of the streams that have records from their position on; None if it is not known in time.

    A query does not fail because its lag cannot be measured, so errors are logged only.
    """
    try:
        async with asyncio.timeout(WITHIN_S):
            return await measured(planner, states, positions)
    except (BuckramError, TimeoutError) as error:
        log.info("the lag of a query is not known: %s", error or f"it took more than {WITHIN_S:g} s")
        return None


async def measured(planner: Planner, states: Mapping[str, StreamState], positions: Mapping[str, int]) -> dict[str, Lag]:
    """Return the lag of the streams that have records from their position on. Raises what reading a stream raises."""
    late = {name: at for name, at in positions.items() if name in states and at < states[name].end}
    if not late:
        return {}
    jobs = [partial(_behind, planner, states[name], max(at, states[name].earliest)) for name, at in late.items()]
    found = await run_in_order(jobs)
    now = planner.client.services.clocks.now()
    return {
        name: Lag(records=one.records, bytes=one.bytes, seconds=one.seconds(now))
        for name, one in zip(late, found, strict=True)
    }


async def _behind(planner: Planner, state: StreamState, first: int) -> Behind:
    return await behind(planner.client, planner.streams, state.name, state.head, state.reach, first)


# -- for the driver program -------------------------------------------------------------------------------


def lag(query: StreamingQuery, metadata: str | None = None) -> dict[str, Lag]:
    """Return how far a query is behind each of its streams, in records, bytes and seconds since the oldest of them.

    Without `metadata` it is what the query's last progress says: as of when its last batch was planned, less that
    batch; empty before the first one. With `metadata`, the URI of the cluster, the cluster is asked now, and a batch
    counts when it is completed; the token and certificates are those of this process's environment. Bytes are as
    stored. Raises InvalidArgument on PySpark 4.0 and 4.1 without `metadata`, and with it what reading streams raises.
    """
    progress = query.lastProgress
    sources = [] if progress is None else progress.sources
    if metadata is not None:
        found: dict[str, int] = {}
        for source in sources:
            found |= _positions(source.endOffset)
        return connection(cluster_uri(metadata, {})).run(lambda client: _asked(client, found))
    if any(_positions(source.endOffset) and source.latestOffset is None for source in sources):
        raise InvalidArgument(
            "this PySpark does not tell a query how far its streams go: give the URI of the cluster, "
            'lag(query, "zk://host:2181/ledgers")'
        )
    return reported(source.latestOffset for source in sources)


def reported(latest_offsets: Iterable[str | None]) -> dict[str, Lag]:
    """Return the lag by stream that the sources of a query have reported; those of other formats are left out."""
    found: dict[str, Lag] = {}
    for text in latest_offsets:
        raw = _json(text)
        late = raw.get(LAG)
        if isinstance(late, dict):
            found |= {name: Lag(records=0, bytes=0, seconds=0.0) for name in raw if "/" in name} | late
    return found


def _positions(end_offset: str | None) -> dict[str, int]:
    raw = _json(end_offset)
    if not isinstance(raw.get("uids"), dict):
        return {}
    return {name: at for name, at in raw.items() if "/" in name and type(at) is int}


def _json(text: str | None) -> dict[str, Any]:
    try:
        raw = json.loads(text or "")
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}


async def _asked(client: Client, positions: Mapping[str, int]) -> dict[str, Lag]:
    planner = Planner(client)
    states = await planner.read_states(list(positions), may_miss=True)
    late = await measured(planner, states, positions)
    return {name: late.get(name, Lag(records=0, bytes=0, seconds=0.0)) for name in states}


class LagListener(StreamingQueryListener):
    """Shows the lag of a session's queries to Prometheus, in the registry that applications serve by default."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the query has read nothing yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        late = reported(source.latestOffset for source in progress.sources)
        if late:
            _gauges().show(str(progress.runId), progress.name or str(progress.id), late)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the query has reported its lag before."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query, whose lag is not measured any more."""
        _gauges().forget(str(event.runId))


class LagGauges:
    """The lag of all queries of this process, as a collector of Prometheus: gauges of ended queries disappear."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[str, dict[str, Lag]]] = {}

    def show(self, run: str, query: str, late: Mapping[str, Lag]) -> None:
        """Show the lag of this run of a query, under the query's name or id."""
        most = heapq.nlargest(MOST_STREAMS, late, key=lambda stream: late[stream]["records"])
        with self._lock:
            self._runs[run] = query, {stream: late[stream] for stream in most}

    def forget(self, run: str) -> None:
        """Show this run no longer."""
        with self._lock:
            self._runs.pop(run, None)

    def collect(self) -> Iterator[Metric]:
        """Return the gauges of this moment; called by the registry."""
        stats = PrometheusStats()
        with self._lock:
            runs = list(self._runs.values())
        for query, late in runs:
            for stream, one in late.items():
                _show(stats, query, stream, one)
        return iter(list(stats.registry.collect()))


def _show(stats: Stats, query: str, stream: str, one: Lag) -> None:
    records = stats.gauge(
        "buckram_spark_lag_records", "records that a streaming query has not read yet", query=query, stream=stream
    )
    records.set(one["records"])
    size = stats.gauge(
        "buckram_spark_lag_bytes", "about how many bytes a streaming query has not read yet", query=query, stream=stream
    )
    size.set(one["bytes"])
    age = stats.gauge(
        "buckram_spark_lag_seconds",
        "how long ago the first record was appended that a streaming query has not read yet",
        query=query,
        stream=stream,
    )
    age.set(one["seconds"])


_shown: list[LagGauges] = []
"""The gauges of this process, once a query has reported its lag."""


def _gauges() -> LagGauges:
    if not _shown:
        from prometheus_client import REGISTRY

        _shown.append(LagGauges())
        REGISTRY.register(_shown[0])
    return _shown[0]
