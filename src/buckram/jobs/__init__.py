"""Maintenance that is a scan of much, and therefore runs on Spark: `scrub` reads every replica of every ledger,
`compact` makes large segments of small ones, `orphans` looks for ledgers that no stream needs.

Each is a function that takes a Spark session and a metadata URI, and a command, `buckram job NAME`. Each may be stopped
anywhere and run again, and leaves room to others: `bytes_per_s` limits what one bookie is asked for. What must be quick
(fencing, repair of a ledger) is the client's and the bookies', not here.
"""

from __future__ import annotations

from buckram.jobs.compact import CompactReport, StreamCompaction, compact
from buckram.jobs.orphans import OrphansReport, orphans
from buckram.jobs.scrub import BadReplica, ScrubReport, scrub

__all__ = [
    "BadReplica",
    "CompactReport",
    "OrphansReport",
    "ScrubReport",
    "StreamCompaction",
    "compact",
    "orphans",
    "scrub",
]
