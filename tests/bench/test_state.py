"""Results are kept per version of the sources; of the page only the part between the markers is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.java.docs import BEGIN, END, replaced, section
from bench.java.figures import FIGURES
from bench.java.state import State, version
from bench.machine import Snapshot, between, snapshot


def test_an_interrupted_comparison_resumes(tmp_path: Path) -> None:
    State(tmp_path, "v1").put(1, "one:ours>ours", {"per_s": 7})
    again = State(tmp_path, "v1")
    assert again.known(1, "one:ours>ours")
    assert not again.known(0, "one:ours>ours")
    assert again.rounds[1]["one:ours>ours"] == {"per_s": 7}


def test_results_of_another_version_are_discarded(tmp_path: Path) -> None:
    State(tmp_path, "v1").put(0, "x", {})
    assert not State(tmp_path, "v2").known(0, "x")
    assert State(tmp_path, "v2", any_version=True).known(0, "x")
    assert not State(tmp_path, "v1", anew=True).known(0, "x")


def test_only_text_between_the_markers_of_a_page_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no marks"):
        replaced("nothing here", "new")


def test_section_has_a_line_for_every_figure() -> None:
    text = section([(figure, None) for figure in FIGURES], "about", {"x.png": "A plot"})
    assert all(f"| {figure.title} |" in text for figure in FIGURES)
    assert "![A plot](x.png)" in text


def test_foreign_cpu_excludes_measured_processes_and_kernel_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    # The second thread of the kernel ended meanwhile, and another one has its id.
    before, after = {(2, 1): 1.0, (3, 1): 60.0}, {(2, 1): 2.0, (3, 9): 1.0}
    zero = Snapshot(
        at=0,
        client=0,
        servers=0,
        others=0,
        processes=0,
        kernel=before,
        disk=0,
        threads={(7, 7): 1, (8, 8): 0},
        stolen=0,
    )
    later = Snapshot(at=10, client=5, servers=4, others=1, processes=14, kernel=after, disk=4096,
                     threads={(7, 7): 4, (7, 9): 2, (8, 8): 4}, stolen=1)  # fmt: skip
    assert between(zero, later, 1_000_000) == {
        "client_us": 5.0, "servers_us": 4.0, "cpu_us": 9.0, "cpu_share": 0.45, "foreign_share": 0.1,
        "stolen_share": 0.05, "disk_bytes": 4096, "busiest_thread_us": 4.0, "busiest_process_us": 5.0,
        "a_core_each_per_s": 200_000,
    }  # fmt: skip


def test_cpu_counters_of_this_machine_do_not_decrease(tmp_path: Path) -> None:
    import os

    before = snapshot(tmp_path, [os.getpid()], [])
    assert sum(range(300_000))
    after = snapshot(tmp_path, [os.getpid()], [])
    assert after.processes >= before.processes
    assert all(after.kernel.get(thread, taken) >= taken for thread, taken in before.kernel.items())
    assert after.client >= before.client


def test_version_depends_on_the_sources_alone() -> None:
    """Pages may change between two parts of a comparison without discarding its results."""
    found = version()
    assert found == version()
    assert len(found.partition("+")[0]) in (7, 12)  # "unknown" where this is no clone
