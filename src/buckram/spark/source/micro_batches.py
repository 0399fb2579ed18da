"""Streaming reads of streams: the offsets of micro-batches, on the driver.

An offset is `{"shop/orders": 120, "uids": {"shop/orders": "5f..."}}`: the next record of each stream, and the stream's
uid, so that a stream that was deleted and created again is not taken for the old one; and what tells whether a stream
went back with its metadata (`spark/shared/rollback_detection.py`). With a cursor the offset also
names it, for the listener that moves the cursor past the last batch (`query_cursor.py`). A stream that is new to the
query enters the offset at its earliest record and without rows, so that the start of each batch is recorded before the
batch is read. Not here: the start of the first batch (`first_batch.py`), PySpark's rate limit per trigger
(`micro_batch_limits.py`), cutting a batch into partitions (`stream_planner.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from buckram.cluster import Client
from buckram.core.streams.names import stream_name
from buckram.core.streams.records.positions import PositionMark
from buckram.errors import BuckramError, RecordsLost
from buckram.spark.shared.bounded_gather import run_in_order
from buckram.spark.shared.clients import connection, without_traceback
from buckram.spark.shared.cluster_uri import vouched
from buckram.spark.shared.columns import Shape
from buckram.spark.shared.first_batch import KeptStartReader, Offset, as_initial, with_start
from buckram.spark.shared.rollback_detection import VOUCHED, lost, mark_in, noted
from buckram.spark.shared.stream_partition import StreamPartition
from buckram.spark.source.batch_read import first_offset
from buckram.spark.source.partition_reader import PartitionReader
from buckram.spark.source.planning import Backlog, StreamOptions, share_limit
from buckram.spark.source.query_cursor import CursorFollower
from buckram.spark.source.query_lag import LAG, measured_within
from buckram.spark.source.stream_planner import Planner, StreamState, Wanted
from buckram.streams.read.locate import went_back
from buckram.streams.read.position_check import history_now, time_before, verdict_on

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("buckram.spark")
UIDS, CURSOR, CLUSTER = "uids", "cursor", "cluster"
"""The keys of an offset that are not streams; the full name of a stream has a slash."""


def positions(offset: Mapping[str, Any]) -> dict[str, int]:
    """Return the next record of each stream in an offset."""
    return {name: position for name, position in offset.items() if "/" in name}


class Live:
    """The offsets of one run of a streaming query, from batch to batch. One coroutine may run at a time."""

    def __init__(self, client: Client, options: StreamOptions) -> None:
        self._options = options
        self._planner = Planner(client)
        self.target: dict[str, int] | None = None
        """The end of this run for each stream, if its trigger is availableNow."""
        self._seen: dict[str, StreamState] = {}
        """The streams as `latest` saw them last."""
        self._planned: dict[str, int] = {}
        """End of the batch that `latest` returned last, by stream."""
        self._checked: dict[str, PositionMark] = {}
        """The positions that were compared last with what their streams have."""
        self._initial: Offset | None = None
        self._batch_at = float("-inf")
        """Time when the last batch was returned, by the loop's clock."""

    async def initial(self) -> Offset:
        """Return where a query without a checkpoint begins; repeated calls in one run return the same.

        Raises NoSuchStream, OffsetOutOfRange, RecordsLost.
        """
        if self._initial is None:
            self._initial = as_initial(await self._first())
        return self._initial

    async def _first(self) -> Offset:
        states = await self._read_states(None)
        firsts = await run_in_order(
            [partial(first_offset, self._planner, self._options, name, state) for name, state in states.items()]
        )
        return await self._offset(dict(zip(states, firsts, strict=True)), states, {})

    async def latest(self, start: Offset | None, *, limited: bool) -> Offset:
        """Return the end of the next batch: what is readable, within the limits; `start` if nothing is new.

        PySpark 4.0 and 4.1 do not pass `start`; then it is everything that is readable. Raises RecordsLost.
        """
        if start is None:
            states = await self._read_states({})
            whole = await self._offset({n: state.end for n, state in states.items()}, states, {})
            return with_start(self._initial or {}, whole)
        before, uids = positions(start), dict(start.get(UIDS, {}))
        states = self._seen = await self._read_states(before)
        ends: dict[str, int] = {}
        backlogs: list[Backlog] = []
        for name, state in states.items():
            if self.target is not None and name not in self.target:
                ends[name] = before.get(name, state.earliest)
            elif name not in before:
                ends[name] = state.earliest
            elif uids.get(name, state.head.uid) != state.head.uid:
                self._lost(RecordsLost(name, before[name], state.earliest, "the stream was deleted and made anew"))
                ends[name] = state.earliest
            else:
                begin = before[name]
                if begin < state.earliest:
                    self._lost(RecordsLost(name, begin, state.earliest, "was truncated"))
                if begin > state.end and await went_back(
                    self._planner.client, self._planner.streams, state.name, begin
                ):
                    self._lost(
                        RecordsLost(name, begin, state.earliest, f"the stream went back, it ends at {state.end}")
                    )
                    ends[name] = state.end
                    continue
                await self._check(start, name, state)
                reach = state.end if self.target is None else min(state.end, self.target[name])
                ends[name] = max(reach, begin)
                backlogs.append(Backlog(name, max(begin, state.earliest), ends[name]))
        self._planned = before
        if self._may_wait(sum(b.end - b.start for b in backlogs)):
            return start
        if limited:
            ends.update(await self._limited(states, backlogs, sum(before.values())))
        end = with_start(start, await self._offset(ends, states, start))
        if end is not start:
            self._batch_at = asyncio.get_running_loop().time()
        self._planned = positions(end)
        return end

    def _may_wait(self, records: int) -> bool:
        """Return whether there are too few records for a batch yet (minOffsetsPerTrigger).

        A run with a target never waits.
        """
        options = self._options
        waited = asyncio.get_running_loop().time() - self._batch_at
        return records < options.min_offsets and self.target is None and waited < options.trigger_delay_s

    async def last_ends(self) -> Offset:
        """Return the ends of the streams when they were read last, for the query's progress, and in LAG what the batch
        that was planned then leaves of them."""
        states = self._seen or await self._read_states({})
        ends: Offset = {name: states[name].end for name in sorted(states)}
        lags = await measured_within(self._planner, states, self._planned)
        return ends if lags is None else {**ends, LAG: lags}

    async def set_target(self) -> None:
        """Set the target: no batch of this run goes further than what is readable now."""
        self.target = {name: state.end for name, state in (await self._read_states({})).items()}

    async def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the batch between two offsets; it has the same records whenever it is planned. Raises RecordsLost."""
        self._initial = None
        before, uids, now = positions(start), dict(start.get(UIDS, {})), dict(end.get(UIDS, {}))
        await self._compared(before, uids, now)
        await self._check_shorter(before, positions(end), uids, now)
        # A stream that was created again has no start in this batch. PySpark 4.2 asks `latest` with a start, which
        # entered the stream at its earliest record, without rows; older ones read all that it has in this batch.
        begins = {name: before[name] for name in before if uids.get(name, now.get(name)) == now.get(name)}
        ranges = {
            name: (begins.get(name), stop) for name, stop in positions(end).items() if begins.get(name, -1) < stop
        }
        # Streams that this trigger has read far enough are not read again; a repeated batch reads them.
        seen = {name: self._seen[name] for name, (_, stop) in ranges.items() if self._reaches(name, stop)}
        states = seen | await self._planner.read_states([name for name in ranges if name not in seen], may_miss=True)
        wanted = []
        for name, (known, stop) in ranges.items():
            state = states.get(name)
            if state is None:
                self._lost(RecordsLost(name, known or 0, None, "the stream was deleted"))
            elif now.get(name, state.head.uid) != state.head.uid:
                self._lost(RecordsLost(name, known or 0, state.earliest, "the stream was deleted and made anew"))
            else:
                # Without a start, which happens on PySpark 4.0 and 4.1 only, the batch begins at the earliest record.
                first = state.earliest if known is None else known
                if known is not None:
                    await self._check(start, name, state)
                await self._check(end, name, state)  # Planned before a restore, perhaps.
                wanted.append(Wanted(state, first, stop))
        return await self._planner.partitions([w for w in wanted if w.first < w.stop], self._options)

    # -- inside -------------------------------------------------------------------------------------------

    async def _compared(self, before: Mapping[str, int], uids: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Report streams that were deleted, or deleted and created again, between the two offsets of a batch.

        PySpark 4.0 and 4.1 do not pass the start to `latest`, so this is the first place where it can be noticed.
        """
        for name, uid in uids.items():
            if name in now and now[name] != uid:
                self._lost(RecordsLost(name, before[name], None, "the stream was deleted and made anew"))
        missing = [name for name in before if uids and name not in now]
        if missing:
            names = set(await self._planner.names(self._options))
            for name in missing:
                if name in names or self._options.pattern is not None:
                    self._lost(RecordsLost(name, before[name], None, "the stream was deleted"))

    async def _check_shorter(
        self, before: Mapping[str, int], ends: Mapping[str, int], uids: Mapping[str, str], now: Mapping[str, str]
    ) -> None:
        """Report streams that end below where the batch begins: their metadata were restored.

        Those that PySpark 4.2 and newer ask `latest` for with a start are reported there.
        """
        for name, first in before.items():
            same = name in now and uids.get(name, now[name]) == now[name]
            if same and ends.get(name, first) < first:
                full = stream_name(name)
                if await went_back(self._planner.client, self._planner.streams, full, first):
                    why = f"the stream went back, it ends at {ends[name]}"
                    self._lost(RecordsLost(name, first, None, why))

    async def _check(self, offset: Offset, name: str, state: StreamState) -> None:
        """Report a stream that has other records now below a position of an offset: its metadata were restored."""
        mark = mark_in(offset, name)
        if self._checked.get(name) == mark:
            return
        planner = self._planner
        verdict = await verdict_on(planner.client, planner.streams, state.name, state.head, state.end, mark)
        error = lost(name, mark, state.earliest, verdict)
        if error is not None:
            self._lost(error)
        self._checked[name] = mark

    def _reaches(self, name: str, stop: int) -> bool:
        """Return whether the stream had the records below `stop` when it was read last."""
        state = self._seen.get(name)
        return state is not None and state.end >= stop

    async def _read_states(self, known: Mapping[str, int] | None) -> dict[str, StreamState]:
        """Read how far all streams of the query go now.

        `known` has the streams in the query's offset, and is None for a query that begins. A missing stream among them
        is reported as lost.
        """
        by_pattern = self._options.pattern is not None
        names = await self._planner.names(self._options)
        states = await self._planner.read_states(names, may_miss=known is not None or by_pattern)
        wanted = set(names)
        for name, position in (known or {}).items():
            if name not in states and (name in wanted or by_pattern):
                self._lost(RecordsLost(name, position, None, "the stream was deleted"))
        return states

    def _lost(self, error: RecordsLost) -> None:
        """Raise the error, or only log it if the option failOnDataLoss is false."""
        if self._options.fail_on_loss:
            raise error
        log.warning("%s", error)

    async def _limited(self, states: Mapping[str, StreamState], backlogs: list[Backlog], turn: int) -> dict[str, int]:
        """Return the ends within maxOffsetsPerTrigger and maxBytesPerTrigger; `turn` is that of `share`."""
        options, ends = self._options, {b.stream: b.end for b in backlogs}
        if options.max_offsets is not None:
            shares = share_limit(options.max_offsets, backlogs, turn)
            ends = {b.stream: min(ends[b.stream], b.start + shares[b.stream]) for b in backlogs}
        if options.max_bytes is not None:
            shares = share_limit(options.max_bytes, backlogs, turn)
            for b in backlogs:
                if not shares[b.stream]:
                    ends[b.stream] = b.start
                elif b.end > b.start:
                    reach = await self._planner.reach(states[b.stream], b.start, b.end, shares[b.stream])
                    ends[b.stream] = min(ends[b.stream], reach)
        return ends

    async def _offset(self, ends: Mapping[str, int], states: Mapping[str, StreamState], start: Offset) -> Offset:
        # Spark compares offsets as JSON text, so the order of the keys is always the same.
        names = sorted(ends)
        times = await run_in_order([partial(self._time, states[name], ends[name], start) for name in names])
        offset: Offset = {name: ends[name] for name in names}
        offset[UIDS] = {name: states[name].head.uid for name in names}
        offset |= noted(dict(zip(names, times, strict=True)), history_now(self._planner.client))
        if self._options.cursor is not None:
            cursor, cluster = self._options.cursor, self._options.metadata
            offset |= {CURSOR: cursor, CLUSTER: cluster}
            if proof := vouched(cluster, cursor, names):
                offset[VOUCHED] = proof
        return offset

    async def _time(self, state: StreamState, position: int, start: Offset) -> int:
        """Return when the record before a position of a stream was appended; 0 if that is not known."""
        if position == state.end and state.end_time:
            return state.end_time
        name = str(state.name)
        known = mark_in(start, name) if name in start else None
        if known is not None and known.offset == position and known.append_time:
            return known.append_time
        return await time_before(self._planner.client, self._planner.streams, state.name, state.head, position)


