"""`buckram context`, and which cluster a command means."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

from buckram.cli.app import app, run
from buckram.cli.shared.context_file import SAID, Contexts
from buckram.cli.shared.options import metadata_option
from buckram.sync import connect
from buckram.testing import ThreadedCluster

PLAIN = str(Path(__file__).parents[3] / "pyproject.toml")
TOKEN = "secret-of-a-token"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (*SAID, "BUCKRAM_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "buckram" / "contexts.json"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a command is given: its URI, and what the environment says meanwhile."""
    found: dict[str, str] = {}

    @click.command("probe")
    @metadata_option
    def probe(uri: str | None) -> None:
        found.clear()
        found.update({name: os.environ[name] for name in SAID if name in os.environ}, uri=uri or "")

    real = app.get_command
    monkeypatch.setattr(app, "get_command", lambda ctx, name: probe if name == "probe" else real(ctx, name))
    return found


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_the_first_context_is_the_current_one_and_no_token_is_shown(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    made = ask(capsys, "context", "add", "prod", "--metadata", "etcd://u:pw@h:1/b", "--token", TOKEN, "--ca", str(ca))
    assert (made["context"], made["current"], made["replaced"]) == ("prod", True, False)
    ask(capsys, "context", "add", "test", "--metadata", "memory:test")
    assert home.stat().st_mode & 0o777 == 0o600
    assert home.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(home.read_text())["version"] == 1
    assert os.listdir(home.parent) == ["contexts.json"]
    listed = ask(capsys, "context", "list")
    assert (listed["current"], [one["context"] for one in listed["contexts"]]) == ("prod", ["prod", "test"])
    shown = ask(capsys, "context", "show")
    assert (shown["metadata"], shown["token"], shown["ca"]) == ("etcd://u@h:1/b", "********", str(ca))
    assert ask(capsys, "context", "use", "test") == {"current": "test"}
    assert ask(capsys, "context", "remove", "test") == {"context": "test", "removed": True, "current": None}
    for words in (["list"], ["show", "prod"]):
        assert run(["context", *words]) == 0
        text = capsys.readouterr().out
        assert "prod" in text
        assert TOKEN not in text
        assert "pw" not in text


def test_an_option_goes_before_the_environment_and_that_before_the_current_context(
    seen: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    assert run(["probe"]) == 0
    assert seen == {"uri": ""}  # beside `buckram up`
    ask(capsys, "context", "add", "a", "--metadata", "memory:a", "--token", TOKEN, "--ca", str(ca))
    ask(capsys, "context", "add", "b", "--metadata", "memory:b")
    of_a = {"uri": "memory:a", "BUCKRAM_METADATA": "memory:a", "BUCKRAM_TOKEN": TOKEN, "BUCKRAM_CA": str(ca)}
    of_b = {"uri": "memory:b", "BUCKRAM_METADATA": "memory:b"}
    before = dict(os.environ)
    for words, expected in (
        (["probe"], of_a),
        (["probe", "--context", "b"], of_b),
        (["--context", "b", "probe"], of_b),
        (["probe", "--metadata", "memory:c"], {"uri": "memory:c"}),
    ):
        assert run(words) == 0
        assert seen == expected, words
        assert dict(os.environ) == before
    monkeypatch.setenv("BUCKRAM_CONTEXT", "b")
    assert run(["probe"]) == 0
    assert seen == of_b
    assert run(["probe", "--context", "a"]) == 0
    assert seen == of_a
    monkeypatch.setenv("BUCKRAM_METADATA", "memory:d")
    assert run(["probe"]) == 0
    assert seen == {"uri": "memory:d", "BUCKRAM_METADATA": "memory:d"}


def test_a_current_context_that_leads_away_from_the_cluster_of_this_directory_is_told(
    seen: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(capsys, "context", "add", "away", "--metadata", "memory:away")
    monkeypatch.chdir(tmp_path)
    assert run(["probe"]) == 0
    assert (seen["uri"], capsys.readouterr().err) == ("memory:away", "")
    database = tmp_path / "buckram-data" / "metadata.db"
    database.parent.mkdir()
    database.touch()
    assert run(["probe"]) == 0
    assert seen["uri"] == "memory:away"
    assert f"--metadata sqlite://{database}" in capsys.readouterr().err
    assert run(["--context", "away", "probe"]) == 0  # who names it knows
    assert capsys.readouterr().err == ""


def test_the_token_of_the_environment_is_not_shown_to_the_cluster_of_an_option(
    seen: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(capsys, "context", "add", "b", "--metadata", "memory:b", "--token", TOKEN)
    monkeypatch.setenv("BUCKRAM_TOKEN", "of-another-cluster")
    monkeypatch.setenv("BUCKRAM_METADATA", "memory:c")
    assert run(["probe", "--context", "b"]) == 0
    assert seen == {"uri": "memory:b", "BUCKRAM_METADATA": "memory:b", "BUCKRAM_TOKEN": TOKEN}
    monkeypatch.delenv("BUCKRAM_METADATA")
    assert run(["probe"]) == 0
    assert seen["BUCKRAM_TOKEN"] == "of-another-cluster"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["stream", "list", "--context", "nope"], 2, "context 'nope': known: prod; `buckram context add"),
        (["context", "use", "nope"], 2, "known: prod"),
        (["context", "show", "nope"], 2, "known: prod"),
        (["context", "remove", "nope"], 2, "known: prod"),
        (["context", "use"], 2, "give a NAME, or --none"),
        (["context", "add", "a b", "--metadata", "memory:x"], 2, "context 'a b': needs 1 to 63"),
        (["context", "add", "a\x1b[31m", "--metadata", "memory:x"], 2, "needs 1 to 63"),
        (["context", "add", "../x", "--metadata", "memory:x"], 2, "needs 1 to 63"),
        (["context", "add", "x", "--metadata", "nonsense"], 2, "metadata URI 'nonsense': not understood"),
        (["context", "add", "x", "--metadata", "memory:x", "--ca", "/missing.pem"], 2, "--ca /missing.pem: No such"),
        (["context", "add", "x", "--metadata", "memory:x", "--ca", PLAIN], 2, "has no certificate"),
        (["context", "add", "x", "--metadata", "memory:x", "--key", __file__], 2, "--certificate and --key go"),
        (["context", "add", "x", "--metadata", "memory:x", "--token", "a\nb"], 2, "--token: not a token"),
        (["stream", "list", "--context", "prod", "--metadata", "memory:x"], 2, "both name a cluster"),
    ],
)
def test_bad_input_is_named(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    ask(capsys, "context", "add", "prod", "--metadata", "memory:prod")
    before = home.read_bytes()
    assert run(words) == code
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert home.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is no JSON"),
        ("\xff", "it is no JSON"),
        ("[]", "it has no version"),
        ('{"version": 9}', "of a later release"),
        ('{"version": 1}', "it has no contexts"),
        ('{"version": 1, "contexts": {"a": {}}}', "context 'a' needs metadata"),
        ('{"version": 1, "contexts": {"a": {"metadata": "memory:", "tokn": "x"}}}', "context 'a' needs metadata"),
        ('{"version": 1, "contexts": {"a": {"metadata": 5}}}', "context 'a' needs metadata"),
    ],
)
def test_a_broken_file_is_named(text: str, said: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.parent.mkdir(parents=True)
    home.write_bytes(text.encode("latin-1"))
    home.chmod(0o600)
    for words in (["stream", "list"], ["context", "list"], ["context", "add", "x", "--metadata", "memory:x"]):
        assert run(words) == 2
        err = capsys.readouterr().err
        assert said in err
        assert str(home) in err
        assert "Traceback" not in err
    assert home.read_bytes() == text.encode("latin-1")


def test_a_file_that_others_can_read_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "context", "add", "x", "--metadata", "memory:x")
    home.chmod(0o644)
    assert run(["stream", "list"]) == 2
    assert f"chmod 600 {home}" in capsys.readouterr().err


