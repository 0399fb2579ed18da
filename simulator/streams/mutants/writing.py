"""Planted bugs of writers: take-over, rolling, sealing, idempotence, order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from buckram.core.streams.ack_window import SegmentProgress, StreamWindow
from buckram.core.streams.metadata import changes as stream_changes
from buckram.core.streams.metadata.changes import HeadStep
from buckram.core.streams.metadata.head import Summary
from buckram.core.streams.records.producers import ProducerTable
from buckram.errors import MetadataUnavailable, VersionConflict, WriterLost
from buckram.streams.shared import recovery
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.write import bulk, engine, opening, roll, sealing
from buckram.streams.write import insertion as inserting
from buckram.streams.write import sealing as repair
from buckram.streams.write.append_queue import RecordCursor
from buckram.streams.write.appender import Appender
from buckram.streams.write.engine import StreamEngine
from buckram.streams.write.segment import SegmentWriter
from simulator.streams.mutants.base import Mutant, nothing, plant
from simulator.streams.plan import StreamPlan

_begin, _appender, _next_part = SegmentWriter.begin, Appender.__init__, RecordCursor.next_part
_rolled, _claimed, _sealed = stream_changes.rolled, stream_changes.claimed, stream_changes._sealed
_fresh = ProducerTable.fresh
_summarise, _window_begin, _change = recovery.summarise, StreamWindow.begin, StreamStore.change


async def _look_only(client: Any, name: Any, uid: str, ledger: Any) -> Any:
    async with client.open(ledger) as reader:
        return await recovery.summarise(name, reader)


def _same_epoch(name: str, head: Any, writer: Any, *more: Any) -> Any:
    step = _claimed(name, head, writer, *more)
    return step and HeadStep(replace(step.head, epoch=head.epoch))


async def _ledger_flush_only(self: SegmentWriter) -> None:
    """Do not wait for the marks in the queue."""
    await self.ledger.flush()


def _striped(plan: StreamPlan) -> bool:
    """Return whether a mark needs more than one entry, because entries are striped."""
    ensemble, write_quorum = plan.policy["ensemble"].split("/")[:2]
    return bool(ensemble != write_quorum)


def _not_ended(name: str, head: Any, nonce: str, old: Any, *, end: bool = False) -> Any:
    return stream_changes.released(name, head, nonce, old)


def _listed_at_once(self: StreamWindow) -> SegmentProgress:
    progress = _window_begin(self)
    progress.listed = True
    return progress


async def _list_first(self: Any, old: Any, fresh: Any, sealed: Any = None) -> None:
    """List the new segment before the old one ends."""
    claim = self._claim
    if old is not None:
        await old.flush()
        sealed = (old.ledger.ledger_id, roll_summary(old))
    try:
        await sealing.list_segment(claim, sealed, fresh)
    except Exception as error:
        self._rolling = None
        self._events.fail(sealing.as_writer_error(str(claim.name), error))  # type: ignore[arg-type]  # ours only
        return
    if old is not None:
        old.rest()
        await old.ledger.close()
    self._rolling = self._leaving = None
    waiters, self._waiters = self._waiters, []
    self._events.segment_listed(fresh)
    for future in waiters:
        if not future.done():
            future.set_result(True)


def roll_summary(segment: SegmentWriter) -> Any:
    """Return what SegmentWriter.close would return."""
    return Summary(
        segment.records,
        segment._entries - 1,
        segment.bytes,
        segment._first_append,
        segment._last_append,
        segment._lowest,
        segment._highest,
        segment._last_txid,
        segment._snapshot,
    )


def _empty_rows(head: Any, summary: Any) -> Any:
    if summary.records:
        return _sealed(head, summary)
    row = replace(head.tail[-1], summary=summary._replace(last_append=head.last_append, last_txid=head.last_txid))
    return replace(head, tail=(*head.tail[:-1], row))


def _own_clock(self: Appender, *args: Any, **kwargs: Any) -> None:
    _appender(self, *args, **kwargs)
    self._last_append = 0


def _begin_without_table(self: SegmentWriter, progress: Any, time: int, txid: int, table: ProducerTable) -> None:
    _begin(self, progress, time, txid, ProducerTable())


def _lost_is_lost(name: str, head: Any, epoch: int, old: Any, ledger: int, base: int, now: int) -> Any:
    present = head.open_segment
    if present is not None and present.ledger == ledger:
        raise WriterLost(name, "its open segment is not this writer's any more")
    return _rolled(name, head, epoch, old, ledger, base, now)


async def _no_answer_is_yes(self: StreamStore, name: Any, change: Any, **options: Any) -> Any:
    at = await self.read(name)
    options.pop("within_s", None)
    step = change(at.head)
    try:
        return await _change(self, name, change, within_s=0.0, **options)
    except (MetadataUnavailable, VersionConflict):
        return step.head if step else at.head


async def _last_batch_forgotten(name: Any, reader: Any) -> Any:
    summary = await _summarise(name, reader)
    if summary.records < 2:
        return summary
    header = recovery.entry_header(name, await reader.get(summary.last_entry))
    return summary._replace(records=header.first or summary.records)


def _cut_anywhere(self: RecordCursor, most_bytes: int, *, whole: bool = False) -> Any:
    return _next_part(self, 1)


def _overtaking(self: Appender, size: int) -> bool:
    return False


async def _flush_at_once(self: StreamEngine) -> None:
    self._appender.send_batch()


def _no_snapshot_of_others(self: ProducerTable, batch: Any) -> None:
    """Do not replay records after the snapshot."""


def _gaps_pass(
    self: ProducerTable, stream: str, producer: str, first: int, count: int, start: int | None = None
) -> int:
    known = self.last(producer)
    if known is not None and first > known.sequence + 1:
        return 0
    return _fresh(self, stream, producer, first, count, start)


async def _all_of_it(claim: Any, failed: SegmentWriter, on_error: Any) -> Any:
    found = await repair.recover_broken(claim, failed, on_error)
    if found.sealed is None:
        return found
    ledger, summary = found.sealed
    return replace(found, records=failed.records, sealed=(ledger, summary._replace(records=failed.records)))


def _crashes(plan: StreamPlan) -> bool:
    return plan.crashing > 0 and plan.sessions > 1


async def _no_finish(segment: SegmentWriter) -> Summary:
    """Leave the ledger open."""
    await segment.flush()
    summary: Summary = roll_summary(segment)
    return summary


def _same_offsets(self: Appender, segment: SegmentWriter, end: int, last_append: int) -> None:
    """Keep the offsets, as a writer that does not know that records of others are in between."""
    self.segment = segment
    self.window.jump(self.next_offset)
    segment.begin(self.window.begin(), self._last_append, self._last_txid, self._table)
    self.let_go()


MUTANTS = (
    Mutant(
        "no-fence",
        "15, 20; M9",
        "the segment of the old writer is read, not recovered",
        plant((opening, "recover_segment", _look_only)),
        drills=("take-over",),
    ),
    Mutant(
        "epoch-ignored",
        "16",
        "a change of the head does not check the writer's epoch",
        plant((stream_changes, "check_epoch", nothing), (roll, "check_epoch", nothing)),
    ),
    Mutant(
        "claim-keeps-epoch",
        "16",
        "a claim names the new writer and keeps the epoch",
        plant((opening, "claimed", _same_epoch)),
    ),
    Mutant(
        "ack-unlisted",
        "8, 13; M9",
        "records are acknowledged before their segment is listed",
        plant((StreamWindow, "begin", _listed_at_once)),
        drills=("roll",),
    ),
    Mutant(
        "list-before-close",
        "8; M9",
        "the next segment is listed while the old ledger is open",
        plant((roll.Roller, "_list", _list_first)),
        drills=("roll",),
    ),
    Mutant(
        "close-leaves-marks",
        "8; M9",
        "a segment is closed while an idle mark waits for room",
        plant((SegmentWriter, "flush", _ledger_flush_only)),
        lives=_striped,
    ),
    Mutant("empty-rows", "12", "an empty segment stays in the list", plant((stream_changes, "_sealed", _empty_rows))),
    Mutant(
        "own-clock",
        "append time",
        "a new writer trusts its clock, not the stream's last append time",
        plant((Appender, "__init__", _own_clock)),
    ),
    Mutant(
        "no-snapshot",
        "idempotence",
        "a new segment does not begin with the producers' sequences",
        plant((SegmentWriter, "begin", _begin_without_table)),
        scenarios=("retries",),
    ),
    Mutant(
        "no-replay",
        "idempotence",
        "a recovery takes the snapshot and not the records after it",
        plant((ProducerTable, "replay", _no_snapshot_of_others)),
        drills=("take-over",),
    ),
    Mutant(
        "gaps-pass",
        "idempotence",
        "a producer may leave out sequences",
        plant((ProducerTable, "fresh", _gaps_pass)),
        scenarios=("retries",),
    ),
    Mutant(
        "lost-reply-is-no",
        "7, lost replies",
        "a roll whose reply was lost is taken for refused",
        plant((sealing, "rolled", _lost_is_lost)),
        drills=("roll",),
    ),
    Mutant(
        "lost-reply-is-yes",
        "7, lost replies",
        "a change of the head without a reply is taken for done",
        plant((StreamStore, "change", _no_answer_is_yes)),
        drills=("roll", "take-over"),
    ),
    Mutant(
        "last-batch-forgotten",
        "9, 10",
        "the sealed count of a recovered segment leaves out its last batch",
        plant((recovery, "summarise", _last_batch_forgotten)),
    ),
    Mutant(
        "atomic-cut",
        "atomic",
        "an atomic batch is cut into entries",
        plant((RecordCursor, "next_part", _cut_anywhere)),
        drills=("roll",),
        lives=_crashes,
        seeds=200,
    ),
    Mutant(
        "overtaking",
        "order",
        "append_nowait overtakes appends that wait for room",
        plant((Appender, "full", _overtaking)),
        scenarios=("overtaking",),
        seeds=300,
    ),
    Mutant("flush-at-once", "13", "flush sends and does not wait", plant((StreamEngine, "flush", _flush_at_once))),
    Mutant(
        "broken-is-whole",
        "20",
        "a broken ledger counts as if it had all records that were sent to it",
        plant((roll, "recover_broken", _all_of_it)),
        scenarios=("breaks-before-a-roll-for-all",),
    ),
    Mutant(
        "ended-is-nothing",
        "22",
        "the end of a stream is not recorded",
        plant((engine, "released", _not_ended)),
        scenarios=("ended",),
    ),
    Mutant(
        "insert-into-open",
        "8; M9",
        "ledgers of others are listed behind a segment whose ledger is open",
        plant((inserting, "finish", _no_finish)),
        drills=("let-in",),
    ),
    Mutant(
        "insert-same-offsets",
        "M9",
        "a writer goes on at the offsets that it gave to others",
        plant((Appender, "go_on", _same_offsets)),
        drills=("let-in",),
    ),
    Mutant(
        "bulk-no-fence",
        "15",
        "a bulk step seals a live segment without fencing its writer",
        plant((bulk, "recover_segment", _look_only)),
        drills=("bulk",),
    ),
)