class LiveReader(KeptStartReader):
    """The stream reader for PySpark 4.0 and 4.1, where each batch takes everything that is readable.

    In the driver's source process it keeps a Live; its copies in executors only read partitions.
    """

    def __init__(self, options: StreamOptions, shape: Shape) -> None:
        self.options, self.shape = options, shape
        self._live: Live | None = None
        self._follower: CursorFollower | None = None
        self._began = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None, "_follower": None}

    def live(self) -> Live:
        """Return the state of this run; the first call creates it."""
        if self._live is None:
            self._live = Live(connection(self.options.metadata).client, self.options)
        return self._live

    def first_offset(self) -> Offset:
        return connection(self.options.metadata).run(lambda _: self.live().initial())

    def latestOffset(self) -> Offset:  # type: ignore[override]  # the signature of 4.0 and 4.1
        with without_traceback():
            return connection(self.options.metadata).run(lambda _: self.live().latest(None, limited=False))

    def between(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self.options.check_reads(positions(end))
        self.begin(start)
        return connection(self.options.metadata).run(lambda _: self.live().partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StreamPartition):
            return iter(())
        options = self.options
        return PartitionReader(options, self.shape).read(partition)

    def commit(self, end: Offset) -> None:
        """Move the cursor to `end`, since everything before it was processed."""
        with without_traceback():
            self._move(end)

    def stop(self) -> None:
        """Do nothing: Spark ends the process without calling this."""

    def begin(self, start: Offset) -> None:
        """Move the cursor to the start of the first batch of a run, so that retention keeps the records to read."""
        if not self._began:
            self._began = True
            self._move(start)

    def _move(self, offset: Offset) -> None:
        self.options.check_reads(positions(offset))
        if self.options.cursor is not None:
            if self._follower is None:
                self._follower = CursorFollower(self.options.metadata, self.options.cursor)
            self._follower.move(positions(offset))


class RefusingReader(DataSourceStreamReader):
    """Raises the error in a query's options when it is asked for offsets.

    If the error were raised while the reader is made, PySpark would add an UnboundLocalError of its own to it.
    """

    def __init__(self, error: BuckramError) -> None:
        self._error = error

    def initialOffset(self) -> Offset:
        raise self._error.with_traceback(None)

    def latestOffset(self) -> Offset:  # type: ignore[override]  # none of the limits of 4.2
        raise self._error.with_traceback(None)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        raise self._error.with_traceback(None)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error.with_traceback(None)