def test_a_file_that_went_away_is_named_with_its_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("abc")
    ask(capsys, "context", "add", "x", "--metadata", "memory:x", "--token-file", str(tmp_path / "token"))
    (tmp_path / "token").unlink()
    assert run(["stream", "list"]) == 2
    assert f"context x: token_file {tmp_path / 'token'} cannot be read" in capsys.readouterr().err


def test_errors_and_status_name_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "context", "add", "gone", "--metadata", "memory:nobody")
    assert run(["stream", "list"]) == 2
    assert capsys.readouterr().err.endswith("(context gone)\n")
    assert run(["stream", "list", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["context"] == "gone"
    with ThreadedCluster(bookies=1) as cluster:
        with connect(cluster.uri):
            pass
        ask(capsys, "context", "add", "here", "--metadata", cluster.uri, "--use")
        run(["status"])
        assert capsys.readouterr().out.splitlines()[0] == "context here"
        run(["status", "--json"])
        assert json.loads(capsys.readouterr().out)["context"] == "here"


def test_a_bookie_is_not_started_in_the_cluster_of_a_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ask(capsys, "context", "add", "prod", "--metadata", "memory:prod")
    assert run(["bookie", "run", "--data", str(tmp_path / "data")]) == 2
    assert "no cluster is named" in capsys.readouterr().err


def test_without_a_home_nothing_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # which counts for nothing, as the standard says
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Contexts.read().path == tmp_path / ".config/buckram/contexts.json"


def test_json_has_no_remark_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The current context leads away from the cluster of this directory, which is said to people."""
    assert run(["context", "add", "far", "--metadata", f"sqlite://{tmp_path}/far.db"]) == 0
    (tmp_path / "buckram-data").mkdir()
    (tmp_path / "buckram-data" / "metadata.db").touch()
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run(["stream", "list"]) == 2
    assert "context far is used, and not ./buckram-data" in capsys.readouterr().err
    assert run(["stream", "list", "--json"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["error"]["exit_code"] == 2
