"""The rules by which every sink of this package writes each batch once. A sink gets its writers from here, or none.

A sink says how it writes rows (`Sink`) and how it keeps them together with the record of their step (`SinkStep`); what
happens with an attempt, given the record, is decided here, for all of them:

    no place and no name of the query      refused while Spark plans
    no record of an earlier batch          UnknownQuery
    batches lack, metadata were restored   BatchesLost
    another query stands there             CheckpointReset
    a later batch is recorded              StaleTransaction
    this batch is recorded, same rows      skipped
    this batch is recorded, other rows     ReplayDiffers
    otherwise                              rows and record are written in one step

PySpark 4.0 has no Arrow writer for streaming queries, so their rows are converted to record batches here. Not here: who
may publish what, which is pure (`core/streams/metadata/transactions.py`), and the comparison (`replay_check.py`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from buckram.core.streams.metadata.head import Transaction
from buckram.core.streams.metadata.transactions import ONCE, StepId, begins
from buckram.core.streams.names import check_name
from buckram.errors import BuckramError, InvalidArgument, StreamError
from buckram.spark.checkpoints.location import checkpoint_place
from buckram.spark.shared.clients import connection, without_traceback
from buckram.spark.shared.cluster_uri import ClusterUri
from buckram.spark.sink.replay_check import Tally, check_same, local_path, planned_at
from buckram.spark.sink.small_parts import tally_of
from buckram.spark.sink.tracing import publishing, writing
from buckram.spark.sink.transactions import Attempt, Identity, Part, batch_of, in_order, of_others

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamBase
    from pyspark.sql.types import StructType
else:
    _StreamBase = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)

ARROW_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")
"""True if streaming writers get Arrow record batches. PySpark 4.0 passes rows, which is several times slower."""
_ROUNDS = 20
"""Maximum number of decisions on one step, each repeated because others wrote records meanwhile."""


@dataclass(frozen=True, slots=True)
class Once:
    """The writer's identity and checkpoint from the options of a sink. It can be pickled."""

    identity: Identity
    version: int | None = None
    """Version given for a batch job; None without one, as for streaming queries."""
    checkpoint: str = ""
    """The path of the query's checkpoint if it is in the driver's file system, else empty."""
    compared: bool = True
    """True if a repeated batch must have the rows that were written; else it is skipped without a comparison."""

    @classmethod
    def of(cls, name: str, given: Mapping[str, str], found: Mapping[str, Any]) -> Once:
        """Return the identity by the options as Spark passes them (`given`) and their values (`found`).

        `name` is that of the stream or table that is written. Raises InvalidArgument.
        """
        application = found.get("txnAppId", "")
        if application:
            check_name("application", application)
            if application.startswith(ONCE):
                raise InvalidArgument(f'option "txnAppId" = {application!r}: names that begin with {ONCE!r} are taken')
        location = next((text for key, text in given.items() if key.lower() == "checkpointlocation"), "")
        uri = found["metadata"]
        ca = str(uri.tls.ca or "") if isinstance(uri, ClusterUri) else ""
        at = checkpoint_place(location, lambda: _cluster(uri), tls_ca=ca)
        new_epoch = found["onCheckpointReset"] == "newEpoch"
        identity = Identity(name, application, at.place, new_epoch, at.was)
        return cls(identity, found.get("txnVersion"), local_path(location), found["onReplayDiffers"] != "keep")


def _cluster(uri: str) -> str:
    """Return the id of the sink's own cluster; empty if its metadata cannot be reached, as with a server in between."""
    try:
        return connection(uri).client.services.identities.cluster
    except BuckramError:
        return ""


