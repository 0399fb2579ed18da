"""Planted bugs of replication. Each one must break a rule within its budget of lives.

Not here: planting them (`simulator/engine/edits.py`), running lives with them (`subject.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine import hunting
from simulator.engine.edits import edited
from simulator.replication.plan import ReplicationPlan

_COPY = "buckram.replication.stream_copy:StreamCopy"
_PROMOTION = "buckram.replication.promotion"
_RECONCILING = "buckram.replication.reconciling"
_MIRRORS = "buckram.core.streams.metadata.mirrors"


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[ReplicationPlan]):
    """A planted bug."""

    acts: tuple[str, ...] = ()
    """The acts of operators in its lives, in order; empty: as drawn."""
    faults: tuple[str, ...] | None = None
    """The faults of its lives; None: as drawn."""
    crashing: float | None = None
    copiers: int | None = None
    eager: bool | None = None
    pause_s: float | None = None
    wrong_way: float | None = None
    sessions: int | None = None

    def suits(self, plan: ReplicationPlan) -> bool:
        if self.acts:
            plan.acts = list(self.acts)
            if "restore" in self.acts:
                plan.cluster.metadata = plan.other.metadata = "memory"
        if self.faults is not None:
            plan.cluster.faults = list(self.faults)
        if self.crashing is not None:
            plan.crashing = self.crashing
        if self.copiers is not None:
            plan.copiers = self.copiers
        if self.eager is not None:
            plan.eager = self.eager
        if self.pause_s is not None:
            plan.pause_s = self.pause_s
        if self.wrong_way is not None:
            plan.wrong_way = self.wrong_way
        if self.sessions is not None:
            plan.sessions = self.sessions
        return True


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "fence-only-written",
            "fence, told, kept, ends",
            "a promotion writes down that the other side is superseded, and takes no writer away there",
            edited(
                (
                    "buckram.replication.fencing:supersede",
                    "await hand_over(side, name, head, Mirror(SUPERSEDED, link.cluster, uid, link.epoch))",
                    "pass",
                )
            ),
        ),
        Mutant(
            "open-segment-left",
            "ahead, fence, told",
            "a stream changes hands while its open segment is neither fenced nor sealed",
            edited(
                (
                    "buckram.core.streams.metadata.changes:handed_over",
                    "if present is not None:",
                    "if False:",
                )
            ),
        ),
        Mutant(
            "fenced-after-the-look",
            "told",
            "a promotion reads where the other side ends, and fences it after that",
            edited(
                (
                    f"{_PROMOTION}:promote",
                    "await supersede(source, namespace, "
                    "Link(SUPERSEDED, target.cluster, target.uri, epoch, 0, link.streams))",
                    "pass",
                ),
                (
                    f"{_PROMOTION}:promote",
                    "mirrored = {one.stream for one in found.streams}",
                    "superseded = Link(SUPERSEDED, target.cluster, target.uri, epoch, 0, link.streams)\n"
                    "        await supersede(source, namespace, superseded)\n"
                    "        mirrored = {one.stream for one in found.streams}",
                ),
            ),
            acts=("promote", "promote", "promote"),
            faults=(),
            crashing=0.0,
            eager=True,
        ),
        Mutant(
            "checked-at-one-end",
            "links, refused",
            "a copy reads the link of the source only",
            edited(
                (
                    "buckram.replication.linking:check_link",
                    "here, there = await read_link(source, namespace), await read_link(target, namespace)",
                    "here, there = await read_link(source, namespace), None",
                )
            ),
        ),
        Mutant(
            "last-record-not-compared",
            "equal, source",
            "a copy goes on without comparing the last record of both sides",
            edited((f"{_COPY}._compared", "if verdict is not PositionVerdict.SAME:", "if False:")),
            acts=("restore", "grant"),
        ),
        Mutant(
            "off-by-one-after-a-restart",
            "equal, ends",
            "a run that goes on with a mirror begins one record further",
            edited((f"{_COPY}._prepare", "self.copied = mirror.end", "self.copied = mirror.end + 1")),
        ),
        Mutant(
            "truncated-before-copied",
            "ahead, stream",
            "the truncation of the source is copied further than its records",
            edited(
                (
                    "buckram.replication.mirror_metadata:Mirroring._pass",
                    "earliest = min(head.earliest, copied)",
                    "earliest = head.earliest",
                )
            ),
            acts=("truncate",) * 16,
            crashing=0.0,
            copiers=2,
            eager=True,
            pause_s=0.5,
        ),
        Mutant(
            "anew-is-the-same",
            "source",
            "a stream that was deleted and created anew is copied behind the records of the first one",
            edited(
                (
                    f"{_MIRRORS}:check_counterpart",
                    "(mark.cluster, mark.uid) != (cluster, uid)",
                    "mark.cluster != cluster",
                ),
                (f"{_MIRRORS}:check_writable", "if mark.uid != mirror_of:", "if not mirror_of:"),
            ),
            acts=("create anew", "promote"),
        ),
        Mutant(
            "progress-before-durable",
            "ahead",
            "what was sent to the mirror counts as copied before it is stored",
            edited(
                (
                    f"{_COPY}._put",
                    "stored = engine.append_copy(copy)",
                    "stored = engine.append_copy(copy)\n    self.copied = batch.next_offset",
                )
            ),
            120,
            acts=("promote alone", "promote alone", "promote alone"),
            faults=("b: pause bookie", "b: power", "pause bookie", "power"),
            crashing=0.5,
            eager=True,
        ),
        Mutant(
            "cursor-before-record",
            "ahead",
            "a cursor of the mirror is put where it is in the source, whether the records are there or not",
            edited(
                (
                    "buckram.replication.mirror_metadata:Mirroring._move_cursors",
                    "offset = min(cursor.offset, copied)",
                    "offset = cursor.offset",
                )
            ),
            120,
            acts=("promote alone", "promote alone"),
            eager=True,
        ),
        Mutant(
            "dropped-by-reconcile",
            "kept",
            "a reconciling deletes the old side's streams and keeps nothing aside",
            edited((f"{_RECONCILING}:reconcile", "if one.kept:", "if False:")),
        ),
        Mutant(
            "kept-from-the-next",
            "kept",
            "a reconciling keeps aside all records but the first one",
            edited(
                (
                    "buckram.replication.divergent_data:keep_records",
                    "first=first, state=state)",
                    "first=first + 1, state=state)",
                ),
            ),
        ),
        Mutant(
            "position-is-trusted",
            "kept",
            "a reconciling takes all records below the mirror's position for the same without comparing them",
            edited(
                (
                    f"{_RECONCILING}:_compared",
                    "return await first_difference(old, new, low, stop), mark.end",
                    "return stop, mark.end",
                )
            ),
            80,
            acts=("restore", "promote"),
        ),
        Mutant(
            "begun-anew-without-keeping",
            "kept",
            "a mirror whose source went back is begun anew, and what only it had is lost",
            edited(
                ("buckram.replication.divergent_data:begin_anew", "if found.first < found.end or state:", "if False:")
            ),
            80,
            acts=("restore", "grant"),
            eager=True,
        ),
        Mutant(
            "force-does-not-count",
            "links, ends",
            "a promotion does not raise the number of promotions",
            edited((f"{_PROMOTION}:promote", "else link.epoch + 1", "else link.epoch")),
        ),
        Mutant(
            "unforced",
            "refused",
            "a promotion without force is carried out while the other side is alive",
            edited((f"{_PROMOTION}:promote", "source is not None and not force and link.state == MIRROR", "False")),
            acts=("promote without force", "promote"),
        ),
        Mutant(
            "unreached-is-exact",
            "told",
            "a promotion says of a side that was not reached that it has nothing beyond",
            edited(
                (
                    f"{_PROMOTION}:_told",
                    "max(said.source_end, end), False, lacking",
                    "max(said.source_end, end), True, lacking",
                )
            ),
            acts=("promote alone", "promote alone"),
        ),
        Mutant(
            "told-without-comparison",
            "told",
            "a promotion does not look whether the two sides have the same records",
            edited(
                (
                    f"{_PROMOTION}:_told",
                    "compared, differs = await _compared(source, target, name, there, head, min(end, source_end))",
                    "compared, differs = True, None",
                )
            ),
            80,
            acts=("restore", "promote"),
            eager=True,
        ),
        Mutant(
            "half-fenced-is-fenced",
            "ends, fence, kept",
            "a reconciling does not fence the streams that an interrupted fencing left",
            edited(
                (
                    f"{_RECONCILING}:differences",
                    "await supersede(old, namespace, _superseded(new, there))\n    found",
                    "found",
                )
            ),
            120,
            acts=("promote alone", "promote alone"),
            crashing=0.8,
        ),
        Mutant(
            "mirror-takes-writers",
            "fence",
            "anybody may write to a mirror",
            edited((f"{_MIRRORS}:check_writable", "if mark.uid != mirror_of:", "if mirror_of not in ('', mark.uid):")),
        ),
        Mutant(
            "older-link-wins",
            "links",
            "a link is replaced by one from before the last promotion",
            edited(
                (
                    "buckram.replication.sides:put_link",
                    "if same or reconciled or known.epoch > link.epoch:",
                    "if same or reconciled:",
                )
            ),
            200,
            faults=("pause the tool", "pause the tool", "pause the tool"),
        ),
        Mutant(
            "superseded-again",
            "links",
            "a side that was reconciled is superseded again by a process that met the promotion before",
            edited(
                (
                    "buckram.replication.sides:put_link",
                    "if same or reconciled or known.epoch > link.epoch:",
                    "if same or known.epoch > link.epoch:",
                )
            ),
            200,
            acts=("promote alone", "promote alone", "promote alone"),
            faults=("pause the tool", "pause the tool", "pause the tool"),
            copiers=2,
        ),
        Mutant(
            "producers-forgotten",
            "once",
            "a mirror does not know the producers of its records",
            edited(
                (f"{_COPY}._copy", "self._engine.put_producers(item)", "pass"),
                (f"{_COPY}._copy", "self._table = item", "pass"),
                (f"{_COPY}._producers_before", "name, source = self.name, self._source", "return None"),
            ),
            120,
            acts=("truncate", "promote", "truncate", "promote", "truncate", "promote"),
            eager=True,
            pause_s=0.5,
        ),
        Mutant(
            "overtaken-unnoticed",
            "S9",
            "a copy appends where the mirror ended when it began, although another one has copied since",
            edited((f"{_COPY}._writer_at", "if began and engine.next_offset != offset:", "if False:")),
            200,
            copiers=2,
        ),
        Mutant(
            "mirror-creates",
            "fence",
            "a stream is created on the side of a mirror before the copy makes it",
            edited(
                (
                    "buckram.core.streams.replication_links:check_creation",
                    "if link.state == MIRROR and not copied_from:",
                    "if False:",
                )
            ),
            120,
            acts=("promote", "promote"),
        ),
        Mutant(
            "written-side-is-mirrored",
            "refused, fence",
            "a first run in the wrong direction makes a mirror of the side that is written",
            edited(("buckram.replication.linking:_check_own", "check_target(namespace, own)", "pass")),
            wrong_way=0.5,
        ),
        Mutant(
            "sent-again-with-later-times",
            "equal, kept",
            "a mirror whose ledger broke begins the next one with the time of the last record in flight",
            edited(
                (
                    "buckram.streams.write.appender:Appender.replace",
                    "time = min([self._last_append, *times])",
                    "time = self._last_append",
                )
            ),
            120,
        ),
        Mutant(
            "keeps-what-returns",
            "kept",
            "records that a restored source reads again with its next writer are kept aside from its mirror",
            edited(("buckram.replication.positions:judged", "if stored > end:", "if False:")),
            120,
            acts=("restore", "grant", "grant", "grant", "grant", "grant"),
            faults=(),
            crashing=0.2,
            copiers=2,
            sessions=3,
        ),
        Mutant(
            "grants-stay",
            "equal",
            "a grant that the source has revoked stays in the target",
            edited(
                (
                    "buckram.replication.mirror_metadata:mirror_grants",
                    "acl.with_namespace(namespace, wanted)",
                    "acl.with_namespace(namespace, "
                    "type(wanted)((*acl.of_namespace(namespace).grants, *wanted.grants)))",
                )
            ),
            acts=("grant", "grant", "grant", "grant"),
        ),
    )
}


__all__ = ["MUTANTS", "Mutant"]
