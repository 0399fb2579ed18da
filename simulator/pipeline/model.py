"""What is true of a pipeline, by its inputs and by Spark's logs: a model that asks no code of Spark's side.

Inputs are read by a plain reader before anything of them is destroyed, and at the end. A batch that Spark notes as done
is green: the records between its start and its end must be in the output, each once. Offsets are those that Spark has
in its log; which records they mean, the model knows by the uid of the stream and the position alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from buckram.cluster import Client
from simulator.pipeline.queries import NAMESPACE, Query, written


@dataclass(slots=True)
class Input:
    """One stream, until it is deleted."""

    name: str
    uid: str
    records: dict[int, bytes] = field(default_factory=dict)
    earliest: int = 0
    """Records below it were truncated."""

    @property
    def end(self) -> int:
        return max(self.records, default=self.earliest - 1) + 1


@dataclass(frozen=True, slots=True)
class Green:
    """A batch that Spark has noted as done. `lossy`: its query was told to go on where records are lost."""

    batch: int
    start: Mapping[str, Any]
    end: Mapping[str, Any]
    lossy: bool
    planned: int
    """The number of batches of its output that were planned before it."""


@dataclass(slots=True)
class Output:
    """What one query has to have written, under its label, to one sink."""

    query: Query
    greens: list[Green] = field(default_factory=list)
    planned: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=list)
    """Start and end of every batch that was in a log of offsets."""
    emptied: dict[str, int] = field(default_factory=dict)
    """By stream that was made anew: the number of batches that were green before, whose rows are gone."""
    doubtful: dict[str, int] = field(default_factory=dict)
    """By stream that was made anew: the number of batches that were planned before, whose rows may be there or not."""
    shuffled: bool = False
    """True if some batch of it may have been shuffled."""


class Model:
    """The model of one life."""

    def __init__(self) -> None:
        self.inputs: dict[str, Input] = {}
        self.outputs: dict[tuple[str, str], Output] = {}

    # -- inputs -------------------------------------------------------------------------------------------

    async def witness(self, client: Client, name: str) -> Input:
        """Read what a stream has that the model has not seen."""
        ns = client.namespace(NAMESPACE)
        info = await ns.info(name)
        found = self.inputs.setdefault(info.uid, Input(name, info.uid))
        first = max(found.end, info.earliest)
        async with ns.read(name, start=first) as reader:
            async for batch in reader.batches():
                for record in batch.records():
                    found.records[record.offset] = record.value or b""
        return found

    # -- outputs ------------------------------------------------------------------------------------------

    def output(self, query: Query) -> Output:
        found = self.outputs.setdefault((query.sink, query.label), Output(query))
        found.shuffled = found.shuffled or query.shuffled
        return found

    def plans(self, query: Query, start: str, end: str) -> None:
        """Note that a batch is in the log of offsets."""
        self.output(query).planned.append((json.loads(start), json.loads(end)))

    def green(self, query: Query, batch: int, start: str, end: str) -> None:
        """Note that a batch is in the log of commits."""
        lossy, found, ends = query.source.get("failOnDataLoss") == "false", self.output(query), json.loads(end)
        place = next((at for at, (_, planned) in enumerate(found.planned) if planned == ends), 0)
        found.greens.append(Green(batch, json.loads(start), ends, lossy, place))

    def made_anew(self, stream: str) -> None:
        """Note that an output was deleted, and that another stream has its name now."""
        for found in self.outputs.values():
            if stream in found.query.targets:
                found.emptied[stream], found.doubtful[stream] = len(found.greens), len(found.planned)

    # -- what follows -------------------------------------------------------------------------------------

    def required(self, found: Output) -> dict[str, dict[bytes, str]]:
        """Return the rows that must be in each target of an output, with the batch that must have written them."""
        query = found.query
        wanted: dict[str, dict[bytes, str]] = {target: {} for target in query.targets or [""]}
        for number, green in enumerate(found.greens):
            for one, offset in self._between(green.start, green.end):
                value = one.records.get(offset)
                target = query.target_of(value or b"")
                gone = number < found.emptied.get(target, 0) or green.planned < found.doubtful.get(target, 0)
                if gone or (green.lossy and offset < one.earliest):
                    continue
                if value is None:
                    wanted[target][b"%s of %s" % (str(offset).encode(), one.name.encode())] = "which nobody saw"
                else:
                    wanted[target][written(query.label, value)] = f"offset {offset} of {one.name}, batch {green.batch}"
        return wanted

    def allowed(self, found: Output) -> Counter[bytes]:
        """Return the rows that may be in an output: those of all batches that were ever planned."""
        rows: Counter[bytes] = Counter()
        for start, end in found.planned:
            for one, offset in self._between(start, end):
                if offset in one.records:
                    rows[written(found.query.label, one.records[offset])] = 1
        return rows

    def _between(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Iterator[tuple[Input, int]]:
        """Yield the records of a batch. A stream that its start does not have enters at its end, without records."""
        before, uids = start.get("uids", {}), end.get("uids", {})
        for name, uid in uids.items():
            one = self.inputs.get(uid)
            if one is not None and before.get(name) == uid:
                for offset in range(start[name], end[name]):
                    yield one, offset


__all__ = ["Green", "Input", "Model", "Output"]
