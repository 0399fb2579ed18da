"""How the main job shows how far it is: lines in a log, and what Spark's own counters say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from examples.debian import progress
from examples.debian.progress import Far, working
from examples.debian.watching import Rows, Tasks
from tests.support.polling import wait_until


def test_a_log_gets_a_line_with_the_time_and_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOGGED_EVERY_S", 0.01)
    said: list[str] = []

    def lines() -> bool:
        said.append(capfd.readouterr().err)
        return "7 of 1,000 records" in "".join(said)

    with working("writing", "records", whole=1000) as far:
        far.advance(7)
        wait_until(lines, "no line in the log says how far it is")
    assert " s    writing: 0 s so far, 7 of 1,000 records\n" in "".join(said)


def test_what_is_not_known_is_not_said() -> None:
    assert (str(Far()), str(Far(5)), str(Far(5, 10))) == ("", "5", "5 of 10")


def test_records_of_queries_that_ended_are_still_counted() -> None:
    rows = Rows()
    first = SimpleNamespace(recentProgress=[{"runId": "a", "batchId": 0, "numInputRows": 4}])
    second = SimpleNamespace(recentProgress=[{"runId": "b", "batchId": 0, "numInputRows": 3}])
    assert rows.look([first]) == (4, 0)
    assert rows.look([second]) == (7, 0)
    assert rows.look([first, second]) == (7, 0)


def test_a_stage_that_is_not_active_any_more_is_done() -> None:
    stages = {1: SimpleNamespace(numCompletedTasks=2, numTasks=8), 2: SimpleNamespace(numCompletedTasks=1, numTasks=4)}
    active = [1]
    tracker = SimpleNamespace(getActiveStageIds=lambda: active, getStageInfo=stages.get)
    tasks = Tasks()
    assert tasks.look(tracker) == (2, 8)
    active[:] = [2]
    assert tasks.look(tracker) == (9, 12)
