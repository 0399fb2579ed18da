"""Reports of jobs: rows in a folder of Parquet files or in a table, written round by round.

A run has a name, and a job that is run again under that name reads the rows to continue. A round counts as done only if
its rows were written.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from buckram.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
