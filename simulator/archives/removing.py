"""Actors that remove: truncation, deletion with a new stream under the name, and the janitor."""

from __future__ import annotations

from buckram.core.streams.external.history import OffloadPlaces
from buckram.errors import BuckramError, NoSuchStream, OffsetOutOfRange, StreamExists
from buckram.streams.maintain.janitor import BY_AGE, Janitor, JanitorSettings
from buckram.streams.maintain.janitor_report import JanitorReport
from simulator.archives.model import Stream
from simulator.archives.stage import Actor
from simulator.engine.checkers.judge import describe

SETTINGS = JanitorSettings(grace_s=0.5, bulk_age_s=2.0, retired_s=1.0, seal_s=1.5, join_at=4)


class Truncator(Actor):
    """Truncates streams, forks and what they were forked of, to the record."""

    async def act(self) -> None:
        stream = self.victim("koxicr") if self.rng.random() < 0.5 else None
        stream = stream or self.choose(forks=0.4)
        if stream is not None:
            await self.truncate(self.at_work(stream))

    async def truncate(self, stream: Stream) -> None:
        end = max(stream.top, stream.earliest)
        offset = self.rng.randrange(stream.earliest, end + 1)
        stream.requested[offset] = None
        try:
            earliest = await self.ns.truncate(self.short(stream), before=offset, trim_now=self.rng.random() < 0.7)
        except (OffsetOutOfRange, NoSuchStream) as error:
            self.note(f"{stream.name}: {error}")
            return
        self.note(f"{stream.name} truncated below {offset}: {earliest}")
        if self.model.current[stream.name] is stream:
            self.report.check(
                "told",
                stream.earliest >= offset,
                "{} was truncated to {}, it is at {}",
                stream.name,
                offset,
                stream.earliest,
            )


class Deleter(Actor):
    """Deletes streams with and without forks, and makes most of them anew under the name."""

    died_as = "died while deleting"
    pause_s = 2.5

    async def act(self) -> None:
        stream = self.victim("koxicrwt") if self.rng.random() < 0.7 else None
        roots = [one for one in self.model.living() if one.source is None]
        if stream is None and not roots:
            await self.make_anew(self.rng.choice(self.plan.streams))
            return
        stream = stream or self.rng.choice(roots)
        if await self.delete(stream) and self.rng.random() < 0.9:
            await self.make_anew(self.short(stream))

    async def delete(self, stream: Stream, tries: int = 3) -> bool:
        """Delete whatever has the name of this stream. Return whether this one is gone."""
        for left in reversed(range(tries)):
            try:
                await self.ns.delete(self.short(stream))
                break
            except NoSuchStream:
                break
            except BuckramError as error:
                self.note(f"{stream.name}: delete failed: {describe(error)}: {error}")
                if not left:
                    return False
        self.report.check("deleted", stream.removed, "{} {} was deleted, it is there", stream.name, stream.uid)
        if stream.deleted_at is None:
            stream.deleted_at = self.world.loop.time()
        self.note(f"{stream.name} {stream.uid} deleted")
        if stream.source is not None:
            self.report.situation("fork deleted")
        if any(one.offloaded is not None for one in stream.rows()):
            self.report.situation("history of a deleted stream removed")
        return True

    async def make_anew(self, name: str) -> None:
        try:
            info = await self.ns.create(name, **self.plan.policy)
            self.note(f"{name} made anew: {info.uid}")
        except StreamExists:
            return


class JanitorActor(Actor):
    """Runs a janitor, the same one for as long as its process lives."""

    settings = SETTINGS
    pause_s = 1.0
    _janitor: tuple[object, Janitor] | None = None

    async def act(self) -> None:
        await self.clean()

    async def clean(self) -> JanitorReport:
        assert self.client is not None
        if self._janitor is None or self._janitor[0] is not self.client:
            places = OffloadPlaces({"*": (self.plan.place,)}) if self.plan.listed_places else None
            self._janitor = self.client, Janitor(self.client, self.settings, None, places)
        report = await self._janitor[1].clean()
        if report.offloaded_segments:
            self.report.situation("segment offloaded by policy")
        if report.discarded_ledgers:
            self.report.situation("janitor discarded a copy")
        self.note(f"{report}")
        return report


__all__ = ["BY_AGE", "SETTINGS", "Deleter", "JanitorActor", "Truncator"]
