"""Planted bugs of objects: `python -m buckram.sim --objects --mutants`."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine import hunting
from simulator.engine.edits import edited
from simulator.objects.plan import ObjectsPlan

_INDEX = "buckram.core.objects.index:ObjectIndex"
_SPACE = "buckram.core.objects.ledger_use:LedgerSpace"
_SWEEPER = "buckram.state.objects.garbage_collection:Sweeper"
_OBJECTS = "buckram.state.objects.objects:Objects"
_MAKER = "buckram.state.objects.writing:LedgerMaker"


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[ObjectsPlan]):
    """A planted bug of objects."""

    faults: tuple[str, ...] | None = None
    """Faults of the mutant's lives, for bugs that show only under some faults; None: those of each plan."""
    cancelling: float | None = None
    """The chance that an act is cancelled; None: that of each plan."""
    at_once: bool | None = None
    """True or False to have putters sweep at once, or not; None: as in each plan."""
    putters: int = 1
    """The least number of putters."""
    aimed: bool = False
    """True if cancellations and replacements are to be aimed."""

    def suits(self, plan: ObjectsPlan) -> bool:
        if self.faults is not None:
            plan.cluster.faults = list(self.faults)
        if self.faults == ():
            plan.crashing = plan.cancelling = 0.0
        if self.cancelling is not None:
            plan.cancelling = self.cancelling
        if self.at_once is not None:
            plan.at_once = self.at_once
        plan.putters, plan.aimed = max(plan.putters, self.putters), plan.aimed or self.aimed
        return True


_SPACES = (
    Mutant(
        "copy-shares-nothing",
        "live",
        "a copy does not keep the ledger of the bytes that it shares",
        edited((f"{_INDEX}._place_again", "self.space.refer(row.extents)", "pass")),
    ),
    Mutant(
        "open-is-dead",
        "live, ends",
        "a ledger that no object has bytes in is dead although its writer adds to it",
        edited((f"{_SPACE}._judge", "row.state == SEALED and row.references == 0", "row.references == 0")),
        faults=(),
    ),
    Mutant(
        "dead-is-usable",
        "live",
        "bytes of a dead ledger get a name",
        edited((f"{_SPACE}.usable", "and row.state != DEAD", "")),
        120,
        faults=("hang a putter", "hang a putter"),
        putters=2,
    ),
    Mutant(
        "released-before-referred",
        "live",
        "an object that is replaced lets go of its ledger before the new one holds it, as a copy onto itself does",
        edited(
            (f"{_INDEX}._place_again", "self.space.refer(row.extents)", "pass"),
            (
                f"{_INDEX}._place_again",
                "self._place(directory, last, copied)",
                "self._place(directory, last, copied)\n    self.space.refer(row.extents)",
            ),
        ),
        120,
    ),
    Mutant(
        "replaced-not-released",
        "space",
        "the bytes of an object that was replaced stay in use for ever",
        edited((f"{_INDEX}._place", "self._forget(directory, name, old)", "self._count(name, old, -1)")),
    ),
    Mutant(
        "part-counted-twice",
        "space",
        "a part that was replaced keeps its ledger",
        edited((f"{_INDEX}._in_parts", "if old is not None:", "if False:")),
        120,
    ),
    Mutant(
        "completed-counted-twice",
        "space",
        "an upload that was completed keeps the ledgers of its parts beside its object",
        edited(
            (f"{_INDEX}._complete", "self._drop_upload(upload)", "del self.uploads[upload]"),
        ),
        120,
    ),
    Mutant(
        "purge-forgets-below",
        "space",
        "of a directory that was removed, those below it are never purged",
        edited((f"{_INDEX}._purge", "self.trash.insert(0, node)", "pass")),
        160,
    ),
    Mutant(
        "gone-before-deleted",
        "gone",
        "the index forgets ledgers before they are deleted",
        edited(
            (
                f"{_SWEEPER}._delete",
                "for some in _groups(part, _PARALLEL):",
                'await self._index.execute(["gone", part])\n        for some in _groups(part, _PARALLEL):',
            )
        ),
    ),
    Mutant(
        "no-grace",
        "grace, damaged",
        "a dead ledger is deleted at once, also while an object is read",
        edited((f"{_SWEEPER}._delete", "self._dead.update(dead, grace_s)", "dead")),
        at_once=False,
    ),
)

