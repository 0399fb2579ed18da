"""A running replication as gauges, for Prometheus. Not here: serving them (`serve/cluster_exporter.py`)."""

from __future__ import annotations

from buckram.errors import BuckramError, NoSuchStream
from buckram.replication.lag import lag_of
from buckram.replication.run import Replication
from buckram.replication.sides import Side
from buckram.runtime.process.stats import PrometheusStats


async def show_replication(work: Replication, source: Side, target: Side, stats: PrometheusStats) -> None:
    """Set the gauges of every stream and of the objects that are copied. Raises MetadataUnavailable."""
    for name, copying in list(work.streams.items()):
        labels = {"stream": str(name)}
        copied = stats.gauge("buckram_replication_copied_offset", "the offset up to which the mirror is", **labels)
        copied.set(copying.copy.copied)
        moved = stats.gauge("buckram_replication_copied_bytes", "what this process has copied", **labels)
        moved.set(copying.copy.bytes)
        failing = stats.gauge("buckram_replication_failing", "1 while the stream cannot be copied", **labels)
        failing.set(int(bool(copying.trouble)))
        try:
            lag = await lag_of(source, target, name)
        except NoSuchStream:
            continue
        except BuckramError:
            if copying.trouble:
                continue
            raise
        if lag.records is not None:
            stats.gauge("buckram_replication_lag_records", "records that the mirror lacks", **labels).set(lag.records)
        if lag.bytes is not None:
            stats.gauge("buckram_replication_lag_bytes", "bytes of those records", **labels).set(lag.bytes)
        if lag.seconds is not None:
            behind = stats.gauge("buckram_replication_lag_seconds", "the age of the oldest of those records", **labels)
            behind.set(lag.seconds)
    for namespace, objects in work.objects.items():
        labels = {"namespace": namespace}
        copied = stats.gauge("buckram_replication_objects_copied", "objects that this process has copied", **labels)
        copied.set(objects.copy.objects)
        lacking = objects.copy.lacking
        missing = stats.gauge("buckram_replication_objects_missing", "objects that the mirror lacks", **labels)
        missing.set(0 if lacking is None else len(lacking.puts))
        failing = stats.gauge("buckram_replication_objects_failing", "1 while not all can be copied", **labels)
        failing.set(int(bool(objects.trouble)))


__all__ = ["show_replication"]
