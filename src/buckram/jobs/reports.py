"""Where a job writes down what it found: a folder of Parquet files or a table, in parts; read again to go on.

Each part is one round of a run, which has a name; a round that was not written did not happen.
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
"""The column that says which run a row is of."""


@dataclass(frozen=True, slots=True)
class Report:
    """Rows of all runs of one job. `place`: folder (any URI that Spark writes to) or table."""

    session: SparkSession
    place: str
    is_table: bool
    schema: str

    def add(self, rows: DataFrame) -> None:
        """Compute and keep them; all or none."""
        writer = rows.write.mode("append")
        if self.is_table:
            writer.saveAsTable(self.place)
        else:
            writer.parquet(self.place)

    def rows(self, run: str) -> DataFrame:
        """What was written down of one run so far."""
        found = self.found(run)
        return self.session.createDataFrame([], self.schema) if found is None else found

    def found(self, run: str) -> DataFrame | None:
        """The same; None where nothing was ever written, which is known without a query."""
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
    """The one that is named, else one that is gone at the end. InvalidArgument for both."""
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
    """The name of a run: the given one, or a new one from the time."""
    if given is None:
        return f"{job}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    if not re.fullmatch(r"[\w.:+-]{1,100}", given):
        raise InvalidArgument(f"run {given!r}: a name is 1 to 100 letters, digits, or any of . : + - _")
    return given


__all__ = ["RUN", "Report", "open_report", "run_name"]
