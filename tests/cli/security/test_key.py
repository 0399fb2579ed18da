"""`buckram key` as scripts use it; no key is ever shown."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from tests.e2e.conftest import Ended

from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit


class Said:
    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: object) -> Ended:
        code = in_process(["key", *map(str, words)])
        said = self._capfd.readouterr()
        return Ended(code, said.out, said.err)


@pytest.fixture
def key(capfd: pytest.CaptureFixture[str]) -> Said:
    return Said(capfd)


def test_a_new_key_is_first_and_the_old_ones_stay(key: Said, tmp_path: Path) -> None:
    file = tmp_path / "shop.keys"
    first = json.loads(key("create", file, "--json").out)
    second = json.loads(key("create", file, "--json").out)
    assert (first["keys"], second["keys"]) == (1, 2)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = key("list", file, "--json")
    assert json.loads(listed.out)["keys"] == [
        {"id": second["id"], "use": "write and read"},
        {"id": first["id"], "use": "read"},
    ]
    secrets = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    said = listed.out + key("list", file).out + key("create", file).out
    assert not any(secret in said for secret in secrets)


def test_files_that_do_not_do(key: Said, tmp_path: Path) -> None:
    file = tmp_path / "shop.keys"
    file.write_text("nonsense\n")
    file.chmod(0o600)
    for words in (("list", file), ("create", file), ("create", tmp_path / "none" / "x.keys")):
        refused = key(*words)
        assert refused.code == Exit.USAGE, refused
        assert "Traceback" not in refused.err
    assert file.read_text() == "nonsense\n"
    file.write_text(f"{'ab' * 32}\n")
    file.chmod(0o644)
    assert "others can read" in key("list", file).err
