"""Actors that move records, or copy them: offload by hand, export, compaction."""

from __future__ import annotations

from buckram.errors import InvalidArgument, NoSuchEntry, NoSuchLedger, NoSuchStream
from buckram.streams.maintain.compaction import compact_stream
from buckram.streams.maintain.history.export import export_stream, plan_export
from buckram.streams.maintain.offload import offload_planned, plan_offload
from simulator.archives.model import Stream
from simulator.archives.stage import Actor


class Offloader(Actor):
    """Offloads by hand what may be offloaded."""

    died_as = "died while offloading"
    steps = 400

    async def act(self) -> None:
        stream = self.choose()
        if stream is None:
            return
        self.at_work(stream)
        try:
            work = await plan_offload(self.streams, self.name_of(stream), to=self.plan.place)
        except NoSuchStream:
            return
        moved = self.model.streams[work.uid]
        before = moved.moved.get(self.host, 0)
        assert self.client is not None
        if self.rng.random() < 0.3:
            await self.nap(1.0)
        try:
            report = await offload_planned(self.client, self.streams, work)
        finally:
            if not moved.alive and work.rows:
                self.report.situation("move met a deletion")
        listed = moved.moved.get(self.host, 0) - before
        self.report.check(
            "told",
            report.segments == listed,
            "an offload of {} reports {}, {} segments became history",
            stream.name,
            report,
            listed,
        )
        if report.segments:
            self.report.situation("segment offloaded by hand")
        self.note(f"{report}")


class Exporter(Actor):
    """Exports, and sometimes prunes. Two of them may meet at one directory."""

    died_as = "died while exporting"
    steps = 400

    async def act(self) -> None:
        other = self.victim("x")
        stream = other if other is not None and self.rng.random() < 0.7 else self.choose(forks=0.3)
        if stream is not None:
            if stream is other:
                self.report.situation("two exports at once")
            await self.export(self.at_work(stream))

    async def export(self, stream: Stream) -> None:
        try:
            work = await plan_export(self.streams, self.name_of(stream), self.plan.place)
        except NoSuchStream:
            return
        assert self.client is not None
        if self.rng.random() < 0.3:
            await self.nap(0.5)
        prune = self.rng.random() < 0.3
        report = await export_stream(self.client, self.streams, work, prune=prune)
        if report.pruned:
            self.report.situation("export pruned")
        self.note(f"{report}")


class Compactor(Actor):
    """Compacts streams and forks."""

    died_as = "died while compacting"

    async def act(self) -> None:
        stream = self.choose()
        if stream is not None:
            await self._compact(self.at_work(stream))

    async def _compact(self, stream: Stream) -> None:
        assert self.client is not None
        target = self.rng.choice((4096, 20_000))
        try:
            report = await compact_stream(self.client, self.streams, self.name_of(stream), target_bytes=target)
        except (NoSuchStream, NoSuchLedger, NoSuchEntry, InvalidArgument) as error:
            self.note(f"{stream.name}: {error}")
            return
        if report.made:
            self.report.situation("segments compacted")
        self.note(f"{report}")


__all__ = ["Compactor", "Exporter", "Offloader"]
