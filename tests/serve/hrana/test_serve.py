"""`buckram db serve` as an operator runs it: the ready line, two servers, kill -9 of the leader, SIGTERM."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.hrana.processes import ServeProcess
from tests.support.polling import wait_until

from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
from buckram.testing import ThreadedCluster


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=3) as cluster:
        yield cluster.uri


def post(url: str, path: str, body: Any) -> Any:
    with urllib.request.urlopen(f"{url}/{path}", json.dumps(body).encode(), timeout=60) as answer:
        return json.load(answer)


def execute(url: str, sql: str) -> Any:
    return post(url, "default/main/v1/execute", {"stmt": {"sql": sql}})["result"]


def insert_once(url: str, number: int) -> None:
    """Insert a row under a token through a server, again and again until it says that it is done, and once more."""
    body = json.dumps({"stmt": {"sql": f"INSERT INTO t VALUES ({number})"}}).encode()
    asked = urllib.request.Request(f"{url}/default/main/v1/execute", body, {"Buckram-Token": f"row-{number}"})

    def done() -> bool:
        try:
            with urllib.request.urlopen(asked, timeout=60):
                return True
        except urllib.error.HTTPError as error:
            said = json.load(error)
            assert said["code"] in ("OUTCOME_UNKNOWN", "COMMIT_UNKNOWN", "NO_LEADER", "NOT_LEADER"), said
            return False

    wait_until(done, f"row {number} is not inserted")
    wait_until(done, f"row {number} is not repeated")


def test_a_second_server_takes_over_after_kill_9_of_the_leader(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    with ServeProcess(uri, "main") as first:
        assert set(first.ready) == {"url", "databases", "namespaces"}
        assert set(first.ready["databases"]) == {"default/main"}
        execute(first.url, "CREATE TABLE t (x)")
        with ServeProcess(uri, "main", "default/") as second:
            assert second.ready["databases"]["default/main"]["role"] == "follower"
            assert second.ready["namespaces"] == ["default"]
            execute(second.url, "INSERT INTO t VALUES (1)")

            def said(*words: str) -> Any:
                assert in_process(["db", *words, "--metadata", uri, "--json"]) == Exit.OK
                return json.loads(capfd.readouterr().out)

            wait_until(lambda: [one["id"] for one in said("show", "main")["followers"]] == [second.url], "not shown")
            shown = said("show", "main")
            assert (shown["database"], shown["leader"]) == ("default/main", first.url)
            assert set(shown["followers"][0]) == {"id", "offset"}
            verified = said("verify", "main")
            assert (verified["equal"], set(verified["digests"])) == (True, {"log", first.url, second.url})
            numbers = range(100, 130)
            kill_at = threading.Timer(0.2, first.kill)
            kill_at.start()
            for number in numbers:
                insert_once(second.url, number)
            kill_at.join()

            def leads() -> bool:
                with urllib.request.urlopen(second.url, timeout=60) as answer:
                    return bool(json.load(answer)["databases"]["default/main"]["role"] == "leader")

            wait_until(leads, "the follower does not lead")
            execute(second.url, "INSERT INTO t VALUES (2)")
            assert execute(second.url, "SELECT count(*) FROM t WHERE x < 100")["rows"] == [
                [{"type": "integer", "value": "2"}]
            ]
            found = execute(second.url, "SELECT x FROM t WHERE x >= 100 ORDER BY x")["rows"]
            assert [int(row[0]["value"]) for row in found] == list(numbers)
            assert second.stop() == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["main", "--host", "192.0.2.1"], "--host and --port 192.0.2.1:0"),
        (["a/b/c"], "'b/c' holds a separator"),
        (["main", "--advertise", "10.0.0.7:80"], "needs a URL such as"),
        ([], "Missing argument"),
    ],
)
def test_wrong_use_is_said_in_one_line(
    uri: str, words: list[str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert in_process(["db", "serve", *words, "--metadata", uri]) == Exit.USAGE
    said = capfd.readouterr().err
    assert reason in said
    assert len(said.splitlines()) == 1
