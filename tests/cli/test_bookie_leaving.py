"""What the commands that take bookies out refuse, and `readonly`, `writable`, `maintenance` and `rejoin`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.e2e.conftest import Ended
from tests.support.polling import wait_until

from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
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


def state(run: Run, bookie: str) -> tuple[str, str]:
    rows = run("bookie", "list", "--json").json["bookies"]
    return next(((row["state"], row["asked"]) for row in rows if row["id"] == bookie), ("", ""))


def _is_shown(run: Run, shown: tuple[str, str] | None) -> bool:
    """The bookie does what was written down for it a moment later."""
    return shown in (None, state(run, "bookie-0"))


def test_a_bookie_is_asked_to_be_read_only_to_rest_and_to_be_writable(run: Run) -> None:
    for words, said, shown in (
        (("readonly", "bookie-0"), {"state": "readonly"}, ("readonly", "readonly")),
        (("writable", "bookie-0"), {"state": "writable"}, ("writable", "")),
        (("maintenance", "bookie-0", "--for", "30m"), {}, ("readonly", "maintenance")),
        (("maintenance", "bookie-0", "--end"), {"until": None}, None),
    ):
        done = run("bookie", *words, "--json")
        assert done.code == 0, done.err
        assert done.json | said | {"bookie": "bookie-0"} == done.json
        wait_until(partial(_is_shown, run, shown), f"{shown}: not yet")
    wait_until(lambda: state(run, "bookie-0") == ("writable", ""), "still resting")


def test_what_is_asked_is_shown_to_people(run: Run) -> None:
    assert "ASKED" not in run("bookie", "list").out
    assert run("bookie", "maintenance", "bookie-1", "--for", "1h").out.startswith("bookie bookie-1 may be away until 2")
    assert "maintenance" in run("bookie", "list").out
    assert run("bookie", "writable", "bookie-1").out == "bookie bookie-1 is writable\n"


def test_a_bookie_that_is_down_is_said_to_be_down(cluster: ThreadedCluster, run: Run) -> None:
    cluster.stop(3)
    assert run("bookie", "show", "bookie-3", "--json").json["state"] == "down"
    assert "bookie bookie-3 is down" in run("bookie", "show", "bookie-3").out
    assert "it is readonly when it starts" in run("bookie", "readonly", "bookie-3").out
    assert run("bookie", "writable", "bookie-3", "--json").json["state"] == "down"
    assert "is down" in run("bookie", "collect", "bookie-3").err
    told = run("bookie", "rejoin", "bookie-3", "--json")
    assert (told.code, told.json) == (0, {"bookie": "bookie-3", "may_rejoin": True})
    assert state(run, "bookie-3") == ("", "")


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("drain", "nobody"), Exit.NOT_FOUND, "nobody"),
        (("decommission", "nobody"), Exit.NOT_FOUND, "nobody"),
        (("readonly", "nobody"), Exit.NOT_FOUND, "nobody"),
        (("forget", "nobody"), Exit.NOT_FOUND, "nobody"),
        (("collect", "nobody"), Exit.NOT_FOUND, "nobody"),
        (("rejoin", "nobody"), Exit.NOT_FOUND, "nobody"),
        (("replace", "nobody", "bookie-0"), Exit.NOT_FOUND, "nobody"),
        (("maintenance", "nobody", "--for", "30m"), Exit.NOT_FOUND, "nobody"),
        (("drain", "a bookie"), Exit.USAGE, "a bookie"),
        (("drain", "bookie-0"), Exit.FAILED, "no process runs autorecovery: start `buckram autorecovery run`"),
        (("drain", "bookie-0", "--rate", "0"), Exit.USAGE, "nothing would ever be copied"),
        (("drain", "bookie-0", "--rate", "fast"), Exit.USAGE, "needs a size"),
        (("decommission", "bookie-0"), Exit.USAGE, "stop it first"),
        (("rejoin", "bookie-0"), Exit.FAILED, "is registered"),
        (("maintenance", "bookie-0"), Exit.USAGE, "--for 30m"),
        (("maintenance", "bookie-0", "--for", "0s"), Exit.USAGE, "needs 1 s to"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(run: Run, words: list[str], code: Exit, reason: str) -> None:
    refused = run("bookie", *words)
    assert (refused.code, reason in refused.err) == (code, True), refused
    assert state(run, "bookie-0") == ("writable", "")


def test_a_bookie_collects_now_and_says_what_it_keeps(run: Run) -> None:
    """A ledger that was deleted a moment ago waits for its second look: no request shortens that."""
    written = run("ledger", "create", "--ensemble", "3/3/2", "--json").json["ledger"]
    assert run("ledger", "delete", written, "--yes").code == 0
    done = run("bookie", "collect", "bookie-0", "--json")
    assert done.code == 0, done.err
    assert list(done.json) == ["bookie", "ledgers", "bytes_reclaimable", "bytes_reclaimed", "kept"]
    assert (done.json["bookie"], done.json["ledgers"] in (0, 1)) == ("bookie-0", True)  # it may be gone by itself
    assert all({"why", "bytes"} < set(one) for one in done.json["kept"])
    told = run("bookie", "collect", "bookie-0").out
    assert told.startswith("bookie bookie-0: 0 ledgers deleted")
    shown = run("bookie", "show", "bookie-0", "--json").json
    assert shown["collections"] == 2
    assert shown["bytes_reclaimable"] == sum(one["bytes"] or 0 for one in shown["kept"])
    assert (shown["open_files"] < shown["most_files"], shown["version"] != "") == (True, True)
    assert "bytes_reclaimable" in run("bookie", "show", "bookie-0").out


def test_space_is_evened_out(run: Run) -> None:
    planned = run("rebalance", "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert (planned.json["dry_run"], planned.json["bytes_copied"]) == (True, 0)
    done = run("rebalance", "--within", "100%", "--json")
    assert done.code == 0, done.err
    assert {"bookie-0", "bookie-1"} < set(done.json["bookies"])
    assert "BOOKIE" in run("rebalance", "--dry-run").out


@pytest.mark.parametrize(
    ("words", "named"),
    [(("--within", "0%"), "--within 0%"), (("--within", "much"), "--within much"), (("--rate", "0"), "--rate 0")],
)
def test_a_rebalance_that_makes_no_sense_is_refused(run: Run, words: tuple[str, ...], named: str) -> None:
    refused = run("rebalance", *words)
    assert refused.code == Exit.USAGE
    assert named in refused.err
