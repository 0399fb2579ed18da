"""The data source with faults: `format("buckram_chaos")` is the real one, but fails where an option says.

The option `faults` lists POINT or POINT:BATCH:PARTITION, separated by commas; each happens once per directory `marks`.

    raise-early, kill-early    a task fails, or its worker is killed, with rows written and the ledger open
    raise-late, kill-late      the same after the ledgers are sealed
    kill-executor              as kill-early, but the executor's JVM is killed
    slow                       the first attempt takes very long, for speculation
    commit-before, commit-after  the commit fails before or after it published
    driver-open, driver-sealed the commit's process is killed with the ledger of small parts open, or sealed
    lost-reply                 the metadata store carries out a change, and its reply is lost
    die-before, die-after      the driver is killed before or after the publishing, before Spark records the batch
    hold                       the commit waits, ready to publish, until the file `go` is there
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from buckram.errors import MetadataUnavailable
from buckram.spark.data_source import BuckramDataSource
from buckram.spark.shared.clients import connection
from buckram.spark.sink.exactly_once import OnceStreamWriter
from buckram.spark.sink.stream_sink import StreamSink, stream_writer
from buckram.spark.sink.transactions import Attempt
from buckram.streams.write.bulk import BulkLedger
from buckram.types import KeyOp

OWN = ("faults", "marks")
HOLD_S = 120.0


class ChaosSource(BuckramDataSource):
    @classmethod
    def name(cls) -> str:
        return "buckram_chaos"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        plain = {name: text for name, text in self.options.items() if name.lower() not in OWN}
        writer = stream_writer(plain, schema, overwrite)
        assert isinstance(writer, OnceStreamWriter)
        return ChaosWriter(writer, Faults(self.options))


class Faults:
    """The faults that are still to come, as files that all processes see."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._listed = [fault for fault in options.get("faults", "").split(",") if fault]
        self.marks = Path(options["marks"])

    def strikes(self, point: str, batch: int, partition: int = -1) -> bool:
        """Whether this fault happens now; after True it never happens again, in any process."""
        for fault in self._listed:
            name, _, where = fault.partition(":")
            if name != point or (where and where not in (f"{batch}", f"{batch}:{partition}")):
                continue
            try:
                os.close(os.open(self.marks / fault.replace(":", "."), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            return True
        return False


class ChaosWriter(OnceStreamWriter):
    def __init__(self, real: OnceStreamWriter, faults: Faults) -> None:
        super().__init__(real.sink)
        self.faults = faults

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        attempt = Attempt.here()
        where = attempt.batch, attempt.partition
        part = super().write(self._interrupted(iterator, where))
        if self.faults.strikes("raise-late", *where):
            raise RuntimeError("a task died after it had sealed its ledgers")
        if self.faults.strikes("kill-late", *where):
            os.kill(os.getpid(), signal.SIGKILL)
        return part

    def _interrupted(self, batches: Iterator[pa.RecordBatch], where: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            yield batch.slice(half)
        if self.faults.strikes("raise-early", *where):
            raise RuntimeError("a task died with its ledger open")
        if self.faults.strikes("kill-early", *where):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.faults.strikes("kill-executor", *where):
            os.kill(executor(), signal.SIGKILL)
            time.sleep(HOLD_S)
        if self.faults.strikes("slow", *where):
            wait_for(self.faults.marks / "never", required=False)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self.faults.strikes("die-before", batchId):
            kill_driver(self.faults.marks)
        if self.faults.strikes("commit-before", batchId):
            raise RuntimeError("the commit died before it published")
        if self.faults.strikes("hold", batchId):
            (self.faults.marks / "held").touch()
            wait_for(self.faults.marks / "go")
        for point in ("driver-open", "driver-sealed"):
            if self.faults.strikes(point, batchId):
                die_writing(sealed=point == "driver-sealed")
        if self.faults.strikes("lost-reply", batchId):
            assert isinstance(self.sink, StreamSink)
            lose_reply(self.sink.settings.metadata)
        super().commit(messages, batchId)
        if self.faults.strikes("die-after", batchId):
            kill_driver(self.faults.marks)
        if self.faults.strikes("commit-after", batchId):
            raise RuntimeError("the commit died after it published")


def lose_reply(uri: str) -> None:
    """Carry out the next change of a stream's head and lose its reply."""
    keys = connection(uri).client.services.store.keys
    multi = keys.multi

    async def once(ops: Sequence[KeyOp]) -> Any:
        keys.multi = multi  # type: ignore[method-assign]
        await multi(ops)
        raise MetadataUnavailable("the reply was lost")

    keys.multi = once  # type: ignore[method-assign]


def die_writing(*, sealed: bool) -> None:
    """Kill this process while it writes the rows that came in messages. The process serves this commit only."""
    close = BulkLedger.close

    async def dying(ledger: BulkLedger) -> Any:
        if sealed:
            await close(ledger)
        os.kill(os.getpid(), signal.SIGKILL)

    BulkLedger.close = dying  # type: ignore[method-assign]


def kill_driver(marks: Path) -> None:
    """Kill the driver's whole process group with its JVM; this process is not in it and ends by itself."""
    os.killpg(int((marks / "driver").read_text()), signal.SIGKILL)
    time.sleep(HOLD_S)  # Spark's pipe to this process is closed, so nothing more happens in it.


def executor() -> int:
    """Return the process id of the JVM that started the daemon which forked this worker."""
    with open(f"/proc/{os.getppid()}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def wait_for(path: Path, *, seconds: float = HOLD_S, required: bool = True) -> None:
    limit = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > limit:
            if required:
                raise TimeoutError(f"{path} did not come within {seconds:g} s")
            return
        time.sleep(0.05)


__all__ = ["ChaosSource", "wait_for"]
