"""Processes that run `replicate run`, once or continuously, and are killed and started again."""

from __future__ import annotations

import asyncio

from buckram.errors import BuckramError, ReplicationRefused
from buckram.replication.run import Replication
from buckram.replication.sides import side_of
from buckram.runtime.net.pace import Pace
from simulator.engine.world import Died
from simulator.replication.stage import NAMESPACE, Actor, Place, Stage

ONCE_S = 30.0


class CopierActor(Actor):
    """A host that copies from the side that writes to the other one, and sometimes tries the other direction."""

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.keep = self.skip = False
        """True if the next run keeps aside what only the mirror has, or begins a mirror anew that was overtaken."""
        self.troubles: dict[str, str] = {}

    async def run(self) -> None:
        while not self.stage.over:
            await self.nap(2.0)
            source = self.stage.primary
            if self.rng.random() < self.plan.wrong_way:
                source = source.other
            await self.copy(source, follow=self.rng.random() < 0.6)
        self.stop()

    async def copy(self, source: Place, *, follow: bool, last: bool = False) -> bool:
        """Run a copy in a new process. Return whether it ended well, without trouble."""
        self.start(source, source.other)
        if not last:
            self.maybe_kill(4000, 40)
        if self.stage.copying:
            self.report.situation("two copies at once")
        self.stage.copying.append(self.host)
        self.troubles = {}
        try:
            return await self.inside(self._copy(source, follow=follow, last=last), "copy")
        except Died:
            self.report.situation("a copy was killed")
            self.note("died")
        except ReplicationRefused as error:
            self.report.situation("a copy was refused")
            self.note(f"refused: {error}")
        except (BuckramError, TimeoutError) as error:
            self.note(f"copying from {source.name}: {error!r}")
        finally:
            self.stage.copying.remove(self.host)
        return False

    # -- code of the process --------------------------------------------------------------------------------

    async def _copy(self, source: Place, *, follow: bool, last: bool) -> bool:
        one, two = await self.client(source), await self.client(source.other)
        before = self.rules.state_of(source.other.name)
        work = await Replication.prepare(
            await side_of(one),
            await side_of(two),
            [NAMESPACE],
            pace=Pace(None),
            keep_diverged=self.keep,
            skip_truncated=self.skip,
        )
        self.report.check(
            "refused",
            before not in ("promoted", "superseded") or self.rules.state_of(source.other.name) == "mirror",
            "a copy to {} began, which was {}",
            source.other.name,
            before,
        )
        try:
            async with asyncio.timeout(self.rng.random() * 15 if follow else None if last else ONCE_S):
                if follow:
                    await work.follow()
                else:
                    await work.once()
        except TimeoutError:
            self.note("stops")
        finally:
            self._look(work)
        if not follow or self.rng.random() < 0.5:
            await one.close()
            await two.close()
        return not self.troubles

    def _look(self, work: Replication) -> None:
        """Note what could not be copied, and choose what the next run does about it."""
        for name, copying in work.streams.items():
            if copying.kept:
                self.report.situation("a mirror was begun anew, its own records kept")
            if not copying.trouble:
                continue
            self.troubles[name.stream] = copying.trouble
            self.note(f"{name}: {copying.trouble}")
            if "went back" in copying.trouble or "compared" in copying.trouble:
                self.report.situation("a copy noticed that the source went back")
                self.keep = self.keep or self.rng.random() < 0.3
            elif "--skip-truncated" in copying.trouble:
                self.report.situation("a truncation overtook a copy")
                self.skip = self.skip or self.rng.random() < 0.5
            elif "created anew" in copying.trouble:
                self.report.situation("a copy noticed a stream that was created anew")


__all__ = ["CopierActor"]
