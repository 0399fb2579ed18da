"""The cluster that counts where nobody names one, and what is said where there is none or none of it runs."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import buckram
import buckram.sync
from buckram.errors import ConfigError
from buckram.metadata.default import DATA_DIR, DATABASE, DESCRIPTION, default_uri, how_to_start, sqlite_uri


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BUCKRAM_METADATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_connect_says_it_in_words_of_python(nowhere: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        buckram.sync.connect()
    said = str(caught.value)
    assert said.startswith(f"no cluster is named: run `buckram up` in {nowhere}, or pass the URI of one, as in conn")
    assert "--metadata" not in said
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 3, "no thread and no loop"


async def test_connect_of_asyncio_says_the_same(nowhere: Path) -> None:
    with pytest.raises(ConfigError, match="as in connect") as caught:
        async with buckram.connect():
            pass
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_the_command_line_says_its_own(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from buckram.cli.app import run

    assert run(["stream", "list"]) == 2
    said = capsys.readouterr().err
    assert "or give --metadata URI, or set BUCKRAM_METADATA" in said
    assert "connect(" not in said


def test_how_a_cluster_is_started(tmp_path: Path) -> None:
    data = tmp_path / DATA_DIR
    data.mkdir()
    uri = sqlite_uri(data / DATABASE)
    assert "`buckram bookie run` for each" in how_to_start(uri)
    (data / DESCRIPTION).write_text("{}")
    assert how_to_start(uri) == f"start the cluster with `buckram up --data {data}`"
    assert "`buckram bookie run` for each" in how_to_start("zk://127.0.0.1:2181/ledgers")
    assert "`buckram bookie run` for each" in how_to_start("memory:x")
    with pytest.raises(ConfigError, match="no cluster is named"):
        default_uri({}, tmp_path / "other")
