"""Runs of many lives that go on where they ended: the file, the work that is spread, and what is said of the rate."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from simulator.engine.resuming import Code, InUse, Resumed, code_of
from simulator.engine.spreading import spread_as_done
from simulator.engine.swarm import Failure, Progress, Totals, row_of, totals_of
from simulator.ledgers.subject import Ledgers

CODE = Code("a1", "c0ffee")


def row(*seeds: int) -> dict[str, object]:
    return {"lives": len(seeds), "hashes": {str(seed): f"h{seed}" for seed in seeds}}


def known(
    path: Path, *, subject: str = "", code: Code = CODE, seeds: range = range(100), any_code: bool = False
) -> set[str]:
    with Resumed(path, subject, code, any_code=any_code) as resumed:
        return {seed for found in resumed.rows(seeds) for seed in found["hashes"]}


def test_rows_of_the_same_subject_and_code_are_known(tmp_path: Path) -> None:
    path = tmp_path / "soak" / "lives.jsonl"
    with Resumed(path, "", CODE) as resumed:
        assert list(resumed.rows(range(10))) == []
        resumed.append(row(0, 1))
        resumed.append(row(2, 3))
    with Resumed(path, "--streams", CODE) as resumed:
        resumed.append(row(4))
    assert known(path) == {"0", "1", "2", "3"}
    assert known(path, subject="--streams") == {"4"}
    assert known(path, seeds=range(1, 10)) == {"2", "3"}, "a row with a life that is not wanted is not used"
    assert known(path, code=Code("b2")) == set()
    assert known(path, code=Code("b2"), any_code=True) == {"0", "1", "2", "3"}
    with Resumed(path, "", Code("b2")) as resumed:
        assert resumed.others == 4
    assert json.loads(path.read_text().splitlines()[0])["commit"] == "c0ffee"


def test_a_life_that_ran_on_several_codes_counts_once_and_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "lives.jsonl"
    for code in ("a1", "b2"):
        with Resumed(path, "", Code(code)) as resumed:
            resumed.append(row(0, 1))
    with Resumed(path, "", Code("c3"), any_code=True) as resumed:
        assert [found["code"] for found in resumed.rows(range(2))] == ["b2"]


def test_a_row_that_was_cut_short_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "lives.jsonl"
    with Resumed(path, "", CODE) as resumed:
        resumed.append(row(0))
        resumed.append(row(1))
    os.truncate(path, path.stat().st_size - 5)
    with Resumed(path, "", CODE) as resumed:
        assert [set(found["hashes"]) for found in resumed.rows(range(9))] == [{"0"}]
        resumed.append(row(2))
    assert known(path) == {"0", "2"}


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    with Resumed(tmp_path / "lives.jsonl", "", CODE), pytest.raises(InUse, match="in use by another run"):
        Resumed(tmp_path / "lives.jsonl", "", CODE)
    assert known(tmp_path / "lives.jsonl") == set()


def test_the_code_is_what_lives_run_on(tmp_path: Path) -> None:
    for name in ("src/buckram/a.py", "simulator/b.py", "docs/c.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    before = code_of(tmp_path).digest
    (tmp_path / "docs" / "c.md").write_text("2")
    assert code_of(tmp_path).digest == before
    (tmp_path / "simulator" / "b.py").write_text("2")
    changed = code_of(tmp_path).digest
    assert changed != before
    (tmp_path / "src" / "buckram" / "a.py").rename(tmp_path / "src" / "buckram" / "d.py")
    assert code_of(tmp_path).digest != changed


def test_counts_are_the_same_after_a_row() -> None:
    totals = Ledgers().totals()
    totals.lives, totals.acked, totals.cpu_s = 2, 7, 1.5
    totals.evaluated["S1"] = 3
    totals.hashes = {4: "h4", 5: "h5"}
    totals.failed = [Failure(4, "S1: no", "a plan", "a command")]
    found = totals_of(Ledgers(), json.loads(json.dumps(row_of(totals))))
    assert found == totals
    found.merge(totals)
    assert (found.lives, found.acked, found.evaluated["S1"], found.cpu_s) == (4, 14, 6, 3.0)
    older = row_of(totals) | {"evaluated": {"gone": 9, "S2": 1}}
    assert totals_of(Ledgers(), older).evaluated == Ledgers().totals().evaluated | {"S2": 1}


def test_progress_says_the_rate_of_this_run_and_what_is_left() -> None:
    now, totals = 100.0, Totals(lives=400, cpu_s=900.0)
    progress = Progress(totals, 2000, 60.0, lambda: now)
    assert str(progress) == "400/2000 lives, 0 violations"
    totals.merge(Totals(lives=100, cpu_s=150.0))
    now = 150.0
    assert str(progress) == "500/2000 lives, 0 violations, 2.00 lives/s, 1.50 s of CPU each, 12 minutes left"
    chunks = progress.while_time([[1], [2], [3]])
    assert next(chunks) == [1]
    now = 160.0
    assert list(chunks) == [], "the time is over"


def test_items_are_taken_only_when_a_process_is_free() -> None:
    taken: list[int] = []

    def stream():  # type: ignore[no-untyped-def]  # a generator that tells how far it is
        for n in range(20):
            taken.append(n)
            yield n

    results = spread_as_done(abs, stream(), 2)
    first = next(results)
    assert first in (0, 1)
    assert len(taken) <= 4, "two that run, and one for each that has ended"
    assert sorted([first, *results]) == list(range(20))
    assert list(spread_as_done(abs, [-1, -2], 1)) == [1, 2]
