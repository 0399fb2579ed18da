"""Actors that remove or move records: truncation, a janitor, compaction, and deleting and creating streams."""

from __future__ import annotations

import asyncio

from buckram.cluster import Client
from buckram.core.streams.names import StreamName
from buckram.errors import (
    BuckramError,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchStream,
    OffsetOutOfRange,
    StreamExists,
)
from buckram.streams.maintain.compaction import Compactable, Copied, copy_run, plan_compaction, replace_run
from buckram.streams.maintain.janitor import BY_AGE, Janitor, JanitorSettings
from buckram.streams.maintain.janitor_report import JanitorReport
from buckram.streams.shared.metadata import StreamStore
from simulator.engine.checkers.judge import describe
from simulator.engine.world import Died
from simulator.streams.facts import StreamHistory
from simulator.streams.forked import live_forks
from simulator.streams.stage import NAMESPACE, Actor, full

WORK_S = 90.0
SETTINGS = JanitorSettings(grace_s=0.5, bulk_age_s=1.0, retired_s=1.0, seal_s=1.5, join_at=4)


class MaintenanceActor(Actor):
    """Repeats its `work` on random streams. `crashed` is the situation to report when it died."""

    crashed = ""
    pause_s = 1.5

    async def run(self) -> None:
        await self.nap(1.5)
        while not self.stage.over and await self.up():
            try:
                crashing = self.maybe_crash(160)
                async with asyncio.timeout(WORK_S):
                    await self.inside(self.work(self.rng.choice(self.plan.streams)), "tender")
                if crashing:
                    self.no_crash()
            except Died:
                self.note("died")
                self.report.situation(self.crashed)
                self.died()
            except TimeoutError:
                self.report.check("ends", False, "{} is not done within {} s", self.host, WORK_S)
            except BuckramError as error:
                self.note(f"failed: {describe(error)}: {error}")
            await self.nap(self.pause_s)

    async def work(self, stream: str) -> None:
        raise AssertionError

    def died(self) -> None:
        """Handle the death of the process, which interrupted the present work; subclasses override this."""


class Truncator(MaintenanceActor):
    """Truncates by offset, time or size."""

    crashed = "crash while truncating"

    async def work(self, stream: str) -> None:
        history = self.facts.current.get(full(stream))
        if history is None or history.head is None or not history.top:
            return
        head, now, rng = history.head, self.rng.random() < 0.7, self.rng
        how = rng.random()
        if how < 0.7:
            await self.truncate_before(
                stream, history, rng.randrange(head.earliest, max(history.top, head.earliest) + 1), now
            )
        elif how < 0.9:
            await self._truncate_before_time(stream, history, now)
        else:
            history.truncated_by_size = True
            await self.ns.truncate(stream, keep_bytes=rng.choice((0, 3000, 50_000)), trim_now=now)

    async def truncate_before(self, stream: str, history: StreamHistory, offset: int, now: bool) -> None:
        history.requested_truncations[offset] = None
        try:
            earliest = await self.ns.truncate(stream, before=offset, trim_now=now)
        except OffsetOutOfRange as error:
            self.report.check("truncation", error.latest < offset, "truncation to {} is refused: {}", offset, error)
            return
        self.note(f"{stream} truncated below {offset}, earliest {earliest}")
        if self.facts.current.get(full(stream)) is history:
            kept = history.head.earliest if history.head else 0
            self.report.check(
                "truncation",
                earliest >= offset and kept >= offset,
                "truncated below {}, earliest is {}",
                offset,
                earliest,
            )

    async def _truncate_before_time(self, stream: str, history: StreamHistory, now: bool) -> None:
        """Truncate by append time: the earliest record is then the first that is not older."""
        times = sorted((offset, seen.time) for offset, seen in history.known_records.items() if seen.time is not None)
        if not times:
            return
        time = self.rng.choice(times)[1] or 0
        first = min(offset for offset, at in times if at is not None and at >= time)
        older = max((offset for offset, at in times if at is not None and at < time), default=-1)
        # The append times of the records between these two are not known yet.
        history.requested_truncations |= dict.fromkeys(range(older + 1, first + 1))
        earliest = await self.ns.truncate(stream, before_time=time, trim_now=now)
        self.note(f"{stream} truncated before time {time}, earliest {earliest}")


