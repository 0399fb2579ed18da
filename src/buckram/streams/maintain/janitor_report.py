"""The report of a janitor's pass over the streams, and the callbacks that get it.

Not here: the passes (`streams/maintain/janitor.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from buckram.errors import (
    BuckramError,
    InvariantViolation,
)

_log = logging.getLogger("buckram.streams")


@dataclass(slots=True)
class JanitorReport:
    """Counts of the work of one pass, and its problems."""

    streams: int = 0
    truncated_records: int = 0
    deleted_segments: int = 0
    sealed_segments: int = 0
    discarded_ledgers: int = 0
    """Ledgers that were never listed, left a list without records, or were replaced by a copy."""
    deleted_streams: int = 0
    """Streams whose deletion, or whose making as a fork, another process had begun and not completed."""
    orphans: int = 0
    offloaded_segments: int = 0
    """Segments that became files of history, as a policy asks."""
    joined_segments: int = 0
    """Small segments that became one with their neighbours."""
    backups: int = 0
    """Backups of databases that were made, as a policy asks."""
    problems: list[str] = field(default_factory=list)
    """Failures with their reasons; the next pass tries again."""


OnReport = Callable[[JanitorReport], None]
"""Called after each pass of a janitor that runs permanently."""
OnWaiting = Callable[[int], None]
"""Called before a janitor waits for `seal_s`, with the number of streams that seem to have no writer."""


def combine_reports(first: JanitorReport, second: JanitorReport) -> JanitorReport:
    """Add up the reports of two passes. The number of streams and the problems are those of the second."""
    return JanitorReport(
        second.streams,
        first.truncated_records + second.truncated_records,
        first.deleted_segments + second.deleted_segments,
        first.sealed_segments + second.sealed_segments,
        first.discarded_ledgers + second.discarded_ledgers,
        first.deleted_streams + second.deleted_streams,
        first.orphans + second.orphans,
        first.offloaded_segments + second.offloaded_segments,
        first.joined_segments + second.joined_segments,
        first.backups + second.backups,
        second.problems,
    )


def note_problem(report: JanitorReport, what: str, error: Exception) -> None:
    """Report an error so that the pass can go on with other streams.

    A rule that does not hold, or an error that is not a BuckramError, is a bug of this program, or comes from metadata
    of one stream that no program writes. It must not keep all other streams from being cleaned.
    """
    if isinstance(error, BuckramError) and not isinstance(error, InvariantViolation):
        report.problems.append(f"{what}: {error}")
        return
    _log.error("the janitor failed on %s because of a bug", what, exc_info=error)
    report.problems.append(f"{what}: the janitor failed on it; its log has the details")