class SinkStep(Protocol):
    """One step where a sink keeps rows and records. It is opened by `Sink.kept` for each commit."""

    @property
    def offsets(self) -> bool:
        """Return whether the offsets in a record are those of its rows."""
        ...

    def foreseen(self) -> bool:
        """Return whether the step has to be written; False if it is recorded.

        Raises the errors of `settled` and `check_known`, by all present records.
        """
        ...

    def discard(self) -> None:
        """Delete what the tasks wrote, because the step is recorded."""
        ...

    def records(self) -> Mapping[str, Transaction]:
        """Return the record of this step by the name of what was written, the sink's own first."""
        ...

    def tally(self, name: str, done: Transaction) -> Tally | None:
        """Return the tally of the rows that were written as `done`; None if it cannot be told any more."""
        ...

    def publish(self) -> bool:
        """Write rows and record in one step. False: others wrote records meanwhile, so that it is decided anew."""
        ...


class Sink(Protocol):
    """Interface of a sink to the rules. It is pickled to the tasks."""

    @property
    def name(self) -> str:
        """Return the name of the stream or table that is written, for errors."""
        ...

    @property
    def once(self) -> Once: ...

    @property
    def schema(self) -> StructType: ...

    def planned(self, step: StepId | None) -> bool:
        """Check on the driver, while Spark plans, that the sink can be written.

        Return whether this step of a job still has to be. `step` is None for a streaming query, whose batch only its
        tasks know.
        """
        ...

    def write(self, step: StepId, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Part:
        """Do what a task does with its rows. Readers see nothing of it."""
        ...

    def kept(self, step: StepId, parts: Sequence[Part]) -> SinkStep:
        """Open the step on the driver, with what all tasks have written."""
        ...


# -- planning ---------------------------------------------------------------------------------------------


def batch_writer(make: Callable[[], Sink]) -> DataSourceWriter:
    """Return the writer of one batch job of the sink that `make` returns. Raises whatever is wrong with it."""
    with without_traceback():  # Spark would print every frame.
        sink = make()
        name, version = sink.once.identity.application, sink.once.version
        if (name == "") is not (version is None):
            raise InvalidArgument("a batch job that is written once needs both txnAppId and txnVersion")
        # A job without a name gets a new one, by which its publishing can be looked up after a lost reply.
        step = StepId(name or ONCE + uuid.uuid4().hex, version or 0)
        return OnceBatchWriter(sink, step, not sink.planned(step))


def stream_writer(make: Callable[[], Sink]) -> DataSourceStreamWriter:
    """Return the writer of one micro-batch, after the checks of `batch_writer`. Spark asks for two in each batch."""
    with without_traceback():
        sink = make()
        if sink.once.version is not None:
            raise InvalidArgument('option "txnVersion" is for batch jobs: a streaming query counts its batches itself')
        if not sink.once.identity.application and not sink.once.identity.place:
            raise InvalidArgument(
                'neither "checkpointLocation" nor "txnAppId" is among the options of this sink, so that a checkpoint '
                "which was deleted or replaced could not be noticed and its rows were written twice: set one of them "
                "(Spark does not tell a sink what spark.sql.streaming.checkpointLocation says)"
            )
        sink.planned(None)
        return OnceStreamWriter(sink)


# -- writing ----------------------------------------------------------------------------------------------


class OnceBatchWriter(DataSourceArrowWriter):
    """The writer of a batch job, pickled to the tasks. `done`: its version was published before; it writes nothing."""

    def __init__(self, sink: Sink, step: StepId, done: bool) -> None:
        self.sink, self.step, self.done = sink, step, done

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        attempt = Attempt.here()
        if self.done:
            return Part(attempt, skipped=True)
        with without_traceback():
            return self.sink.write(self.step, attempt, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with without_traceback():
            write_once(self.sink, self.step, in_order(self.sink.name, messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing, since Spark also calls this after a commit whose reply was lost. The janitor cleans up."""


class OnceStreamWriter(_StreamBase):
    """The writer of a micro-batch. Spark makes one for the tasks and another for the commit; they share no state."""

    def __init__(self, sink: Sink) -> None:
        self.sink, self.began_ns = sink, time.time_ns()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        attempt, identity = Attempt.here(), self.sink.once.identity
        batches = iterator if ARROW_STREAMS else record_batches(iterator, self.sink.schema)
        if not attempt.query or attempt.batch < 0:
            raise InvalidArgument(f"stream {self.sink.name}: Spark did not tell this task its query and batch")
        with without_traceback():
            with writing(attempt, self.sink.name):
                part = self.sink.write(identity.of_batch(attempt.query, attempt.batch), attempt, batches)
            return replace(part, began_ns=self.began_ns)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        with without_traceback():
            parts = in_order(self.sink.name, messages)
            if parts:
                query = batch_of(self.sink.name, parts, batchId)
                once = self.sink.once
                step = once.identity.of_batch(query, batchId)._replace(planned=planned_at(once.checkpoint, batchId))
                with publishing(self.sink.name, query, batchId, parts):
                    write_once(self.sink, step, parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing; see OnceBatchWriter.abort."""


def write_once(sink: Sink, step: StepId, parts: Sequence[Part]) -> None:
    """Write the parts in their order together with the record of the step, unless it is recorded.

    Raises ReplayDiffers, StreamError, and what `SinkStep.foreseen` and `SinkStep.publish` raise.
    """
    skipped = any(part.skipped for part in parts)
    if not skipped and not begins(step) and not _has_rows(parts):
        return
    for _ in range(_ROUNDS):
        kept = sink.kept(step, parts)
        if not kept.foreseen():
            # Another run wrote the step, or this one did and the reply was lost.
            kept.discard()
            if step.query and sink.once.compared:
                _compare(kept, step, {sink.name: parts, **of_others(parts)})
            return
        if skipped:
            raise StreamError(
                sink.name, "could not be written when the tasks began, and can be now: run the batch again"
            )
        if kept.publish():
            return
    raise StreamError(sink.name, f"others wrote there {_ROUNDS} times meanwhile: run the batch again")


def _has_rows(parts: Sequence[Part]) -> bool:
    return any(part.ledgers or part.small or _has_rows(list(part.others.values())) for part in parts)


def _compare(kept: SinkStep, step: StepId, shares: Mapping[str, Sequence[Part]]) -> None:
    """Raise ReplayDiffers if the batch that was published has other rows, as far as that can be decided."""
    records = kept.records()
    first = next(iter(records.values()), None)
    if first is None:
        return
    for name, parts in shares.items():
        if any(part.skipped and part.seen is None for part in parts):
            continue
        # What has no record of the batch got no rows of it.
        done = records.get(name) or first._replace(first_offset=0, next_offset=0)
        seen, rows = Tally(), 0
        told = [_tally(part) for part in parts]
        for part, one in zip(parts, told, strict=True):
            seen = seen.plus(one or Tally())
            rows += part.rows + sum(ledger.records for ledger in part.ledgers) if one is None else one.rows
        # Tasks that wrote rows to ledgers while another run published the batch have a number of rows but no tally.
        whole = seen if None not in told else None
        tally = partial(kept.tally, name, done)
        check_same(name, step, done, rows=rows, seen=whole, tally=tally, offsets=kept.offsets)


def _tally(part: Part) -> Tally | None:
    """Return the tally of a task's rows; None if it has written them to ledgers."""
    if part.seen is None and not part.ledgers:
        return tally_of(part.small)
    return part.seen


# -- rows as record batches, for PySpark 4.0 --------------------------------------------------------------

ROWS = 4096


def record_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows in groups of ROWS, with the columns that BulkLedger.arrow_entries accepts."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    while group := list(islice(rows, ROWS)):
        names: list[str] = []
        arrays: list[Any] = []
        for place, field in enumerate(schema.fields):
            column: list[Any] = [row[place] for row in group]
            if field.name == "timestamp":
                # Spark's own conversion applies, since rows have times without a zone, in the zone of the process.
                arrays.append(pa.array(map(field.dataType.toInternal, column), pa.timestamp("us", "UTC")))
            elif field.name == "headers":
                pairs = [None if row is None else [pair and tuple(pair) for pair in row] for row in column]
                named = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in pairs]
                arrays.append(pa.array(named, pa.list_(header)))
            else:
                binary = field.dataType.simpleString() == "binary"
                arrays.append(pa.array(column, pa.binary() if binary else pa.string()))
            names.append(field.name)
        yield pa.RecordBatch.from_arrays(arrays, names=names)
