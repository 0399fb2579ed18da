"""Reports of jobs: rows in a folder of Parquet files or in a table, written round by round, and the report of `scrub`.

A run has a name, and a job that is run again under that name reads the rows to continue. A round counts as done only if
its rows were written. The report of `scrub` has the totals of a run, and each bad copy of a ledger with the command
that repairs it. Not here: the jobs themselves (`spark/jobs/scrub.py`).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buckram.errors import InvalidArgument
from buckram.types import BookieId, LedgerId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class BadReplica:
    """A bad copy of a ledger on one bookie.

    `kind`: missing; damaged; differs, its digests are good but its contents are not those of other replicas; lied, the
    bookie is convicted; or unknown, the bookie could not be read. `entries` counts the bad ones, `examples` has some.
    """

    ledger: LedgerId
    bookie: BookieId
    kind: str
    entries: int
    examples: tuple[int, ...]
    detail: str
    repair: str
    """The command that repairs it; empty if there is none. A password appears as a shell variable only."""


@dataclass(slots=True)
class ScrubReport:
    """Report of one run of the job. `replicas` counts copies of ledgers on bookies; `growing` ledgers that are open.

    The part of an open ledger that can still grow was skipped.
    """

    run: str
    ledgers: int = 0
    replicas: int = 0
    entries: int = 0
    bytes: int = 0
    growing: int = 0
    seconds: float = 0.0
    bad: list[BadReplica] = field(default_factory=list)
    unknown: list[BadReplica] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Return whether all replicas were read and are good."""
        return not self.bad and not self.unknown


def merge_replicas(rows: Sequence[Mapping[str, Any]], repair: str) -> tuple[list[BadReplica], list[BadReplica]]:
    """Merge the bad pieces of each copy of a ledger; returns bad and unknown replicas."""
    bad: list[BadReplica] = []
    unknown: list[BadReplica] = []
    copies: dict[tuple[int, str, bool], list[Mapping[str, Any]]] = {}
    for row in rows:
        copies.setdefault((row["ledger"], row["bookie"], row["state"] == "unknown"), []).append(row)
    for (ledger, bookie, is_unknown), parts in copies.items():
        if is_unknown:
            left = sum(part["entries"] - part["good"] for part in parts)
            unknown.append(BadReplica(ledger, bookie, "unknown", left, (), parts[0]["error"], repair))
            continue
        missing, damaged = (sum(part[what] for part in parts) for what in ("missing", "damaged"))
        examples = tuple(entry for part in parts for entry in part["bad"])[:10]
        lies = [part["error"] for part in parts if part["state"] == "lied"]
        detail = ", ".join(f"{count} {what}" for count, what in ((missing, "missing"), (damaged, "damaged")) if count)
        bad.append(
            BadReplica(
                ledger,
                bookie,
                "lied" if lies else "damaged" if damaged else "missing",
                missing + damaged,
                examples,
                "; ".join([f"{detail} of {sum(part['entries'] for part in parts)} entries", *lies[:1]]),
                repair,
            )
        )
    return bad, unknown


RUN = "run"
"""The column with the name of the run."""


@dataclass(frozen=True, slots=True)
class Report:
    """The rows of all runs of one job. `place` is a folder (any URI that Spark can write to) or a table."""

    session: SparkSession
    place: str
    is_table: bool
    schema: str

    def add(self, rows: DataFrame) -> None:
        """Compute the rows and append all of them, or none after a failure."""
        writer = rows.write.mode("append")
        if self.is_table:
            writer.saveAsTable(self.place)
        else:
            writer.parquet(self.place)

    def rows(self, run: str) -> DataFrame:
        """Return the rows of one run that were written so far."""
        found = self.found(run)
        return self.session.createDataFrame([], self.schema) if found is None else found

    def found(self, run: str) -> DataFrame | None:
        """Return the rows as `rows` does, or None, without a query, if the report does not exist yet."""
        from pyspark.sql import functions as f

        if self.is_table:
            there = self.session.table(self.place) if self.session.catalog.tableExists(self.place) else None
        else:
            there = self._read()
        return None if there is None else there.where(f.col(RUN) == run)

    def _read(self) -> DataFrame | None:
        from pyspark.errors import AnalysisException

        try:
            frame = self.session.read.schema(self.schema).parquet(self.place)
            _ = frame.columns
        except AnalysisException as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            return None
        return frame


@contextmanager
def open_report(session: SparkSession, schema: str, folder: str | None, table: str | None) -> Iterator[Report]:
    """Open the report in the folder or table; without one, a temporary report. InvalidArgument if both are given."""
    if folder is not None and table is not None:
        raise InvalidArgument("a report goes to a folder or to a table: name one of them")
    if table is not None:
        yield Report(session, table, True, schema)
        return
    if folder is not None:
        yield Report(session, folder, False, schema)
        return
    private = Path(tempfile.mkdtemp(prefix="buckram-job-"))
    try:
        yield Report(session, (private / "report").as_uri(), False, schema)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def run_name(job: str, given: str | None) -> str:
    """Return the name of a run: the given one, or one made from the time. InvalidArgument for a malformed name."""
    if given is None:
        return f"{job}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    if not re.fullmatch(r"[\w.:+-]{1,100}", given):
        raise InvalidArgument(f"run {given!r}: a name is 1 to 100 letters, digits, or any of . : + - _")
    return given
