"""How far Spark is, looked at from a thread of the driver's process: records that streaming queries took, else tasks.

Not here: showing it, which the job's own process does (`progress.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_S = 0.5
Tell = Callable[[int, int], None]
"""Of what is done, and of how much; 0 where nobody knows."""


def watch(session: SparkSession, tell: Tell) -> None:
    """Tell it as often as it changes, until the process ends."""

    def look() -> None:
        rows, tasks, before = Rows(), Tasks(), (0, 0)
        while not ended.wait(EVERY_S):
            try:
                running = session.streams.active
                now = rows.look(running) if running else tasks.look(session.sparkContext.statusTracker())
            except Exception:
                continue  # the session stops meanwhile, or Java has forgotten a stage: the job itself says what fails
            if now != before:
                tell(*now)
                before = now

    ended = threading.Event()
    threading.Thread(target=look, name="watching", daemon=True).start()


class Rows:
    """Records that streaming queries of this process took, those that have ended among them."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, int], int] = {}

    def look(self, queries: list[Any]) -> tuple[int, int]:
        for query in queries:
            for one in query.recentProgress:
                self._batches[str(one["runId"]), int(one["batchId"])] = int(one["numInputRows"])
        return sum(self._batches.values()), 0


class Tasks:
    """Tasks of the stages that were seen; a stage that is not active any more is done."""

    def __init__(self) -> None:
        self._stages: dict[int, tuple[int, int]] = {}

    def look(self, tracker: Any) -> tuple[int, int]:
        active = set(tracker.getActiveStageIds())
        for stage in active:
            if (info := tracker.getStageInfo(stage)) is not None:
                self._stages[stage] = info.numCompletedTasks, info.numTasks
        for stage in self._stages.keys() - active:
            self._stages[stage] = self._stages[stage][1], self._stages[stage][1]
        return sum(done for done, _ in self._stages.values()), sum(whole for _, whole in self._stages.values())
