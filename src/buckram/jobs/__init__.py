"""Jobs on Spark: maintenance that scans a whole cluster, and imports from Kafka.

`scrub` reads every replica of every ledger, `compact` makes large segments from small ones, and `orphans` finds ledgers
that no stream needs; `import_kafka` brings a topic's records into streams. Each is a function that takes a Spark
session and a metadata URI, and a command, `buckram job NAME`. Each may be stopped at any point and run again;
`bytes_per_s` limits the load on a bookie. Not here: operations that must be quick, such as fencing and repairing one
ledger (`client/maintain`).
"""

from __future__ import annotations

from buckram.extras import needed_for

with needed_for("buckram.jobs", "spark"):
    from buckram.spark.jobs.compact import CompactReport, StreamCompaction, compact
    from buckram.spark.jobs.import_kafka import KafkaReport, KafkaStream, import_kafka
    from buckram.spark.jobs.orphans import OrphansReport, orphans
    from buckram.spark.jobs.reports import BadReplica, ScrubReport
    from buckram.spark.jobs.scrub import scrub

__all__ = [
    "BadReplica",
    "CompactReport",
    "KafkaReport",
    "KafkaStream",
    "OrphansReport",
    "ScrubReport",
    "StreamCompaction",
    "compact",
    "import_kafka",
    "orphans",
    "scrub",
]
