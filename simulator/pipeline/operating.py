"""Who runs queries: starts them again, spoils their checkpoints, and does what a refusal says.

Between two runs of a query somebody puts back an older copy of its checkpoint, deletes it, starts a second query with
a copy, forks it, moves it, changes options, or makes an output anew. Then the sink has to refuse whatever would lose
rows or write them again, and the query has to go on once somebody did what the refusal says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from buckram.cluster import Client
from buckram.errors import (
    BatchesLost,
    BuckramError,
    CheckpointReset,
    NoSuchStream,
    RecordsLost,
    ReplayDiffers,
    StaleTransaction,
    StreamExists,
    UnknownQuery,
)
from buckram.spark.checkpoints.fork import fork_checkpoint
from simulator.pipeline.checkpoint import Checkpoint
from simulator.pipeline.driver import Outcome, Run
from simulator.pipeline.plan import draw_sink, draw_source
from simulator.pipeline.producing import StreamActor
from simulator.pipeline.queries import NAMESPACE, Query
from simulator.pipeline.stage import Stage

REFUSALS = (RecordsLost, CheckpointReset, ReplayDiffers, StaleTransaction, UnknownQuery, BatchesLost)
"""Errors that come again until somebody does something. Others are of faults: the query is started again."""
WORDS = ("failOnDataLoss", "onCheckpointReset", "onReplayDiffers", "checkpoint", "stop it")
"""Of these words a refusal has some, which say what can be done."""
RESET, DIFFERS = "oncheckpointreset", "onreplaydiffers"
Remedy = Callable[[BuckramError], Awaitable[None]]


class Operator(StreamActor):
    """Runs one query."""

    def __init__(self, stage: Stage, query: Query) -> None:
        super().__init__(stage, f"o {query.name}")
        self.query, self.report = query, stage.world.report
        self.expected: dict[type[BuckramError], Remedy] = {}
        """What the query may be refused with now, and what is done then."""
        self.stopped = False
        """True if nobody is to run this query any more."""
        self.forks: list[Operator] = []
        self._runs, self._labels, self._copies = 0, 0, 0
        self._cured: dict[type[BuckramError], int] = {}
        """The refusals that were remedied since the query went on, with the number of events then."""
        self._newest = -1
        self._undo: list[Callable[[], None]] = []
        self._went_back = False
        """True if the query may have to read again what its cursor has passed."""

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.stage.files, self.query.path)

    async def run(self) -> None:
        acts = [*self.stage.pipeline.acts]
        for turn in range(self.stage.pipeline.runs):
            if self.stage.over or self.stopped:
                return
            await self.once(self.rng.choice((1, 3, 10)))
            if acts and (self.rng.random() < 0.5 or turn + len(acts) >= self.stage.pipeline.runs - 1):
                await self.spoil(acts.pop())
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.1, 1.0)))
        for fork in self.forks:
            await fork.once(10)

    async def once(self, triggers: int) -> Outcome:
        """Run the query once, and do what its refusal says, if it is refused."""
        events, files = self.stage.events, self.checkpoint
        self._runs += 1
        self.stage.model.output(self.query)
        outcome = await Run(self.stage, self.query, self._runs).go(triggers)
        committed = files.committed()
        if outcome.kind == "failed" and isinstance(outcome.error, REFUSALS):
            await self._refused(outcome.error, events)
        elif outcome.kind == "failed" and not isinstance(outcome.error, BuckramError):
            self.report.check("says", False, "{} ends with {!r}", self.query.name, outcome.error)
        elif outcome.kind == "failed" and self.stage.pipeline.calm:
            self.report.check(
                "caused", False, "{} fails though nobody did anything: {!r}", self.query.name, outcome.error
            )
        elif outcome.batches or outcome.kind == "done":
            if self._cured:
                self.report.check("goes on", True)
            self._cured.clear()
        if outcome.kind == "done":
            self._settled()
        if committed and committed[-1] > self._newest >= 0:
            if StaleTransaction in self.expected and not self._cured:
                self.stage.situation("an older copy of the checkpoint was accepted")
            self.expected.clear()
            self._newest = -1
        return outcome

    def _settled(self) -> None:
        """Take back options of one run, such as failOnDataLoss=false, once the query has read everything with them."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    # -- refusals -----------------------------------------------------------------------------------------

    async def _refused(self, error: BuckramError, events: int) -> None:
        query, kind = self.query, type(error)
        remedies: Mapping[type[BuckramError], Remedy] = {**self._always(), **self.expected}
        remedy = remedies.get(kind)
        again = self._cured.get(kind) == self.stage.events
        self.report.check("goes on", not again, "{} did what was said, and is refused again: {}", query.name, error)
        self.report.check("caused", remedy is not None, "{} is refused for nothing: {}", query.name, error)
        self.report.check("says", any(word in str(error) for word in WORDS), "{} is told only: {}", query.name, error)
        if remedy is None or again:
            self.stopped = True
            return
        await remedy(error)
        self._cured[kind] = events  # Somebody may have spoiled something since.

    def _always(self) -> dict[type[BuckramError], Remedy]:
        """Return what the query may be refused with because of what became of its inputs."""
        lost = any(self.query.reads(stream) for stream in self.stage.lost) or (self.stage.trimmed and self._went_back)
        told = self.query.source["failOnDataLoss"] == "false"
        return {RecordsLost: self._go_on_without} | ({ReplayDiffers: self._keep} if told else {}) if lost else {}

    async def _go_on_without(self, error: BuckramError) -> None:
        self.stage.situation(
            "a stream made anew was refused" if "anew" in str(error) else "a truncated stream was refused"
        )
        self.query.source["failOnDataLoss"] = "false"
        self._undo.append(lambda: self.query.source.update(failOnDataLoss="true"))
        self.stage.situation("a query went on without lost records")

    async def _keep(self, error: BuckramError) -> None:
        """Go on with what was published: the checkpoint is the newest, and the rows cannot be read again."""
        self.query.options[DIFFERS] = "keep"
        self._undo.append(lambda: self._without(DIFFERS))

    def _epoch(self) -> None:
        self.query.options[RESET] = "newEpoch"
        self._undo.append(lambda: self._without(RESET))

    def _without(self, option: str) -> None:
        self.query.options.pop(option, None)

    def _relabel(self) -> None:
        """Begin a query anew on purpose, which writes its rows in addition to those that are there."""
        self._labels += 1
        self.query = replace(
            self.query,
            label=f"{self.query.label}+{self._labels}",
            source=dict(self.query.source),
            options=dict(self.query.options),
        )
        self._newest = -1

    # -- spoiling -----------------------------------------------------------------------------------------

    async def spoil(self, act: str) -> None:
        acts = {
            "older copy": self._older_copy,
            "delete": self._delete,
            "copy": self._copy,
            "fork": self._fork,
            "move": self._move,
            "options": self._options,
            "anew": self._anew,
        }
        if act in acts and not self.stopped and not self.expected and not self._cured:
            self.stage.note(self.query.name, f"somebody: {act}")
            await acts[act]()
            self.stage.events += 1
            self._went_back = self._went_back or act in ("older copy", "delete", "copy", "fork", "anew")

    async def _older_copy(self) -> None:
        """Put back a copy of the checkpoint that is some batches old."""
        files = self.checkpoint
        committed = files.committed()
        if len(committed) < 2:
            return
        newest = self.stage.files.of(self.query.path)
        self._newest = files.planned()[-1]
        back = self.rng.choice((1, 1, 2, 5))
        self.stage.files.put(self.query.path, files.as_of(committed[max(-len(committed), -1 - back)]))

        async def put_back(error: BuckramError) -> None:
            self.stage.situation("an older copy of the checkpoint was refused")
            self.stage.files.put(self.query.path, newest)
            self.expected.clear()
            self._newest = -1

        self.expected = {ReplayDiffers: put_back, StaleTransaction: put_back}

    async def _delete(self) -> None:
        """Delete the checkpoint. The next run is that of another query, which begins from the beginning."""
        path, old = self.query.path, self.stage.files.of(self.query.path)
        if not self.checkpoint.committed():
            return
        self.stage.files.remove(path)

        async def remedy(error: BuckramError) -> None:
            self.stage.situation("a deleted checkpoint was refused")
            self.expected.clear()
            kind = self.rng.choice(("put back", "new epoch", "new epoch", "another"))
            if kind == "put back":
                self.stage.files.put(path, old)
                return
            former = replace(self.query, options=dict(self.query.options), source=dict(self.query.source))
            self._relabel()
            if kind == "new epoch":
                self._epoch()
                if (await self.once(10)).batches:
                    await self._come_back(former, old)
                return
            self.stage.files.remove(path)
            self._copies += 1
            self.query.path = f"{path}-{self._copies}"
            self.query.application = f"{self.query.name}-{self._copies}" if self.query.application else ""

        self.expected = {CheckpointReset: remedy}

    async def _come_back(self, former: Query, files: dict[str, str]) -> None:
        """Run a query that was replaced by a new epoch, with its own checkpoint, which somebody has kept."""
        self._copies += 1
        again = replace(former, path=f"{former.path}-was-{self._copies}", name=f"{former.name}w")
        self.stage.files.put(again.path, files)
        outcome = await Run(self.stage, again, self._copies).go(3)
        if outcome.kind == "failed" and isinstance(outcome.error, CheckpointReset):
            self.stage.situation("a replaced query was refused")
        refused = outcome.kind != "done" and not outcome.batches
        self.report.check("refused", refused or not outcome.batches, "{} was replaced and goes on", again.name)
        self.stage.files.remove(again.path)

    async def _copy(self) -> None:
        """Run a second query with a copy of the checkpoint, at once with the first one, to the same output."""
        if not self.checkpoint.committed():
            return
        self._copies += 1
        second = replace(
            self.query,
            name=f"{self.query.name}c{self._copies}",
            path=f"{self.query.path}-copy-{self._copies}",
            options=dict(self.query.options),
            source=dict(self.query.source),
        )
        self.stage.files.put(second.path, self.stage.files.of(self.query.path))
        self.stage.situation("a checkpoint was copied, and both queries ran")
        both = [self.query, second]
        for turn in range(2):
            runs = [Run(self.stage, query, 100 * self._copies + turn).go(3) for query in both]
            outcomes = await asyncio.gather(*runs)
            refused = [isinstance(outcome.error, ReplayDiffers | StaleTransaction) for outcome in outcomes]
            if any(refused):
                self.stage.situation("an older copy of the checkpoint was refused")
                both = [query for query, one in zip(both, refused, strict=True) if not one] or both
            if len(both) < 2:
                break
        # One goes on. It may find that the other one was ahead: then it takes the other one's checkpoint.
        kept = self.rng.choice(both)
        others = [query for query in (self.query, second) if query is not kept]
        left = [self.stage.files.of(query.path) for query in others]
        self.query = kept

        async def take(error: BuckramError) -> None:
            self.stage.files.put(self.query.path, left.pop() if left else {})
            self.expected.clear()
            self._newest = -1

        numbers = [Checkpoint(self.stage.files, query.path).planned()[-1] for query in (*others, kept)]
        self._newest = max(numbers)
        self.expected = {ReplayDiffers: take, StaleTransaction: take}

    async def _move(self) -> None:
        """Move the checkpoint to another place. The query stays the same."""
        self._copies += 1
        old, self.query.path = self.query.path, f"{self.query.path}-moved-{self._copies}"
        self.stage.files.put(self.query.path, self.stage.files.of(old))
        self.stage.files.remove(old)
        self.stage.situation("a checkpoint was moved")

    async def _options(self) -> None:
        """Change options that a user may change at any time."""
        lossless = {"failOnDataLoss": self.query.source["failOnDataLoss"]}
        cursor = {name: text for name, text in self.query.source.items() if name == "cursor"}
        drawn = {name: text for name, text in draw_source(self.rng).items() if name != "cursor"}
        self.query.source = {**drawn, **lossless, **cursor}
        if self.query.kind != "database":
            self.query.options |= draw_sink(self.rng)
        self.query.shuffled = self.rng.random() < 0.5
        self.stage.situation("options were changed")

    async def _anew(self) -> None:
        """Delete an output, and make another stream of its name."""
        if self.query.kind == "database" or not self.checkpoint.committed():
            return
        stream = self.rng.choice(self.query.targets)

        async def make(client: Client) -> None:
            ns = client.namespace(NAMESPACE)
            with suppress(NoSuchStream):
                await ns.delete(stream)
            with suppress(StreamExists):
                await ns.create(stream, **self.stage.pipeline.policy)

        self.stage.model.made_anew(stream)
        await self.until_done(make, "make an output anew")
        self.stage.model.made_anew(stream)
        self.stage.situation("an output was made anew under a query")

        async def remedy(error: BuckramError) -> None:
            self.stage.situation("an output made anew was refused")
            self.expected.clear()
            if stream == self.query.sink and self.rng.random() < 0.5:
                self.stage.files.remove(self.query.path)
                self._relabel()
            else:
                self._epoch()

        self.expected = {UnknownQuery: remedy, ReplayDiffers: self._keep}

    async def _fork(self) -> None:
        """Fork the checkpoint, as `buckram checkpoint fork` does, and run both queries."""
        files, name = self.stage.files.of(self.query.path), f"{self.query.name}f{self._copies}"
        committed = self.checkpoint.committed()
        if self.query.kind == "database" or not committed:
            return
        self._copies += 1
        found: dict[str, str] = {}

        async def fork(client: Client) -> None:
            async with client.objects(NAMESPACE) as objects:
                for file, text in files.items():
                    await objects.put(f"checkpoints/{self.query.name}/{name}/{file}", text.encode())
                place = f"checkpoints/forks/{name}"
                await fork_checkpoint(client, objects, f"checkpoints/{self.query.name}/{name}", place)
                for one in await objects.list(prefix=f"{place}/", limit=1000):
                    found[one.name.removeprefix(f"{place}/")] = (await objects.get(one.name)).decode()

        if not await self.within(fork, "fork") or not found:
            return
        self.stage.situation("a checkpoint was forked")
        second = replace(
            self.query,
            name=name,
            path=f"/forks/{name}",
            application="",
            options=dict(self.query.options),
            source=dict(self.query.source),
        )
        self.stage.files.put(second.path, found)
        made = Operator(self.stage, second)
        made._went_back = True

        async def own(error: BuckramError) -> None:
            self.stage.situation("a fork was refused where its source writes")
            made.expected.clear()
            made.query = replace(second, sink=f"{NAMESPACE}/fork-{name}")

        if self.rng.random() < 0.5:
            made.expected = {UnknownQuery: own}
            outcome = await made.once(2)
            if outcome.batches:
                self.report.check("refused", False, "{} writes where its source does", name)
        made.query = replace(made.query, sink=f"{NAMESPACE}/fork-{name}")
        made.expected.clear()
        self.forks.append(made)

    # -- the end ------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Run the query, without faults, until it has read all that there is."""
        for _ in range(12):
            if self.stopped:
                return
            outcome = await self.once(400)
            if outcome.kind == "done":
                return
            if outcome.error is not None and not isinstance(outcome.error, REFUSALS):
                self.report.check("ends", False, "{} fails although all is well: {!r}", self.query.name, outcome.error)
                return
        self.report.check("ends", False, "{} has read all of its streams after many runs", self.query.name)


__all__ = ["REFUSALS", "Operator"]
