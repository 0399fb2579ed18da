"""Two queries in a row, exactly once from end to end: raw lines -> orders -> totals per customer and batch. Each may be
killed at any time and started again on its checkpoint. `python -m examples.spark_pipeline`
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from buckram import sync
from buckram.metadata.default import default_uri
from buckram.spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAW, ORDERS, PAID = "raw", "orders", "paid"


def store(metadata: str, lines: list[bytes]) -> None:
    with sync.connect(metadata) as client, client.namespace().writer(RAW) as writer:
        writer.append_many(lines)


def parsed(raw: DataFrame) -> DataFrame:
    """`customer,amount` becomes a key and a value; other lines are left out."""
    text = raw.selectExpr("split(cast(value as string), ',') as parts", "timestamp")
    good = text.where("size(parts) = 2 and try_cast(parts[1] as int) is not null")
    return good.selectExpr("parts[0] as key", "parts[1] as value", "timestamp")


def with_tax(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("key", "cast(cast(cast(value as string) as int) * 1.25 as string) as value", "timestamp")


def run(session: SparkSession, metadata: str, folder: Path, *, at_once: int = 10_000) -> None:
    """Both queries, until nothing is left to do."""
    for source, sink, change in ((RAW, ORDERS, parsed), (ORDERS, PAID, with_tax)):
        read = session.readStream.format("buckram").option("metadata", metadata)
        rows = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", at_once).load(source)
        write = change(rows).writeStream.format("buckram").option("metadata", metadata).option("createStream", "true")
        write = write.option("checkpointLocation", str(folder / sink)).trigger(availableNow=True)
        write.start(sink).awaitTermination()


def total(session: SparkSession, metadata: str) -> list[tuple[str, int, float]]:
    """(customer, orders, sum) of what came out at the end."""
    paid = session.read.format("buckram").option("metadata", metadata).load(PAID)
    paid.createOrReplaceTempView("paid")
    rows = session.sql(
        "select string(key) customer, count(*) orders, sum(double(string(value))) paid from paid group by 1 order by 1"
    )
    return [(row["customer"], row["orders"], row["paid"]) for row in rows.collect()]


def main() -> None:
    metadata, session = default_uri(os.environ, Path.cwd()), local_session("pipeline")
    with tempfile.TemporaryDirectory() as folder:
        for begin in (0, 5_000):
            store(metadata, [b"%s,%d" % ((b"ann", b"bob")[n % 2], n) for n in range(begin, begin + 5_000)])
            run(session, metadata, Path(folder))
    for customer, orders, amount in total(session, metadata):
        print(f"{customer}: {orders} orders, {amount:.2f}")


if __name__ == "__main__":
    main()