class JanitorActor(MaintenanceActor):
    """Runs a janitor, the same one as long as its process lives."""

    crashed = "crash of a janitor"
    settings = SETTINGS
    _janitor: tuple[Client, Janitor] | None = None

    async def work(self, stream: str) -> None:
        await self.clean()

    async def clean(self) -> JanitorReport:
        assert self.client is not None
        if self._janitor is None or self._janitor[0] is not self.client:
            self._janitor = self.client, Janitor(self.client, self.settings)
        report = await self._janitor[1].clean()
        if report.sealed_segments:
            self.report.situation("janitor sealed a segment")
        if report.joined_segments:
            self.report.situation("janitor joined segments")
        if report.discarded_ledgers:
            self.report.situation("janitor discarded a ledger")
        if any(problem.startswith(BY_AGE) for problem in report.problems):
            self.report.situation("nothing went by age: clocks apart")
        self.note(f"cleaned: {report}")
        return report


class Compactor(MaintenanceActor):
    """Compacts streams, sometimes with a pause between copying and listing, in which the stream changes."""

    crashed = "crash while compacting"
    targets: tuple[int, ...] = (4096, 20_000, 1 << 20)
    """Bytes that a run should have, of which one is drawn."""

    async def work(self, stream: str) -> None:
        assert self.client is not None
        forks = [fork.name.partition("/")[2] for fork in live_forks(self.facts)]
        if forks and self.rng.random() < 0.4:
            stream = self.rng.choice(forks)
        streams, name = StreamStore(self.client.services.store), StreamName(NAMESPACE, stream)
        try:
            work = await plan_compaction(streams, name, target_bytes=self.rng.choice(self.targets))
            for run in work.runs:
                copied = await copy_run(self.client, streams, work, run)
                if self.rng.random() < 0.5:
                    await self.nap(1.0)
                done = await self._replace_with_retries(streams, work, copied)
                self.note(f"{stream} compacted from {run.base} to {run.end}: {done}")
                if not done:
                    self.report.situation("compaction put off")
        except (NoSuchStream, NoSuchLedger, NoSuchEntry) as error:
            self.note(f"{stream}: {error}")

    async def _replace_with_retries(self, streams: StreamStore, work: Compactable, copied: Copied) -> bool:
        """List the copy. If the reply of the metadata store is lost, try again: it is listed once."""
        assert self.client is not None
        for left in (2, 1, 0):
            try:
                return await replace_run(self.client, streams, work, copied)
            except MetadataUnavailable:
                if not left:
                    raise
        raise AssertionError


class Deleter(MaintenanceActor):
    """Deletes streams, and creates most of them again."""

    crashed = "crash while deleting"
    pause_s = 4.0

    async def work(self, stream: str) -> None:
        history = self.facts.current.get(full(stream))
        if history is None or self.rng.random() < 0.5:
            return
        if history.head is not None and history.head.writer is not None and not history.head_removed:
            self.report.situation("stream deleted under a writer")
        for left in (2, 1, 0):
            try:
                await self.ns.delete(stream)
                break
            except NoSuchStream:
                break
            except BuckramError as error:
                self.note(f"{stream}: delete failed: {describe(error)}: {error}")
                if not left:
                    return
        self.check_deleted(history)
        if self.rng.random() < 0.8:
            try:
                info = await self.ns.create(stream, **self.plan.policy)
                self.note(f"{stream} made anew, {info.uid}")
            except StreamExists:
                return

    def check_deleted(self, history: StreamHistory) -> None:
        """Check that the head was removed, after delete() has returned."""
        self.report.check(
            "deleted", history.head_removed, "{} was deleted, its head is there: {}", history.name, history.head
        )
        if history.deleted_at is None:
            history.deleted_at = self.facts.tick()
        self.note(f"{history.name} {history.uid} deleted")

    def check_nothing_left(self, history: StreamHistory) -> None:
        """Check that no ledger and key of a deleted stream is left, long after delete() has returned."""
        owned, shared = self.facts.owned, self.facts.shared
        ledgers = [ledger for ledger, uid in owned.items() if uid == history.uid and not shared.get(ledger)]
        known = [key for key in self.world.metadata._values if f"/streams/data/{history.uid}" in key]
        left = [key for key in known if self.world.metadata.peek(key) is not None]
        self.report.check(
            "deleted",
            not ledgers and not left,
            "of deleted stream {} there are ledgers {} and keys {}",
            history.name,
            ledgers,
            left,
        )


__all__ = ["SETTINGS", "Compactor", "Deleter", "JanitorActor", "Truncator"]