_NAMES = (
    Mutant(
        "rename-forgets-a-child",
        "names, history",
        "one of the objects in a directory is lost when it gets another name",
        edited(
            (
                f"{_INDEX}._rename",
                "directory.attach(last, node, self.now_us)",
                "directory.attach(last, node, self.now_us)\n"
                "        if len(node.nodes) > 2:\n"
                "            node.detach(min(node.nodes), self.now_us)",
            )
        ),
        160,
    ),
    Mutant(
        "condition-outside",
        "history",
        "a condition is checked before the bytes are written, and not in the command that puts them",
        edited(
            (
                f"{_OBJECTS}.put",
                "stored = await self._store(data)",
                "row = await self._index.look(lambda state: state.look(name))\n"
                "        version = row.version if row is not None else None\n"
                '        if when == "absent" and version is not None:\n'
                '            raise refused(name, CommandRefused("exists: version"))\n'
                '        if when not in (None, "absent") and version != when:\n'
                '            raise refused(name, CommandRefused("changed: it has another"))\n'
                "        when = None\n"
                "        stored = await self._store(data)",
            )
        ),
        160,
        putters=3,
    ),
    Mutant(
        "moved-over-a-newer-version",
        "names, bytes",
        "the bytes of a rewritten pack get the name although another version is under it by then",
        edited((f"{_INDEX}._moved", "or row.version != version", "")),
        300,
        putters=2,
        aimed=True,
    ),
    Mutant(
        "parts-without-order",
        "names, bytes, history",
        "an upload is completed with its parts in the order in which they came",
        edited((f"{_INDEX}._complete", "for number in sorted(found.parts)]", "for number in found.parts]")),
        160,
    ),
    Mutant(
        "snapshot-forgets-parts",
        "names",
        "an upload in a snapshot has none of its parts",
        edited(
            (
                "buckram.core.objects.rows:Upload.dump",
                "sorted((part, *rest) for part, rest in self.parts.items())",
                "[]",
            )
        ),
        160,
    ),
    Mutant(
        "snapshot-forgets-kept",
        "names, history",
        "a directory that was made to be kept is not kept in a snapshot",
        edited(("buckram.core.objects.snapshot_format:read_lines", "directory.kept = kept", "pass")),
        300,
    ),
)

_READS = (
    Mutant(
        "stale-look",
        "history",
        "a look does not wait for what other processes have done",
        edited(
            (
                "buckram.state.objects.index_client:IndexClient.look",
                'return await self.machine.read(function, "stale", at_most_s=0)',
                'return await self.machine.read(function, "stale")',
            )
        ),
        120,
        putters=3,
        cancelling=0.0,
        faults=("cut off a putter",) * 4,
    ),
    Mutant(
        "entry-of-another-pack",
        "bytes",
        "an entry that was read is kept under its number alone, whatever its ledger",
        edited(
            (
                "buckram.state.objects.reading:ObjectReaders._entry",
                "key = extent.ledger, extent.entry",
                "key = 0, extent.entry",
            )
        ),
    ),
    Mutant(
        "range-off-by-a-chunk",
        "bytes",
        "a range that begins in a later chunk begins with bytes from before it",
        edited(
            (
                "buckram.state.objects.reading:ObjectReaders._extent",
                "at = (first - extent.entry) * extent.chunk",
                "at = extent.entry * extent.chunk",
            )
        ),
        120,
    ),
    Mutant(
        "at-of-the-first",
        "bytes, damaged",
        "objects that share an entry all begin where the first one does",
        edited(("buckram.state.objects.writing:Packs._append", "at += len(small.data)", "at += 0")),
    ),
)

