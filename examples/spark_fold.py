"""Keyed upserts folded into a table with transformWithState: Debian's package index is the snapshot, the indexes of its
updates and security archives are the changes. Every real change of a version becomes one record of another stream.
`python -m examples.spark_fold`
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from buckram import sync
from buckram.metadata.default import default_uri
from buckram.spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UPSERTS, CHANGES = "packages", "versions"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Newest(StatefulProcessor):
    """Keeps the version of one package; says so when it becomes another one."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._version = handle.getValueState("version", "version string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        kept = self._version.get()
        before = now = kept[0] if kept is not None else None
        for row in sorted(rows, key=lambda row: row.offset):
            now = row.version  # null: the package is gone
        if now != before:
            self._version.update((now,))
            yield Row(key=key[0], value=now)

    def close(self) -> None:
        """Nothing is kept elsewhere."""


def store(metadata: str, versions: Mapping[str, str | None]) -> None:
    """Upserts; None deletes a package."""
    with sync.connect(metadata) as client, client.namespace().writer(UPSERTS) as writer:
        values = [None if version is None else version.encode() for version in versions.values()]
        writer.append_many(values, keys=[name.encode() for name in versions])


def fold(session: SparkSession, metadata: str, folder: Path) -> None:
    """Take in what came since the last time; exactly once, whatever dies."""
    session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    source = session.readStream.format("buckram").option("metadata", metadata).option("startingOffsets", "earliest")
    upserts = source.load(UPSERTS).selectExpr("cast(key as string) name", "cast(value as string) version", "offset")
    changed = upserts.groupBy("name").transformWithState(Newest(), "key string, value string", "Append", "None")
    sink = changed.writeStream.format("buckram").option("metadata", metadata).option("createStream", "true")
    sink = sink.option("checkpointLocation", str(folder)).trigger(availableNow=True)
    sink.start(CHANGES).awaitTermination()


def table(session: SparkSession, metadata: str) -> DataFrame:
    """What the changes add up to: the last one of each package, unless it is gone."""
    changes = session.read.format("buckram").option("metadata", metadata).load(CHANGES)
    changes.createOrReplaceTempView("changes")
    newest = "cast(max_by(value, offset) as string) version"
    last = session.sql(f"select cast(key as string) name, {newest} from changes group by key")
    return last.where("version is not null")


def index_of(suite: str) -> dict[str, str]:
    """Versions by package in apt's lists of a suite, such as bookworm-security."""
    query = ["apt-get", "indextargets", "--format", "$(FILENAME)", "Created-By: Packages", f"Codename: {suite}"]
    found: dict[str, str] = {}
    for name in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split():
        text = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", name], capture_output=True, check=True).stdout
        for stanza in text.decode(errors="replace").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
            if "Package" in fields:
                found[fields["Package"]] = fields["Version"]
    return found


def main() -> None:
    metadata, session = default_uri(os.environ, Path.cwd()), local_session("fold")
    release = os.environ.get("SUITE", "bookworm")
    with tempfile.TemporaryDirectory() as folder:
        for suite in (release, f"{release}-updates", f"{release}-security"):
            store(metadata, index_of(suite))
            fold(session, metadata, Path(folder))
            print(f"after {suite}: {table(session, metadata).count()} packages")


if __name__ == "__main__":
    main()
