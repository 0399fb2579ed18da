"""Rules: compares what replicas of the index execute with the reference, and deletions of ledgers with what is live.

Not here: observing replicas (`metadata/etcd/session.py`), the end (`ending.py`), how calls are judged (`histories.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, NamedTuple

from buckram.core.objects.index import UPLOAD_US, ObjectIndex
from buckram.core.objects.rows import Extent
from buckram.core.objects.tree import directories, walk
from buckram.core.streams.names import OBJECTS_LOG, OWNER, OWNER_PURPOSE
from buckram.metadata.tree.layout import ClusterLayout
from buckram.streams.shared.ledgers import OBJECT
from buckram.types import KeyValue, LedgerId
from simulator.engine.world import World
from simulator.objects.contents import Contents
from simulator.objects.histories import OK, REFUSED, Asked, Histories, group_of
from simulator.objects.model import LOST
from simulator.objects.reference import Kept, OpenUpload, Reference, Step

NAMESPACE = "default"
NAME = f"{NAMESPACE}/{OBJECTS_LOG}"
SLACK_US = 150_000_000
"""By how much the time of the log may be off: right clocks differ by a minute, and a leader may hang between the time
and its record."""
AT_ONCE_S = 5.0
"""Time after a sweep at once in which its deletions may still arrive, seconds."""
_SHOWN = 3
Parts = Mapping[int, Mapping[int, tuple[int, str, tuple[Extent, ...]]]]


class Moment(NamedTuple):
    """The names and uploads that the index must have after a command."""

    rows: dict[str, Kept]
    kept: set[str]
    uploads: Parts


class Rules:
    """The checks of one life; also a MetadataObserver, for the deletions of ledgers."""

    def __init__(self, world: World, grace_s: float) -> None:
        self.world, self.report, self._grace_s = world, world.report, grace_s
        self.reference, self.contents = Reference(), Contents()
        self.histories = Histories(self.contents)
        self.layout: ClusterLayout = world.stores.layout
        self.offsets: list[int] = []
        self._moments: list[Moment] = []
        self.ledgers: dict[LedgerId, None] = {}
        """The ledgers with bytes of objects that are there."""
        self._deleted: dict[LedgerId, float] = {}
        self._used: dict[LedgerId, list[str]] = {}
        self._unused_since: dict[LedgerId, float] = {}
        self.due: dict[str, int] = {}
        """When each acknowledged object that expires does so, in true time, by name."""
        self.at_once_until = 0.0
        """The time until which deletions may come from a sweep at once."""
        self.acked = self.begun = 0
        """The changes that were acknowledged, and the ledgers that were begun."""

    def true_us(self) -> int:
        """Return the time of a clock that is right, with the same zero as every true time here."""
        passed = self.world.passed
        return passed.us + passed.unseen + int(self.world.loop.time() * 1e6)

    # -- calls ----------------------------------------------------------------------------------------------

    def ask(self, client: str, name: str, *call: Any) -> Asked:
        """Record the beginning of a call on a name."""
        asked = Asked(client, name, call, self.world.loop.time())
        self.histories.calls.append(asked)
        return asked

    def answered(self, asked: Asked, kind: str, value: Any) -> None:
        """Record the result of a call, or its refusal."""
        asked.outcome, asked.ended = (kind, value), self.world.loop.time()
        if kind == OK:
            self.acked += 1

    def judge_calls(self) -> None:
        for why, decided in self.histories.judge(self.reference):
            if decided:
                self.report.check("history", not why, "{}", why)
            else:
                self.report.situation("a history was too wide")

    def pending(self, *verbs: str) -> list[Asked]:
        """Return the calls with these verbs that have no answer yet, also those of processes that died."""
        return [one for one in self.histories.calls if one.outcome is None and one.verb in verbs]

    # -- commands -------------------------------------------------------------------------------------------

    def executed(self, host: str, index: ObjectIndex, offset: int, command: list[Any], result: Any, why: str) -> None:
        """Check a command that a replica has executed, and the names that it has then."""
        if not self.offsets or offset > self.offsets[-1]:
            before, replaced = dict(self.reference.rows), self.reference.replaced
            step = self.reference.execute(index, command, why, self.true_us())
            self.offsets.append(offset)
            uploads = {number: dict(upload.parts) for number, upload in self.reference.uploads.items()}
            self._moments.append(Moment(dict(self.reference.rows), set(self.reference.names.kept), uploads))
            told = _plain(command[0], result)
            self.report.check(
                "names",
                (step.refused, step.told) == (why, told),
                "{} tells of {} {!r} {!r}, and it is {!r} {!r}",
                *(host, _short(command), why, told, step.refused, step.told),
            )
            self._first(command, step, before)
            if self.reference.replaced > replaced:
                self.report.situation("a part was replaced")
        self._compare(host, index, offset)

    def restored(self, host: str, index: ObjectIndex, offset: int) -> None:
        """Check a snapshot of everything below the offset, which a replica has taken over."""
        self.report.situation("a snapshot was restored")
        at = bisect_left(self.offsets, offset) - 1
        if at >= 0:
            self._compare(host, index, self.offsets[at])

    def _compare(self, host: str, index: ObjectIndex, offset: int) -> None:
        at = bisect_left(self.offsets, offset)
        if at == len(self.offsets) or self.offsets[at] != offset:
            return
        wanted, found = self._moments[at], dict(walk(index.root, "", ""))
        differ = [
            (name, row, wanted.rows.get(name))
            for name, row in found.items()
            if name not in wanted.rows or not wanted.rows[name].same(row)
        ]
        missing = [name for name in wanted.rows if name not in found]
        self.report.check(
            "names",
            not differ and not missing,
            "{} has at {} {}, lacks {}",
            *(host, offset, differ[:_SHOWN], missing[:_SHOWN]),
        )
        kept = {path for path, directory in directories(index.root) if directory.kept}
        self.report.check("names", kept == wanted.kept, "{} keeps directories {}, not {}", host, kept, wanted.kept)
        uploads = {number: upload.parts for number, upload in index.uploads.items()}
        self.report.check(
            "names", uploads == wanted.uploads, "{} has uploads {}, not {}", host, uploads, wanted.uploads
        )

    def _first(self, command: list[Any], step: Step, before: dict[str, Kept]) -> None:
        """Check a command that no replica has executed before."""
        if step.refused == LOST:
            self.report.situation("bytes were refused as given up")
            kept = [extent.ledger for extent in step.lost if extent.ledger in self._used]
            self.report.check("live", not kept, "bytes are refused as given up, and {} are used", kept)
        now = self.true_us()
        for row in step.expired:
            self.report.situation("an object expired")
            early = (row.due_us or 0) - now
            self.report.check("early", early <= SLACK_US, "{} expires {} s too early", row.label, early // 1_000_000)
        for upload in step.left:
            self.report.situation("an upload was left for a week")
            self._check_left(upload, now)
        self.begun += command[0] == "begin"
        if command[0] == "gone":
            there = [ledger for ledger in command[1] if ledger in self.ledgers]
            self.report.check("gone", not there, "ledgers {} are forgotten and not deleted", there)
        if not step.refused:
            self._note_situations(command, step, before)
        self._note_use(command)

    def _check_left(self, upload: OpenUpload, now: int) -> None:
        early = upload.began_us + UPLOAD_US - now
        self.report.check(
            "early", early <= SLACK_US, "the upload of {} is left {} s early", upload.name, early // 1_000_000
        )

    def _note_use(self, command: list[Any]) -> None:
        """Note which ledgers are used after a command, and check that those are there."""
        used, now = self.reference.extents(), self.world.loop.time()
        for ledger in self._used:
            if ledger not in used:
                self._unused_since[ledger] = now
        for ledger, names in used.items():
            self._unused_since.pop(ledger, None)
            if ledger not in self._used:
                self.report.check(
                    "live", ledger not in self._deleted, "{} names bytes in {}, which is deleted", names, ledger
                )
        self._used = used

    def _note_situations(self, command: list[Any], step: Step, before: dict[str, Kept]) -> None:
        situation, verb = self.report.situation, command[0]
        if verb == "moved" and step.told:
            situation("a pack was rewritten")
        if verb == "settle":
            situation("a time was in doubt and settled")
        if verb == "begin" and not command[2]:
            situation("an unknown ledger was taken over")
        if verb == "part":
            self._note_part(command)
        if verb == "rename" and command[1] not in before:
            situation("a directory was renamed")
            if any(one.name.startswith(f"{command[1]}/") for one in self.pending("put")):
                situation("a directory was renamed beside a put in it")
        if verb == "remove" and command[1] not in before:
            situation("a directory was removed with its content")
        self._note_read(verb, str(command[1]) if len(command) > 1 else "", before)

    def _note_part(self, command: list[Any]) -> None:
        calls = [one for one in self.pending("complete") if one.call[1] == command[1]]
        if calls:
            self.report.situation("a part was put beside the completion")

    def _note_read(self, verb: str, name: str, before: dict[str, Kept]) -> None:
        """Count what happens to an object that is read meanwhile."""
        what = {
            "put": "an object was replaced while it was read",
            "delete": "an object was deleted while it was read",
            "remove": "an object was deleted while it was read",
            "rename": "an object was renamed while it was read",
            "moved": "a pack was rewritten while it was read",
        }.get(verb)
        if what is None or not any(name == row or row.startswith(f"{name}/") for row in before):
            return
        if any(one.name == name or one.name.startswith(f"{name}/") for one in self.pending("get")):
            self.report.situation(what)

    # -- ledgers --------------------------------------------------------------------------------------------

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        ledger = self.layout.ledger_of(key)
        if ledger is None:
            return
        if new is None:
            self._ledger_deleted(who, ledger)
        elif old is None:
            metadata = self.world.judge.facts.ledger(ledger).metadata
            marks = metadata.custom_metadata if metadata is not None else {}
            if marks.get(OWNER_PURPOSE) == OBJECT.encode() and marks.get(OWNER) == NAME.encode():
                self.ledgers[ledger] = None

    def _ledger_deleted(self, who: str, ledger: LedgerId) -> None:
        if ledger not in self.ledgers:
            return
        del self.ledgers[ledger]
        now = self.world.loop.time()
        self._deleted[ledger] = now
        names = self._used.get(ledger, [])
        self.report.check("live", not names, "{} deletes ledger {}, in which {} have bytes", who, ledger, names)
        at_once = now <= self.at_once_until
        self.report.situation(f"a sweep freed space {'at once' if at_once else 'by time'}")
        since = self._unused_since.get(ledger)
        if since is not None and not at_once:
            self.report.check(
                "grace",
                now - since >= self._grace_s,
                "{} deletes ledger {} {} s after its end",
                who,
                ledger,
                now - since,
            )

    def deleted_since(self, moment: float) -> bool:
        """Return whether a ledger with bytes of objects was deleted since then."""
        return any(at >= moment for at in self._deleted.values())

    def key_conflict(self, who: str, key: str) -> None:
        """No rule is about it."""

    def reply_lost(self, who: str, key: str) -> None:
        """No rule is about it."""

    def unread_version(self, who: str, key: str, version: int) -> None:
        """Do nothing: the judge checks this (S11)."""


def _plain(verb: str, result: Any) -> Any:
    """Return the part of a command's result that the reference foresees."""
    if verb in ("put", "copy") and result is not None:
        return result[:3]
    if verb == "complete" and result is not None:
        return result[:2]
    return None if verb in ("purge", "expire", "settle") else result


def _short(command: list[Any]) -> str:
    return str(command)[:200]


__all__ = ["AT_ONCE_S", "NAME", "NAMESPACE", "OK", "REFUSED", "SLACK_US", "Rules", "group_of"]
