"""Micro-batches as traces of OpenTelemetry: the batch, in it its tasks, and in these the ledgers that they use.

    buckram.spark.batch        from planning to publishing, on the driver; sent by the sink's commit
      buckram.spark.read       a task that reads a stream, with a step `buckram.read` for each ledger
      buckram.spark.write      a task that writes ledgers, with their `buckram.append` and what is within these
      buckram.spark.commit     what the driver publishes

Every process makes the same ids of the query's id and the batch's number, so that nothing has to be handed over, and
all agree whether a batch is followed. Nothing of it is loaded where BUCKRAM_TELEMETRY_ENDPOINT names no collector.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from buckram.config import load
from buckram.spark.sink.transactions import Attempt, Part
from buckram.types import TRACE_SIZE

if TYPE_CHECKING:
    from buckram.runtime.telemetry.telemetry import Telemetry
    from buckram.seams import Span
    from buckram.spark.shared.stream_partition import Slice

T = TypeVar("T")
_sending: dict[int, Telemetry | None] = {}
"""Telemetry by process id, because workers are forked; None in a process that sends none."""


@contextmanager
def reading() -> Iterator[Span | None]:
    """Follow the task of this process that reads; None where it is not followed."""
    with _task("buckram.spark.read", Attempt.here(), around=False) as step:
        yield step


def followed(step: Span | None, piece: Slice, found: Iterator[T]) -> Iterator[T]:
    """Yield what `found` has, which comes from the ledger of a slice, and follow that within the step of the task."""
    return found if step is None else _followed(step, piece, found)


def _followed(step: Span, piece: Slice, found: Iterator[T]) -> Iterator[T]:
    about: dict[str, str | int] = {
        "buckram.stream": piece.stream,
        "buckram.ledger": piece.ledger,
        "buckram.entry": piece.first_entry,
        "buckram.entries": piece.last_entry - piece.first_entry + 1,
        "buckram.bytes": piece.bytes,
    }
    with _ending(step.child("buckram.read", about)):
        yield from found


@contextmanager
def writing(attempt: Attempt, stream: str) -> Iterator[None]:
    """Follow a task that writes; what its client appends meanwhile is within its step."""
    with _task("buckram.spark.write", attempt, around=True) as step:
        if step is not None:
            step.note("buckram.stream", stream)
        yield


@contextmanager
def publishing(stream: str, query: str, batch: int, parts: Sequence[Part]) -> Iterator[None]:
    """Follow the commit of a micro-batch on the driver. With it the batch ends, as a step of its own."""
    context, telemetry = _followed_batch(query, batch)
    if telemetry is None:
        yield
        return
    began_ns = min((part.began_ns for part in parts if part.began_ns), default=0)
    about = {**_about(query, batch), "buckram.stream": stream, "buckram.spark.tasks": len(parts)}
    root = telemetry.traces.beginning("buckram.spark.batch", context, began_ns, about)
    try:
        with _ending(root):
            commit = root.child("buckram.spark.commit", {"buckram.stream": stream})
            with _ending(commit), telemetry.traces.around(commit):
                yield
    finally:
        telemetry.send_soon()


@contextmanager
def _task(name: str, attempt: Attempt, *, around: bool) -> Iterator[Span | None]:
    """Follow a task as a step. `around`: spans of this process and context meanwhile are within the step."""
    context, telemetry = _followed_batch(attempt.query, attempt.batch)
    numbers = {"buckram.spark.partition": attempt.partition, "buckram.spark.attempt": attempt.attempt}
    about = {**_about(attempt.query, attempt.batch), **numbers}
    step = None if telemetry is None else telemetry.traces.continued(name, context, about)
    if telemetry is None or step is None:
        yield None
        return
    try:
        with _ending(step), telemetry.traces.around(step) if around else nullcontext():
            yield step
    finally:
        telemetry.send_soon()  # Spark may end this process at any time from now on.


@contextmanager
def _ending(step: Span) -> Iterator[None]:
    try:
        yield
    except GeneratorExit:
        step.end("Spark wanted no more of it")
        raise
    except BaseException as error:
        step.end(str(error) or type(error).__name__)
        raise
    step.end()


def _about(query: str, batch: int) -> Mapping[str, str | int]:
    return {"buckram.spark.query": query, "buckram.spark.batch": batch}


def _followed_batch(query: str, batch: int) -> tuple[bytes, Telemetry | None]:
    """Return the context of a batch and the telemetry of its steps; None if it is not followed or no query's batch."""
    telemetry = _telemetry() if query and batch >= 0 else None
    if telemetry is None:
        return b"", None
    digest = hashlib.blake2b(f"{query}/{batch}".encode(), digest_size=TRACE_SIZE, person=b"buckram.batch")
    context = digest.digest()
    return context, telemetry if telemetry.traces.is_in_share(context) else None


def _telemetry() -> Telemetry | None:
    pid = os.getpid()
    if pid not in _sending:
        _sending[pid] = _started()
    return _sending[pid]


def _started() -> Telemetry | None:
    config = load("telemetry", environment=os.environ)[0]
    if not config.endpoint:
        return None
    from buckram.runtime.telemetry.telemetry import Telemetry

    telemetry = Telemetry(config, "buckram-spark")
    telemetry.start(metrics=False)
    return telemetry
