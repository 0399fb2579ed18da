"""The invariants of a stream's metadata: heads, pages, intents, cursors and owned ledgers, checked at every change.

The rules are written independently of core/streams/metadata/changes.py, whose bugs they must find.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Protocol

from buckram.core.ledgers.metadata_codec import parse
from buckram.core.streams.metadata.head import Head, Segment, decode_head, decode_page
from buckram.core.streams.names import owner_of
from buckram.core.streams.policy import Policy
from buckram.errors import MalformedRecord
from buckram.metadata.tree.layout import ClusterLayout
from buckram.types import KeyValue, LedgerId, LedgerState
from simulator.engine.checkers.facts import Facts as LedgerFacts
from simulator.engine.checkers.report import Report
from simulator.streams.facts import HOSTILE, Facts, StreamHistory
from simulator.streams.forked import check_deletion, note_forked, share_changed


class TruncationAllowed(Protocol):
    """Returns whether a policy lets the host `who` truncate the stream from the offset `before` to the offset `to`."""

    def __call__(self, history: StreamHistory, who: str, before: int, to: int, /) -> bool: ...


class HeadWatch:
    """A MetadataObserver (`simulator/engine/metadata.py`) that checks streams."""

    def __init__(
        self,
        facts: Facts,
        ledgers: LedgerFacts,
        report: Report,
        layout: ClusterLayout,
        policy: Policy,
        allowed: TruncationAllowed,
    ) -> None:
        self._facts, self._ledgers, self._report, self._layout = facts, ledgers, report, layout
        self._policy, self._allowed = policy, allowed

    # -- events of the store

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        ledger = self._layout.ledger_of(key)
        if ledger is not None:
            self._ledger_changed(who, ledger, new)
            return
        parent, _, uid = key.rpartition("/")
        ledger = self._layout.ledger_of(parent)
        if ledger is not None:
            share_changed(self._facts, self._report, uid, ledger, new)
            return
        _, found, rest = key.partition("/streams/")
        if not found:
            return
        parts = rest.split("/")
        if parts[0] == "heads" and len(parts) == 3:
            self._head_changed(who, key, f"{parts[1]}/{parts[2]}", old, new)
        elif parts[0] == "data" and len(parts) == 4:
            self._stream_key_changed(who, parts[1], parts[2], parts[3], key, old, new)

    def key_conflict(self, who: str, key: str) -> None:
        if "/streams/heads/" in key:
            self._report.situation("conflict on a head")

    def reply_lost(self, who: str, key: str) -> None:
        if "/streams/heads/" in key:
            self._report.situation("reply lost on a head")

    def unread_version(self, who: str, key: str, version: int) -> None:
        """Do nothing: the judge checks this (S11)."""

    # -- ledgers

    def _ledger_changed(self, who: str, ledger: LedgerId, new: KeyValue | None) -> None:
        uid = self._facts.owned.get(ledger)
        if new is None:
            if uid is not None:
                del self._facts.owned[ledger]
                if ledger in self._facts.shared:
                    self._report.situation("shared ledger deleted")
                for history in self._facts.histories.values():
                    if history.uid == uid or ledger in history.listed or ledger in history.retired:
                        check_deletion(self._facts, self._report, who, history, ledger)
            return
        metadata = parse(new.value)
        owner = owner_of(metadata.custom_metadata)
        if owner is not None and not owner[0].startswith(f"{HOSTILE}/"):
            self._facts.owned[ledger] = owner[1]
            if metadata.state is LedgerState.IN_RECOVERY:
                self._facts.fencer[ledger] = who

    # -- keys of a stream besides its head

    def _stream_key_changed(
        self, who: str, uid: str, folder: str, name: str, key: str, old: KeyValue | None, new: KeyValue | None
    ) -> None:
        facts = self._facts
        if uid in facts.hostile:
            return
        if folder == "intents":
            if new is None:
                facts.intents.pop((uid, int(name)), None)
            else:
                intent = json.loads(new.value)
                facts.intents[uid, int(name)] = str(intent["state"])
                facts.intended[uid, int(name)] = str(intent["purpose"]), int(intent["time"])
        elif folder == "cursors":
            before = facts.cursors.get((uid, name))
            if new is None:
                facts.cursors.pop((uid, name), None)
                return
            offset = facts.cursors[uid, name] = int(json.loads(new.value)["offset"])
            self._report.check(
                "cursor", before is None or before <= offset, "cursor {} went from {} to {}", name, before, offset
            )
        elif folder == "pages" and new is not None:
            self._report.situation("page written")
            history, rows = facts.histories[uid], decode_page(key, new.value).segments
            if history.head is not None and history.head.fork is not None and not history.head.fork.done:
                for row in rows:  # The head that lists them comes last.
                    self._check_listing(who, history, history.head, row)
                    history.listed[row.ledger] = row
                return
            if old is not None:
                self._check_compaction(who, history, decode_page(key, old.value).segments, rows)
            for row in rows:
                self._report.check(
                    "head",
                    history.listed.get(row.ledger) == row and row.sealed,
                    "page {} of {} holds {}, listed was {}",
                    name,
                    history.name,
                    row,
                    history.listed.get(row.ledger),
                )

    # -- heads

    def _head_changed(self, who: str, key: str, name: str, old: KeyValue | None, new: KeyValue | None) -> None:
        facts = self._facts
        if name.startswith(f"{HOSTILE}/"):
            with suppress(MalformedRecord):
                facts.hostile |= {} if new is None else {decode_head(key, new.value).uid: None}
            return
        serial = facts.tick()
        before = decode_head(key, old.value) if old is not None else None
        if new is None:
            if before is not None:
                history = facts.history(before.uid, name)
                self._report.check("deleted", before.deleting, "{} removes the head of {} alive", who, name)
                history.head_removed = True
            return
        after = decode_head(key, new.value)
        history = facts.history(after.uid, name)
        facts.current[name] = history
        self._report.check("head", before is None or before.uid == after.uid, "{} replaces the head of {}", who, name)
        history.head = after
        if before is not None and before.fork is not None and before.fork != after.fork:
            note_forked(facts, self._report, who, history, after)
        elif before is not None and before.uid == after.uid:
            self._check_only_grows(who, history, before, after)
        self._check_segments(who, history, before, after)
        self._keep_fence(history, after, serial)

    def _check_only_grows(self, who: str, history: StreamHistory, before: Head, after: Head) -> None:
        for what in ("epoch", "earliest", "first", "paged", "end", "last_append", "last_txid"):
            a, b = getattr(before, what), getattr(after, what)
            self._report.check("head", a <= b, "{} moves {} of {} from {} back to {}", who, what, history.name, a, b)
        self._report.check(
            "head",
            (after.ended or not before.ended) and (after.deleting or not before.deleting),
            "{} makes {} live again",
            who,
            history.name,
        )
        if before.ended and not after.deleting:
            self._report.check("head", after.end == before.end, "{} appends to {} after its end", who, history.name)
        if after.ended and not before.ended:
            self._report.situation("stream ended")
        if after.first > before.first:
            self._report.situation("segment trimmed")
        if after.earliest > before.earliest:
            self._check_truncation(who, history, before, after)

    def _check_truncation(self, who: str, history: StreamHistory, before: Head, after: Head) -> None:
        history.earliest_offsets[after.earliest] = None
        requested = after.earliest in history.requested_truncations or (
            history.truncated_by_size
            and any(
                after.earliest in (row.base, row.end) for row in (*history.listed.values(), *history.retired.values())
            )
        )
        self._report.check(
            "truncation",
            requested or self._allowed(history, who, before.earliest, after.earliest),
            "{} truncates {} from {} to {}, which was not requested",
            who,
            history.name,
            before.earliest,
            after.earliest,
        )
        if not requested:
            self._report.situation("retention truncated")
        row = after.open_segment
        if row is not None and after.earliest > row.base:
            self._report.situation("truncated in the open segment")
        if any(
            reading.history is history
            and not reading.done
            and reading.expected is not None
            and reading.expected < after.earliest
            for reading in self._facts.readings
        ):
            self._report.situation("truncated under a reader")

    def _check_segments(self, who: str, history: StreamHistory, before: Head | None, after: Head) -> None:
        report, previous = self._report, None
        if before is not None:
            self._check_compaction(who, history, before.tail, after.tail)
        for row in after.tail:
            report.check(
                "M9",
                previous is None or (previous.sealed and previous.number < row.number and previous.end == row.base),
                "{} lists {} after {} in {}",
                who,
                row,
                previous,
                history.name,
            )
            known = history.listed.get(row.ledger)
            if known is None:
                self._check_listing(who, history, after, row)
            elif known != row:
                report.check(
                    "head",
                    not known.sealed and known == Segment(*row_key(row), None, row.kind),
                    "{} changes row {} of {} to {}",
                    who,
                    known,
                    history.name,
                    row,
                )
            if row.sealed and (known is None or not known.sealed):
                self._check_seal(who, history, after, row)
            history.listed[row.ledger] = row
            previous = row
        if previous is not None:
            end = previous.end if previous.sealed else previous.base
            report.check(
                "M9",
                end == after.end,
                "{} says that {} ends at {}, the last row is {}",
                who,
                history.name,
                after.end,
                previous,
            )
        kept = {row.ledger: None for row in after.tail}
        for row in () if before is None else before.tail:
            if row.ledger not in kept:
                self._check_removal(who, history, after, row)

    def _check_compaction(
        self, who: str, history: StreamHistory, before: tuple[Segment, ...], after: tuple[Segment, ...]
    ) -> None:
        """Check new segments in the place of others: each has whole segments, which are removed in the same change."""
        known, kept = {row.ledger: None for row in before}, {row.ledger: None for row in after}
        for row in after:
            # An open segment that stays empty is removed, and another one may begin at its offset.
            replaced = [
                old for old in before if old.sealed and row.base <= old.base < row.end and old.ledger not in kept
            ]
            if row.ledger in known or not replaced:
                continue
            report, head = self._report, history.head
            summary, olds = row.summary, [old.summary for old in replaced if old.summary is not None]
            whole = (
                summary is not None
                and len(olds) == len(replaced)
                and replaced[0].base == row.base
                and replaced[-1].end == row.end
                and summary.records == sum(old.records for old in olds)
                and summary.first_append == olds[0].first_append
                and summary.last_append == olds[-1].last_append
                and summary.last_txid == olds[-1].last_txid
                and row.number == replaced[0].number
            )
            report.check("compacted", whole, "{} lists {} in the place of {} in {}", who, row, replaced, history.name)
            needed = head is not None and any(old.number == head.producers for old in replaced)
            report.check(
                "compacted", not needed, "{} removes the producers' table of {}: {}", who, history.name, replaced
            )
            created = self._facts.intents.get((history.uid, row.ledger)) == "made"
            report.check(
                "compacted",
                created and self._facts.owned.get(row.ledger) == history.uid,
                "{} lists ledger {} in {}, which was not created for it",
                who,
                row.ledger,
                history.name,
            )
            closed = self._ledgers.ledger(row.ledger).closed
            report.check(
                "sealed-row",
                summary is not None and closed == (summary.last_entry, summary.bytes),
                "{} seals {} of {}, its ledger is closed at {}",
                who,
                row,
                history.name,
                closed,
            )
            report.situation("segments compacted")
            history.listed[row.ledger] = row
            history.listed_by[row.ledger] = history.listed_by.get(replaced[0].ledger, 0)
            for old in replaced:
                history.retired[old.ledger] = history.listed.pop(old.ledger, old)

    def _check_listing(self, who: str, history: StreamHistory, head: Head, row: Segment) -> None:
        history.listed_by[row.ledger] = head.epoch
        before = head.tail[-2] if len(head.tail) > 1 else None
        history.segment_starts[row.base] = before is not None and history.listed_by.get(before.ledger) != head.epoch
        state = self._facts.intents.get((history.uid, row.ledger))
        owner = self._facts.owned.get(row.ledger)
        held = history.uid in self._facts.shared.get(row.ledger, ())
        self._report.check(
            "M9",
            held or (state == "made" and owner == history.uid),
            "{} lists ledger {} in {}: its intent is {}, its owner {}",
            who,
            row.ledger,
            history.name,
            state,
            owner,
        )

    def _check_seal(self, who: str, history: StreamHistory, head: Head, row: Segment) -> None:
        assert row.summary is not None
        closed = self._ledgers.ledger(row.ledger).closed
        holds = closed == (row.summary.last_entry, row.summary.bytes) and row.summary.records > 0
        self._report.check(
            "sealed-row", holds, "{} seals {} of {}, its ledger is closed at {}", who, row, history.name, closed
        )
        if history.listed_by.get(row.ledger, head.epoch) != head.epoch:
            self._report.situation("segment sealed by the next writer")
        elif self._facts.fencer.get(row.ledger) == who:
            self._report.situation("broken segment replaced by its writer")
        elif head.open_segment is not None:
            age = (head.open_segment.created - row.created) / 1e6
            big = row.summary.bytes >= self._policy.roll_bytes
            why = "size" if big else "time" if age >= self._policy.segment_s else "call"
            self._report.situation(f"rolled by {why}")

    def _check_removal(self, who: str, history: StreamHistory, after: Head, row: Segment) -> None:
        """Check a segment that left the head: it was moved to a page, trimmed, compacted, or empty."""
        if row.ledger in history.retired:
            return
        empty = not row.sealed and row.ledger in after.garbage
        dead = row.sealed and row.number < after.first and row.end <= after.earliest
        self._report.check(
            "M9",
            empty or dead or (row.sealed and row.number < after.paged),
            "{} takes {} out of {}",
            who,
            row,
            history.name,
        )
        if dead:
            kept = after.table == row
            # The last stream that lets the ledger go deletes it, which may be a moment later.
            others = self._facts.left_to_others.get((history.uid, row.ledger), False)
            self._report.check(
                "orphans",
                kept or others or row.ledger in after.garbage or row.ledger not in self._facts.owned,
                "{} forgets {} of {} before its ledger is deleted",
                who,
                row,
                history.name,
            )
        if empty:
            self._report.situation("empty segment left the list")
            self._report.check(
                "durable", row.base not in history.acked, "the segment {} of {} is dropped as empty", row, history.name
            )

    def _keep_fence(self, history: StreamHistory, head: Head, serial: int) -> None:
        """Keep the time since which older epochs are fenced: since no segment of an older epoch is open."""
        row = head.open_segment
        if row is not None and history.listed_by.get(row.ledger) != head.epoch:
            return
        if not history.fences or history.fences[-1][1] < head.epoch:
            history.fences.append((serial, head.epoch))


def row_key(row: Segment) -> tuple[int, LedgerId, int, int]:
    """Return what identifies a segment and stays the same when it is sealed."""
    return row.number, row.ledger, row.base, row.created


__all__ = ["HeadWatch"]
