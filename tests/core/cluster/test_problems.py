"""Which releases work together."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from buckram.core.cluster import problems as upgrade
from buckram.core.cluster.problems import RELEASES, release_problems, series

ROOT = Path(__file__).parents[3]


def test_the_releases_are_those_of_the_changelog() -> None:
    text = (ROOT / "docs" / "project" / "changelog.md").read_text()
    headings = re.findall(r"^## (\d+\.\d+)\.", text, re.MULTILINE)
    assert tuple(reversed(headings)) == RELEASES
    assert series(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]) == RELEASES[-1]


@pytest.mark.parametrize(
    ("version", "found"), [("0.2.0", "0.2"), ("0.2.1.dev3", "0.2"), ("1.10", "1.10"), ("x", ""), ("", ""), ("2", "")]
)
def test_series(version: str, found: str) -> None:
    assert series(version) == found


def test_neighbours_work_together_and_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "RELEASES", ("0.1", "0.2", "0.3", "1.0"))
    found = release_problems({"a": "0.3.2", "b": "0.2.0", "c": "", "d": "1.0.0", "e": "9.9.0"}, "0.3.0")
    assert [(one.where, one.do.split(":")[0]) for one in found] == [
        ("d", "use the `buckram upgrade-check` of the newest release"),
        ("e", "use the `buckram upgrade-check` of the newest release"),
    ]
    (only,) = release_problems({"a": "0.1.7"}, "0.3.0")
    assert only.do == "upgrade the whole cluster to 0.2 first"
