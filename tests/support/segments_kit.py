"""Stream `s` of many segments with records of every kind, for what makes other segments of them."""

from __future__ import annotations

from buckram.core.streams.metadata.head import Segment
from buckram.core.streams.records.batch import Record
from buckram.namespace import Namespace


async def written(ns: Namespace, segments: int, *, compression: str = "none") -> list[Record]:
    """Write records of every kind to many segments, by a writer, by producers and by bulk steps."""
    await ns.create("s", compression=compression, ensemble="3/3/2")
    for number in range(segments):
        if number % 3 == 2:
            step = await ns.bulk("s", application="job", version=number)
            ledger = await step.create_ledger()
            await ledger.append_many([b"bulk %d" % number, None], keys=[b"k", None])
            await step.publish([await ledger.close()])
            continue
        async with ns.writer("s") as writer:
            await writer.append(b"one %d" % number, key=b"key", headers={"h": b"v"}, txid=number)
            await writer.append_many([b"x" * 50, b"", None], timestamps=[number, 10**12, 5], keys=[None, b"", b"k"])
            await writer.append(b"from a producer", producer="p", sequence=number - number // 3)
    return [record async for record in ns.read("s")]


async def rows_of(ns: Namespace) -> list[Segment]:
    return [row async for row in ns.segments("s")]