_WRITERS = (
    Mutant(
        "cancel-leaks",
        "space",
        "the ledger of a put that was cancelled as it began stays open while its process lives",
        edited((f"{_MAKER}._not_wanted", "if begun:", "if False:")),
        120,
        faults=(),
        cancelling=0.4,
    ),
    Mutant(
        "task-that-fails",
        "uncaught",
        "a ledger that cannot be made is a task that fails beside the call that is told so",
        edited((f"{_MAKER}._attempt", "return error", "raise error")),
        60,
        faults=("lose an intent",) * 4,
    ),
    Mutant(
        "failed-put-leaks",
        "space",
        "a large object that was cancelled or failed in the middle leaves its ledger open",
        edited(
            (
                "buckram.state.objects.writing:write_large",
                "maker.give_up([(writer.ledger_id, writer.length)])",
                "pass",
            )
        ),
        120,
        faults=(),
        cancelling=0.3,
        aimed=True,
    ),
    Mutant(
        "cancelled-seal-leaks",
        "space",
        "a pack whose sealing was cancelled or failed stays open while its process lives",
        edited(
            ("buckram.state.objects.writing:Packs.seal", "self._maker.give_up([(pack.ledger_id, pack.length)])", "pass")
        ),
        160,
        faults=(),
        cancelling=0.4,
        at_once=True,
        aimed=True,
    ),
    Mutant(
        "refused-leaks",
        "space",
        "the ledger of a large object that was refused stays open",
        edited((f"{_OBJECTS}._name", "self._maker.give_up(stored.sealed)", "pass")),
        120,
    ),
    Mutant(
        "claimed-and-written",
        "live, bytes, space, ends",
        "a ledger that was deleted between its creation and its record in the index is written all the same",
        edited((f"{_MAKER}._begin", "if intent is None or intent.discard:", "if False:")),
        300,
        faults=("hang a putter", "lose an intent", "hang a putter"),
        putters=2,
    ),
    Mutant(
        "present-writer-given-up",
        "ends",
        "a sweeper takes every writer for gone",
        edited((f"{_SWEEPER}._give_up_abandoned", "if writer not in present", "")),
        putters=2,
        at_once=True,
        faults=(),
        cancelling=0.0,
    ),
    Mutant(
        "gone-without-a-look",
        "live, bytes, history",
        "the ledger of a writer that is gone is deleted, and nobody looks at its objects",
        edited(
            (
                f"{_SWEEPER}._give_up_abandoned",
                'await self._index.execute(["seal", ledger, size])',
                'await self._index.execute(["seal", ledger, size])\n        await self._drop(ledger)',
            )
        ),
        60,
        faults=("crash a putter", "crash a putter"),
        putters=2,
    ),
)

_TIMES = (
    Mutant(
        "expiry-by-local-clock",
        "early",
        "an object is expired for readers by the clock of their own process",
        edited(
            (
                f"{_OBJECTS}._has_expired",
                "self._client.services.clocks.ended(at_us)",
                "self._client.services.runtime.clock.wall_us() >= at_us",
            )
        ),
        160,
        faults=("set clocks", "set clocks", "set clocks"),
        aimed=True,
    ),
    Mutant(
        "expires-in-doubt",
        "early",
        "a sweeper goes by its own clock, whatever other clocks say",
        edited(
            (f"{_SWEEPER}._expire", "or await clocks.doubt()", ""),
            (
                "buckram.core.machine.fold:LogTime.next",
                "if not moment.why:",
                "if True:",
            ),
            (f"{_SWEEPER}._expire", "due <= clocks.moment().earliest", "due <= clocks.moment().best"),
        ),
        160,
        faults=("set clocks", "set clocks", "set clocks"),
        aimed=True,
    ),
    Mutant(
        "never-expires",
        "late",
        "what has expired is removed by no sweep",
        edited((f"{_SWEEPER}._expire", "due <= clocks.moment().earliest", "False")),
    ),
    Mutant(
        "uploads-stay",
        "late, ends",
        "an upload that was left stays for ever",
        edited((f"{_INDEX}._expire", "one.time_us < self.now_us - UPLOAD_US", "False")),
    ),
)

MUTANTS: dict[str, Mutant] = {one.name: one for one in (*_SPACES, *_NAMES, *_READS, *_WRITERS, *_TIMES)}

__all__ = ["MUTANTS", "Mutant"]
