"""Planted bugs of archives: of forks, history, exports, imports, retention, deletion and the files at their place."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.archives.plan import ArchivesPlan
from simulator.engine import hunting
from simulator.engine.edits import edited


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[ArchivesPlan]):
    """A planted bug. `actors` are those that a life gets so that it can show, `policy` what its streams get."""

    actors: tuple[str, ...] = ()
    fault: str = ""
    place: str = ""
    seeds: int = 60

    def suits(self, plan: ArchivesPlan) -> bool:
        if self.place and plan.place != self.place:
            return False
        plan.actors = list(dict.fromkeys((*plan.actors, *self.actors)))
        plan.two_exporters = plan.two_exporters or "exporter" in self.actors
        if self.fault:
            plan.cluster.faults = [*plan.cluster.faults, self.fault]
        return True


def _bug(
    name: str,
    rule: str,
    bug: str,
    *edits: tuple[str, str, str],
    actors: str = "",
    fault: str = "",
    place: str = "",
    seeds: int = 60,
) -> Mutant:
    return Mutant(name, rule, bug, edited(*edits), seeds, tuple(actors.split()), fault, place)


_SHARED = "buckram.streams.shared"
_MAINTAIN = "buckram.streams.maintain"
_EXTERNAL = "buckram.core.streams.external"

_PLACE = (
    _bug(
        "part-unsynced",
        "whole",
        "a file of history has its name before its bytes are durable",
        (f"{_SHARED}.locations:_write_durably", "FILES.sync(target)", "pass"),
        actors="offloader",
        place="/history",
    ),
    _bug(
        "name-unsynced",
        "whole",
        "the name of a file of history is not durable",
        (f"{_SHARED}.locations:_write_durably", "FILES.sync_directory(directory)", "pass"),
        actors="offloader",
        place="/history",
    ),
    _bug(
        "namespace-unsynced",
        "whole",
        "the directory of a namespace is not durable",
        (
            f"{_SHARED}.locations:_make_directory",
            "(len(above) < _LEVELS or not FILES.is_directory(path)) and",
            "len(above) < 2 and",
        ),
        actors="offloader",
        place="/history",
    ),
    _bug(
        "not-compared",
        "whole",
        "a part is read back, and not compared with what was written",
        (f"{_MAINTAIN}.history.segment_copy:SegmentCopy._make_part", "if why:", "if False:"),
        actors="offloader exporter",
        fault="place changes bytes",
    ),
    _bug(
        "all-files-removed",
        "needed",
        "with the files of one copy all files of the directory go",
        (f"{_SHARED}.locations:FileLocation.remove", "copy_of(name) == copy", "copy_of(name) is not None"),
        actors="offloader truncator janitor",
    ),
    _bug(
        "files-stay",
        "space",
        "files of truncated and deleted history stay",
        (
            f"{_SHARED}.ledgers:drop_segment",
            "await drop_files(client, uid, row.offloaded.location, row.ledger)",
            "pass",
        ),
        actors="offloader truncator janitor",
    ),
    _bug(
        "threads-unawaited",
        "space",
        "files are deleted while threads still write them",
        (
            f"{_MAINTAIN}.history.segment_copy:SegmentCopy._has_ended",
            "calls: list[asyncio.Future[Any]] = [*self.making]",
            "return True\n    calls: list[asyncio.Future[Any]] = [*self.making]",
        ),
        actors="offloader exporter",
        fault="place late",
    ),
    _bug(
        "part-border",
        "kept",
        "the last entry of a part is looked for in the next one",
        (
            "buckram.streams.read.history_reader:SegmentFiles.parts",
            "part.last_entry >= first",
            "part.last_entry > first",
        ),
        actors="offloader",
    ),
)
_MOVES = (
    _bug(
        "replaced-unretired",
        "space",
        "what a copy replaced has no intent, so nobody deletes it",
        (
            f"{_MAINTAIN}.compaction:_replace",
            "for old in run.rows",
            "for old in run.rows[1:]",
        ),
        actors="offloader janitor",
    ),
    _bug(
        "listed-with-intent",
        "needed",
        "a copy that is listed keeps its intent, so the janitor deletes it",
        (
            f"{_MAINTAIN}.compaction:_replace",
            "ops: list[KeyOp] = [listing_op(streams, work.uid, copied.intent)]",
            "ops: list[KeyOp] = []",
        ),
        actors="offloader janitor",
    ),
    _bug(
        "row-keeps-ledger",
        "whole",
        "the row of history keeps the ledger's id, by which its files are looked for",
        (f"{_EXTERNAL}.history:offloaded_row", "ledger=copy,", ""),
        actors="offloader",
    ),
    _bug(
        "refused-counts",
        "told",
        "an offload that was refused counts as done",
        (
            f"{_MAINTAIN}.offload:_list",
            "report.put_off += 1\n        return\n    summary = copied.row.summary",
            "report.put_off += 1\n    summary = copied.row.summary",
        ),
        actors="offloader compactor truncator",
    ),
    _bug(
        "exported-twice",
        "exported",
        "of two exports at once both publish a segment",
        (f"{_EXTERNAL}.exports:advanced", "if export.next > due.first:", "if False:"),
        actors="exporter",
    ),
    _bug(
        "exported-withdrawn",
        "exported",
        "after an offload the exported copy behind it is taken out, too",
        (
            f"{_MAINTAIN}.history.export:_withdraw_replaced",
            "base <= bases[copy] < end",
            "base <= bases[copy] <= end",
        ),
        actors="exporter offloader",
        seeds=120,
    ),
    _bug(
        "import-skips",
        "imported",
        "an import that goes on leaves out a range",
        (f"{_MAINTAIN}.imports:_ranges", "start.range + 1 if", "start.range + 2 if"),
        actors="importer",
        seeds=120,
    ),
)
_FORKS = (
    _bug(
        "fork-goes-on",
        "forked",
        "a fork goes on with another stream that has the source's name by now",
        (f"{_MAINTAIN}.fork:_Forking._read_source", "source.head.uid != self._fork.uid", "False"),
        actors="forker deleter",
        seeds=150,
    ),
    _bug(
        "fork-names-files",
        "needed",
        "a fork names the files of its source instead of a copy of them",
        (
            f"{_MAINTAIN}.fork:_Forking._copy_history",
            "return CopiedSegment(row, offloaded_row(row, intent.ledger, Offloaded(directory, digest))), intent",
            "return CopiedSegment(row, row), intent",
        ),
        actors="forker offloader",
    ),
    _bug(
        "source-holds-nothing",
        "needed",
        "only the fork takes hold of shared ledgers",
        (
            f"{_SHARED}.shared_ledgers:sharing_ops",
            "for party in (source, fork)",
            "for party in (fork,)",
        ),
        actors="forker truncator deleter",
    ),
    _bug(
        "half-forks-stay",
        "space",
        "the janitor leaves forks that were not completed",
        (f"{_MAINTAIN}.janitor:Janitor._check_forks", "for name, uid in stopped:", "for name, uid in ():"),
        actors="forker janitor",
        seeds=120,
    ),
)
_ENDS = (
    _bug(
        "unfenced",
        "deleted",
        "a writer that could not be fenced counts as fenced",
        (
            f"{_MAINTAIN}.delete:_fence",
            "except RecoveryFailed as error:",
            "except RecoveryFailed:\n        return\n    except KeyError as error:",
        ),
        actors="deleter",
        fault="cut",
        seeds=150,
    ),
    _bug(
        "anew-removed",
        "identity",
        "a deletion removes the head of a stream that was made anew",
        (f"{_MAINTAIN}.delete:delete_stream", "if at.head.uid != head.uid:", "if False:"),
        actors="deleter janitor",
        seeds=150,
    ),
    _bug(
        "leftovers-stay",
        "space",
        "what late requests left of deleted streams stays",
        (f"{_MAINTAIN}.delete:drop_leftovers", "head = Head(uid, 0)", "return\n    head = Head(uid, 0)"),
        actors="deleter janitor offloader",
        seeds=150,
    ),
    _bug(
        "cursor-anew",
        "identity",
        "a late commit leaves a cursor of a stream that was deleted and made anew",
        ("buckram.streams.read.cursors:Cursor._create", "if at.head.uid != self._uid:", "if False:"),
        actors="deleter",
        seeds=150,
    ),
    _bug(
        "truncated-anew",
        "truncation",
        "a truncation hits a stream that was made anew under the name",
        (f"{_MAINTAIN}.truncate:truncate", "uid=head.uid", "uid=None"),
        actors="truncator deleter",
        seeds=150,
    ),
    _bug(
        "cursors-ignored",
        "cursors",
        "retention removes what a cursor has not passed",
        (
            f"{_MAINTAIN}.truncate:wanted_earliest",
            "wanted = min(wanted, lowest)",
            "pass",
        ),
        actors="janitor",
        seeds=120,
    ),
    _bug(
        "keeps-too-little",
        "truncation",
        "retention by size counts the segment that it removes",
        (
            f"{_MAINTAIN}.truncate:offset_keeping",
            "if kept >= keep_bytes and row.sealed:",
            "if row.sealed and kept + (row.summary.bytes if row.summary is not None else 0) >= keep_bytes:",
        ),
        actors="janitor",
        seeds=120,
    ),
)
MUTANTS = {mutant.name: mutant for part in (_PLACE, _MOVES, _FORKS, _ENDS) for mutant in part}

__all__ = ["MUTANTS", "Mutant"]
