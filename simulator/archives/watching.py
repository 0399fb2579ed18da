"""Watches the metadata and the place: at each change the model is brought up to date, and compared with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from buckram.core.ledgers.metadata_codec import parse
from buckram.core.streams.metadata.head import HISTORY, Head, Segment, decode_head, decode_page
from buckram.core.streams.names import owner_of
from buckram.core.streams.policy import Policy
from buckram.metadata.tree.layout import ClusterLayout
from buckram.types import KeyValue, LedgerId
from simulator.archives.files import Unsound, check_copy, parse_name
from simulator.archives.model import Exported, Model, Stream
from simulator.archives.place import Place
from simulator.engine.checkers.report import Report

MayTruncate = Callable[[Stream, str, int, int], str]
"""Returns why a policy does not let a host truncate a stream from one offset to another; "" if it does."""


class Watch:
    """A MetadataObserver (`simulator/engine/metadata.py`), which also gets the removals of files."""

    def __init__(
        self,
        model: Model,
        place: Place,
        report: Report,
        layout: ClusterLayout,
        policy: Policy,
        may_truncate: MayTruncate,
    ) -> None:
        self._model, self._place, self._report, self._layout = model, place, report, layout
        self._policy, self._may_truncate = policy, may_truncate
        self._now: Callable[[], float] = place.loop.time
        place.removed = self.file_removed

    def key_conflict(self, who: str, key: str) -> None:
        """Do nothing."""

    def reply_lost(self, who: str, key: str) -> None:
        """Do nothing."""

    def unread_version(self, who: str, key: str, version: int) -> None:
        """Do nothing: the judge checks this (S11)."""

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        ledger = self._layout.ledger_of(key)
        if ledger is not None:
            self._ledger_changed(who, ledger, new)
            return
        parent, _, child = key.rpartition("/")
        ledger = self._layout.ledger_of(parent)
        if ledger is not None:
            self._share_changed(ledger, child, new)
            return
        _, found, rest = key.partition("/streams/")
        parts = rest.split("/")
        if found and parts[0] == "heads" and len(parts) == 3:
            self._head_changed(who, key, f"{parts[1]}/{parts[2]}", old, new)
        elif found and parts[0] == "data" and len(parts) == 4 and parts[1] in self._model.streams:
            self._data_changed(who, self._model.streams[parts[1]], parts[2], parts[3], key, new)

    # -- ledgers and files that go

    def _ledger_changed(self, who: str, ledger: LedgerId, new: KeyValue | None) -> None:
        model = self._model
        if new is not None:
            owner = owner_of(parse(new.value).custom_metadata)
            if owner is not None:
                model.owned[ledger] = owner[1]
            return
        if model.owned.pop(ledger, None) is None:
            return
        if ledger in model.shared:
            self._report.situation("shared ledger let go")
        for stream in model.streams.values():
            for row in stream.needed():
                self._report.check(
                    "needed",
                    row.kind == HISTORY or row.ledger != ledger,
                    "{} deletes ledger {}, which {} needs: {}, earliest {}",
                    who,
                    ledger,
                    stream.name,
                    row,
                    stream.earliest,
                )

    def _share_changed(self, ledger: LedgerId, uid: str, new: KeyValue | None) -> None:
        holders = self._model.shared.setdefault(ledger, {})
        if new is None:
            holders.pop(uid, None)
        else:
            holders[uid] = None

    def file_removed(self, who: str, path: str) -> None:
        name = parse_name(path)
        if name is None or name.kind == "unfinished":
            return
        needing = self._model.lists_files(name.directory, name.copy)
        self._report.check(
            "needed", needing is None, "{} removes {}, which {} lists", who, path, needing and needing.name
        )
        export = self._model.exports.get(name.directory)
        self._report.check(
            "needed",
            export is None or name.copy not in export.copies,
            "{} removes {}, which is published by an export",
            who,
            path,
        )

    # -- heads

    def _head_changed(self, who: str, key: str, name: str, old: KeyValue | None, new: KeyValue | None) -> None:
        model, report = self._model, self._report
        before = decode_head(key, old.value) if old is not None else None
        if new is None:
            if before is not None:
                report.check("identity", before.deleting, "{} removes the head of {}, which lives", who, name)
                model.streams[before.uid].removed = True
            return
        after = decode_head(key, new.value)
        stream = model.streams.get(after.uid)
        if stream is None:
            stream = model.streams[after.uid] = Stream(after.uid, name)
            if name in model.current:
                report.situation("stream made anew")
        report.check(
            "identity", before is None or before.uid == after.uid, "{} replaces the head of {} by another's", who, name
        )
        model.current[name], stream.head = stream, after
        if after.fork is not None and after.fork.done and stream.source is None:
            self._forked(who, stream, after)
        elif before is not None:
            self._check_progress(who, stream, before, after)
        self._check_rows(who, stream, after.tail)
        self._check_chain(who, stream, after)
        if after.deleting and (before is None or not before.deleting) and self._model.forks_of(stream):
            report.situation("source deleted under a fork")

    def _forked(self, who: str, stream: Stream, head: Head) -> None:
        assert head.fork is not None
        source = stream.source = self._model.streams[head.fork.uid]
        stream.at = head.fork.at
        stream.earliest_offsets = {head.earliest: None}
        self._report.check(
            "forked",
            head.end == stream.at and head.earliest <= stream.at and head.earliest in source.earliest_offsets,
            "{} forks {} at {}: the fork has {} to {}",
            who,
            source.name,
            stream.at,
            head.earliest,
            head.end,
        )
        self._report.check(
            "identity",
            source.name == head.fork.source,
            "{} forks {} and calls it {}",
            who,
            source.name,
            head.fork.source,
        )
        self._report.situation("fork of a fork" if source.source is not None else "stream forked")
        if any(row.kind == HISTORY for row in head.tail):
            self._report.situation("fork of history")

    def _check_progress(self, who: str, stream: Stream, before: Head, after: Head) -> None:
        report = self._report
        for what in ("epoch", "earliest", "end", "first", "paged"):
            low, high = getattr(before, what), getattr(after, what)
            report.check("identity", low <= high, "{} moves {} of {} from {} to {}", who, what, stream.name, low, high)
        report.check("identity", after.deleting or not before.deleting, "{} revives {}", who, stream.name)
        if after.earliest <= before.earliest:
            return
        stream.earliest_offsets[after.earliest] = None
        asked = after.earliest in stream.requested
        why = "" if asked else self._may_truncate(stream, who, before.earliest, after.earliest)
        rule = "cursors" if "cursor" in why else "truncation"
        text = "{} truncates {} from {} to {}: {}"
        report.check(rule, not why, text, who, stream.name, before.earliest, after.earliest, why)
        report.situation("truncated by request" if asked else "retention truncated")
        if self._model.forks_of(stream):
            report.situation("source truncated under a fork")
        if any(row.kind == HISTORY and row.end <= after.earliest for row in stream.rows()):
            report.situation("history truncated")

    def _check_rows(self, who: str, stream: Stream, rows: Sequence[Segment]) -> None:
        """Check segments that this stream has never listed before: their files are durable and whole."""
        known = stream.listed_ever
        new = [row for row in rows if row.ledger not in known]
        known |= {row.ledger: row for row in rows}
        for row in new:
            if row.kind != HISTORY or row.offloaded is None:
                continue
            stream.moved[who] = stream.moved.get(who, 0) + 1
            place = row.offloaded
            self._report.check(
                "identity",
                place.location.endswith(f"/{stream.name}/{stream.uid}"),
                "{} lists files at {} in {} {}",
                who,
                place.location,
                stream.name,
                stream.uid,
            )
            try:
                manifest = check_copy(self._place, place.location, row.base, row.ledger, place.digest)
                why = "" if manifest["summary"]["records"] == row.end - row.base else "has other records than its row"
            except Unsound as unsound:
                why = str(unsound)
            self._report.check("whole", not why, "{} lists {} in {}: {}", who, row, stream.name, why)

    def _check_chain(self, who: str, stream: Stream, head: Head) -> None:
        """Check that the list has every offset from the earliest one on, once."""
        due: int | None = None
        for row in head.tail:
            self._report.check(
                "once", due is None or row.base == due, "{} lists {} in {} after {}", who, row, stream.name, due
            )
            due = row.end

    # -- other keys of a stream

    def _data_changed(self, who: str, stream: Stream, folder: str, name: str, key: str, new: KeyValue | None) -> None:
        if folder == "intents":
            if new is None:
                self._model.intents.pop((stream.uid, int(name)), None)
            else:
                self._model.intents[stream.uid, int(name)] = str(json.loads(new.value)["purpose"])
        elif folder == "pages":
            if new is None:
                stream.pages.pop(int(name), None)
                return
            stream.pages[int(name)] = decode_page(key, new.value).segments
            self._check_rows(who, stream, stream.pages[int(name)])
        elif folder == "cursors":
            if new is None:
                stream.cursors.pop(name, None)
                return
            offset, made = int(json.loads(new.value)["offset"]), stream.cursors.get(name, (0, self._now()))
            self._report.check(
                "cursors", made[0] <= offset, "cursor {} of {} goes back to {}", name, stream.name, offset
            )
            self._report.check(
                "identity", not stream.removed, "cursor {} of {}, which is gone, is moved", name, stream.name
            )
            stream.cursors[name] = offset, made[1]
        elif folder == "exports" and new is not None:
            self._export_changed(who, stream, json.loads(new.value))

    def _export_changed(self, who: str, stream: Stream, raw: dict[str, object]) -> None:
        directory, copies = str(raw["location"]), raw["copies"]
        assert isinstance(copies, list)
        export = self._model.exports.setdefault(directory, Exported(stream, directory, 0, stream.earliest))
        if any(copy not in copies for copy in export.copies):
            self._report.situation("exported copy replaced by history")
        for copy in copies:
            if copy in export.copies:
                continue
            try:
                bases = [
                    name.base
                    for path in self._place.files
                    if (name := parse_name(path)) is not None and (name.directory, name.copy) == (directory, copy)
                ]
                if not bases:
                    raise Unsound("it has no files")
                check_copy(self._place, directory, bases[0], copy, None)
                why = ""
            except Unsound as unsound:
                why = str(unsound)
            self._report.check("whole", not why, "{} publishes copy {} of {}: {}", who, copy, stream.name, why)
            self._report.situation("exported")
        export.copies, export.next = dict.fromkeys(copies), int(str(raw["next"]))


__all__ = ["Watch"]
