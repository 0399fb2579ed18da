"""The bank's actors and its verdict on a cluster in this process: no violation, and a planted bug that is seen."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import until

from buckram.state.db.commits.committing import Committing
from buckram.state.db.table_engine.execution import Pending
from buckram.testing import Cluster, cluster
from chaos.actors import customers
from chaos.actors.bank import ask
from chaos.actors.customers import use_bank
from chaos.actors.replicas import hold_replica
from chaos.actors.stage import Role, Stage
from chaos.history import Recorder, read_history, read_own
from chaos.verdict.bank import judge_bank
from chaos.verdict.database import read_database
from chaos.verdict.report import Report


class Actors:
    """Actors as tasks of this loop."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri, self._folder = uri, folder
        self.tasks: dict[str, tuple[Stage, asyncio.Task[None]]] = {}

    def start(self, role: Role, name: str, **places: Any) -> Stage:
        history = self._folder / f"{name}.jsonl"
        stage = Stage(self._uri, name, history, Recorder(history, name), random.Random(name), **places)
        self.tasks[name] = stage, asyncio.create_task(role(stage))
        return stage

    async def stop(self, *names: str) -> None:
        for name in names:
            self.tasks[name][0].stop.set()
        for name in names:
            await self.tasks.pop(name)[1]

    def ended(self) -> int:
        return sum(event["event"] == "transaction-ended" for event in read_history(self._folder))

    def address(self, name: str) -> str:
        events = read_own(self._folder / f"{name}.jsonl")
        return next((event["address"] for event in events if event["event"] == "opened"), "")


@asynccontextmanager
async def _bank(running: Cluster, folder: Path) -> AsyncIterator[Actors]:
    actors = Actors(running.uri, folder)
    for name in ("d1", "d2"):
        actors.start(hold_replica, name, listen="127.0.0.1:0")
    await until(lambda: bool(actors.address("d1") and actors.address("d2")))
    replicas = (actors.address("d1"), actors.address("d2"))
    actors.start(use_bank, "u1", replicas=replicas)
    try:
        yield actors
    finally:
        await actors.stop(*actors.tasks)


async def _verdict(running: Cluster, folder: Path) -> Report:
    report = Report()
    async with running.client() as client:
        judge_bank(read_history(folder), await read_database(client), report)
    return report


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(customers, "_PAUSE_S", 0.02)


async def test_a_bank_without_bugs_breaks_no_rule_when_the_leader_changes(tmp_path: Path) -> None:
    async with cluster(bookies=3, metadata="sqlite") as running:
        async with _bank(running, tmp_path) as actors:
            for number in range(2):
                before = actors.ended()
                await until(lambda before=before: actors.ended() > before + 40, "nothing is done")  # type: ignore[misc]
                if not number:
                    await ask(actors.address("d2"), {"do": "lead"}, 20.0)
            await actors.stop("u1")
            # A later process of this name takes up what the earlier one left.
            actors.start(use_bank, "u1", replicas=(actors.address("d1"), actors.address("d2")))
            before = actors.ended()
            await until(lambda: actors.ended() > before + 10, "nothing is done")
            await actors.stop("u1")
            await actors.stop("d1", "d2")
        report = await _verdict(running, tmp_path)
    assert not report.violations
    assert all(report.checks[rule] for rule in ("D3", "D5", "D6", "D7", "bank", "fresh"))
    ends = [event for event in read_history(tmp_path) if event["event"] == "replica-ends"]
    assert len(ends) == 2


async def test_a_leader_that_acknowledges_what_is_not_in_the_log_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, left = Committing._append, [15]

    async def forgets(self: Committing, pending: Pending) -> Any:
        left[0] -= 1
        return None if left[0] == 0 else await append(self, pending)

    monkeypatch.setattr(Committing, "_append", forgets)
    async with cluster(bookies=3, metadata="sqlite") as running:
        async with _bank(running, tmp_path) as actors:
            await until(lambda: left[0] <= 0, "nothing is done")
            leader = next(e["actor"] for e in read_history(tmp_path) if e["event"] == "leads")
            await ask(actors.address("d1" if leader == "d2" else "d2"), {"do": "lead"}, 20.0)
            before = actors.ended()
            await until(lambda: actors.ended() > before + 10, "nothing is done", 180.0)  # a customer asks for 60 s
            await actors.stop("u1")
        report = await _verdict(running, tmp_path)
    found = {rule for rule, _ in report.violations}
    # D3 where somebody was told of that very transaction; others saw what it did, and that is gone.
    assert found & {"D3", "D5", "D7"}
