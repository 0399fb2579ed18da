"""Commands about data while the whole cluster is stopped: each says so within seconds, none waits without a word."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import pytest

import buckram.db
from buckram.cli.app import run
from buckram.cli.shared.exits import Exit
from buckram.client.cluster import bookies
from buckram.serve.json_views import status
from buckram.sql import OperationalError
from buckram.sync import connect
from buckram.testing import ThreadedCluster

_NOBODY_S = 0.2
_WITHIN_S = 5.0
"""The first command that raises without the rule does so after half a minute, the others never."""
COMMANDS = (
    "stream read s",
    "stream tail -n 1 s",
    "stream write s",
    "stream write new",
    "stream seal s",
    "stream verify s s",
    "object list default",
    "object get default/a",
    "object put default/b -",
    "object delete default/a --yes",
    "object rename default/a default/b",
    "object copy default/a default/b",
    "object sweep default",
    "object uploads default",
    "db shell bank SELECT+1",
    "db backup bank copy.db",
    "db fork bank other",
    "db verify bank",
    "ledger read 0",
    "ledger write",
    "usage",
)


@pytest.fixture(scope="module")
def stopped() -> Iterator[str]:
    """A cluster with a stream, an object and a database, none of whose bookies runs any more."""
    with ThreadedCluster(bookies=3) as cluster:
        with connect(cluster.uri) as client, client.objects() as objects:
            objects.put("a", b"bytes")
            with client.namespace().writer("s") as writer:
                writer.append(b"1")
        # Not by a connection of this process, whose connections share a client, which would know the bookies.
        assert run(["db", "shell", "bank", "CREATE TABLE account (name)", "--create", "--metadata", cluster.uri]) == 0
        for number in range(3):
            cluster.stop(number)
        yield cluster.uri


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bookies, status):
        monkeypatch.setattr(module, "_NOBODY_S", _NOBODY_S)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_stopped_cluster_is_told_at_once(
    stopped: str, words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUCKRAM_METADATA", stopped)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a line\n")))
    began = time.monotonic()
    code = run([word.replace("+", " ") for word in words.split()])
    took, said = time.monotonic() - began, capfd.readouterr()
    assert code == Exit.TRY_AGAIN, said
    assert any(one in said.err for one in ("is registered", "0 are usable", "is not registered")), said.err
    assert "leads it" not in said.err, "names a leader that went with the cluster"
    assert took < _WITHIN_S, said.err


def test_a_connection_to_a_database_of_a_stopped_cluster(stopped: str) -> None:
    began = time.monotonic()
    connection = buckram.db.connect(stopped, "bank")
    with pytest.raises(OperationalError, match="no bookie of the cluster"):
        connection.execute("SELECT * FROM account")
    connection.close()
    assert time.monotonic() - began < _WITHIN_S
