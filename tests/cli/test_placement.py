"""`buckram placement` as scripts use it: output, exit codes, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import Ended

from buckram.bookie.registration import running_host
from buckram.cli.app import run as in_process
from buckram.testing import ThreadedCluster

Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(bookies=4) as cluster:
        yield cluster


@pytest.fixture
def run(cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("BUCKRAM_METADATA", cluster.uri)

    def run(*words: object) -> Ended:
        code = in_process([str(word) for word in words])
        said = capfd.readouterr()
        return Ended(code, said.out, said.err)

    return run


def told(done: Ended) -> Any:
    return json.loads(done.out)


def place(run: Run, tmp_path: Path, *paths: str) -> None:
    (tmp_path / "racks").write_text("".join(f"bookie-{n} {path}\n" for n, path in enumerate(paths)))
    done = run("placement", "topology", "load", tmp_path / "racks")
    assert done.code == 0, done.err


def test_a_topology_is_loaded_shown_set_and_forgotten(run: Run, tmp_path: Path) -> None:
    place(run, tmp_path, "/eu/r1", "/eu/r2 gold", "/us/r1")
    shown = {one["bookie"]: one for one in told(run("placement", "topology", "show", "--json"))["bookies"]}
    assert shown["bookie-1"] == {
        "bookie": "bookie-1",
        "region": "eu",
        "zone": None,
        "rack": "r2",
        "host": None,
        "labels": ["gold"],
        "set_by": "topology",
    }
    assert shown["bookie-3"]["set_by"] == "bookie"
    assert run("placement", "topology", "set", "bookie-3", "/us/r9", "--label", "gold").code == 0
    assert "r9" in run("placement", "topology", "show").out
    assert run("placement", "topology", "set", "bookie-3", "--remove").code == 0
    assert "r9" not in run("placement", "topology", "show").out


def test_wrong_lines_paths_and_bookies_change_nothing(run: Run, tmp_path: Path) -> None:
    place(run, tmp_path, "/r1", "/r2")
    before = run("placement", "topology", "show").out
    (tmp_path / "bad").write_text("bookie-0 /r1\nbookie-9 /r2\n")
    done = run("placement", "topology", "load", tmp_path / "bad")
    assert done.code == 2
    assert "bad, line 2: bookie bookie-9 is not known" in done.err
    for line, said in (
        ("bookie-1", "line 2: 'bookie-1' is not BOOKIE PATH"),
        ("bookie-1 r1", "line 2"),
        ("bookie-1 /r1 a=b", "line 2"),
        ("bookie-0 /r2", "line 2: bookie bookie-0 is in line 1 already"),
    ):
        (tmp_path / "bad").write_text(f"bookie-0 /r1\n{line}\n")
        done = run("placement", "topology", "load", tmp_path / "bad")
        assert done.code == 2, line
        assert said in done.err
    assert run("placement", "topology", "load", tmp_path / "none").code == 2
    assert run("placement", "topology", "set", "bookie-9", "/r1").code == 3
    assert run("placement", "topology", "set", "bookie-1", "r1").code == 2
    assert run("placement", "topology", "set", "bookie-1").code == 2
    assert run("placement", "topology", "show").out == before


def test_explain_says_why_each_bookie_was_taken_or_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(run, tmp_path, "/r1", "/r1", "/r2")
    monkeypatch.setenv("BUCKRAM_CLIENT_PLACEMENT", "rack:2 enforce")
    (one,) = told(run("placement", "explain", "--new", "--json"))["fragments"]
    assert (one["met"], one["placement"]) == (True, "rack:2 enforce")
    whys = {row["bookie"]: (row["taken"], row["why"]) for row in one["bookies"]}
    assert [taken for taken, _ in whys.values()].count(True) == 3
    assert whys["bookie-3"] == (
        False,
        "its rack is not known and the rule is enforced: `buckram placement topology set bookie-3 PATH`",
    )
    monkeypatch.setenv("BUCKRAM_CLIENT_PLACEMENT", "rack:3 enforce")
    done = run("placement", "explain", "--new")
    assert done.code == 4
    for said in ("level rack", "2 in /r1, 1 in /r2, 1 without a known rack"):
        assert said in done.err
    assert run("placement", "explain").code == 2
    assert run("placement", "explain", "999").code == 3


def test_a_namespace_may_ask_for_a_place_and_a_label(run: Run, tmp_path: Path) -> None:
    place(run, tmp_path, "/r1 gold", "/r1 gold", "/r2 gold", "/r2")
    words = "placement=rack:2:2 label=gold enforce"
    assert run("namespace", "create", "shop", "--set", words).code == 0
    (one,) = told(run("placement", "explain", "--new", "--namespace", "shop", "--json"))["fragments"]
    assert sorted(row["bookie"] for row in one["bookies"] if row["taken"]) == ["bookie-0", "bookie-1", "bookie-2"]
    assert {row["bookie"]: row["why"] for row in one["bookies"]}["bookie-3"] == "it has not the label gold"
    done = run("namespace", "set", "shop", "--set", "placement=row:2")
    assert done.code == 2
    assert "'row:2' is not understood" in done.err
    assert told(run("namespace", "set", "shop", "--set", "placement=none", "--json"))["overrides"] == {}


def test_check_lists_what_breaks_the_placement_and_fix_moves_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(run, tmp_path, "/r1", "/r1", "/r1", "/r2 other")
    made = run("ledger", "create", "--json")
    assert made.code == 0, made.err
    ledger = told(made)["ledger"]
    assert run("ledger", "close", ledger, "--yes").code in (0, 2)
    place(run, tmp_path, "/r1", "/r1", "/r1", "/r2")
    done = run("placement", "check", "--json")
    assert done.code == 1
    assert told(done)["broken"] == [ledger]
    assert told(done)["ledgers"] >= 1
    (one,) = [row for row in told(done)["found"] if row["ledger"] == ledger]
    assert one["broken"][0]["level"] == "rack"
    assert run("placement", "explain", ledger).code == 1
    fixed = run("placement", "check", "--fix", "--json")
    assert fixed.code == 0, fixed.out
    assert told(fixed)["broken"] == []
    (row,) = [row for row in told(fixed)["found"] if row["ledger"] == ledger]
    assert [change["new"] for change in row["replaced"]] == ["bookie-3"]
    assert run("placement", "explain", ledger).code == 0
    done = run("placement", "check")
    assert (done.code, done.out) == (0, "every ledger meets its placement\n")


def test_a_bookie_says_where_it_is(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path}/metadata.db"
    command = [sys.executable, "-m", "buckram", "bookie", "run", "--metadata", uri, "--data", str(tmp_path / "b")]
    with subprocess.Popen(
        [*command, "--port", "0", "--location", "/eu/r1", "--json", "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as bookie:
        assert bookie.stdin is not None
        assert bookie.stdout is not None
        bookie.stdout.readline()
        shown = subprocess.run(
            [sys.executable, "-m", "buckram", "placement", "topology", "show", "--metadata", uri, "--json"],
            capture_output=True,
            check=True,
        )
        bookie.stdin.close()
    (one,) = json.loads(shown.stdout)["bookies"]
    assert (one["region"], one["rack"], one["set_by"]) == ("eu", "r1", "bookie")
    assert one["host"] == running_host(), "and all bookies that run here say the same, whatever their addresses"


def on_hosts(run: Run, tmp_path: Path, *hosts: str) -> None:
    place(run, tmp_path, *(f"/host={host}" for host in hosts))


def warned(run: Run) -> list[tuple[str, str]]:
    """What status says of placements: the state, and where."""
    shown = run("status", "--json").json  # nobody heals this cluster, so its exit code is 1
    states = ("too-few-domains", "ledgers-misplaced")
    return [(one["what"], one["where"]) for one in shown["problems"] if one["what"] in states]


def test_copies_go_to_different_hosts_and_ledgers_from_before_are_named_and_moved(run: Run, tmp_path: Path) -> None:
    on_hosts(run, tmp_path, "h1", "h1", "h1", "h2 other")
    before = told(run("ledger", "create", "--json"))["ledger"]
    assert run("ledger", "close", before, "--yes").code in (0, 2)
    on_hosts(run, tmp_path, "h1", "h1", "h2", "h3")
    for _ in range(10):
        (one,) = told(run("placement", "explain", "--new", "--json"))["fragments"]
        taken = {row["bookie"] for row in one["bookies"] if row["taken"]}
        assert {"bookie-2", "bookie-3"} < taken
        assert one["met"]
    done = run("placement", "check")
    assert done.code == 1
    assert f"ledger {before} (closed)" in done.out
    assert "level host: " in done.out
    assert "to fix: `buckram placement check --fix`" in done.out
    ((state, where),) = warned(run)
    assert state == "ledgers-misplaced"
    assert where.startswith(str(len(told(run("placement", "check", "--json"))["broken"])))
    fixed = run("placement", "check", "--fix", "--json")
    assert fixed.code == 0, fixed.out
    (row,) = [row for row in told(fixed)["found"] if row["ledger"] == before]
    assert {change["new"] for change in row["replaced"]} == {"bookie-3"}
    assert run("placement", "check").code == 0
    assert warned(run) == [], "what was mended is not told any more"


def test_too_few_hosts_are_said_and_refuse_nothing(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    on_hosts(run, tmp_path, "h1", "h1", "h2", "h2")
    run("placement", "check", "--fix")  # what other tests made
    made = run("ledger", "create", "--json")
    assert made.code == 0
    said = "the 3 copies of an entry go to 2 hosts, not to 3: bookies that take entries are in 2 hosts"
    assert f"falls short of placement `rack:2`, level host: {said}" in caplog.text
    done = run("status")
    assert "1 error" in done.out, "nobody heals this cluster, and nothing else is an error"
    assert f"warning too-few-domains level host: {said}" in done.out
    assert "[bookie] host_id" in done.out
    assert warned(run) == [("too-few-domains", "level host")]
    checked = run("placement", "check")
    assert checked.code == 0, "no ledger can be placed better"
    assert said in checked.out
    assert "meets its placement as far as it can" in checked.out
    assert told(run("placement", "check", "--json"))["short"][0]["there"] == 2


def test_one_machine_alone_is_silent(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    on_hosts(run, tmp_path, "h1", "h1", "h1", "h1")
    run("placement", "check")  # what was found before is not so any more
    assert run("ledger", "create", "--json").code == 0
    assert "placement" not in caplog.text
    assert warned(run) == []
    assert run("placement", "check").out == "every ledger meets its placement\n"
