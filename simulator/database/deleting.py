"""A program that empties the folder in which replicas have their files, as those that clean temporary folders do."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

from simulator.database.stage import Stage


class Deleter:
    """Deletes files of replicas now and then: all of one replica's, or one of them."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world = stage, stage.world
        self.rng = random.Random(f"{stage.machines.seed} deleter")

    async def run(self) -> None:
        while not self.stage.over:
            await asyncio.sleep(0.3 + self.rng.random() * 2.5)
            hosts = self.stage.living()
            if hosts and not self.stage.over:
                self._delete(self.rng.choice(hosts))

    def _delete(self, host: str) -> None:
        database = self.stage.open[host]
        path = Path(database._engine.files.path)
        what = self.rng.choice(("folder", "folder", "", "-wal", "-shm"))
        self.world.trace.note("deleter", f"deletes the {what or 'file'} of {host}")
        self.world.disturb(host, 0)
        if what == "folder":
            shutil.rmtree(path.parent.parent, ignore_errors=True)
        else:
            path.with_name(path.name + what).unlink(missing_ok=True)
        leader = database._replica._leader
        self.world.report.situation(f"files of a {'leader' if leader is not None else 'follower'} were deleted")


__all__ = ["Deleter"]
