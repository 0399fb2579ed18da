"""What a release says about itself: version, changelog, and the workflows that build and test it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHANGELOG = ROOT / "docs" / "project" / "changelog.md"
WORKFLOWS = ROOT / ".github" / "workflows"


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_changelog_begins_with_the_version_and_says_how_to_upgrade() -> None:
    newest, *older = re.split(r"^## ", CHANGELOG.read_text(), flags=re.MULTILINE)[1:]
    assert newest.split("\n")[0] == pyproject()["project"]["version"]
    assert older
    assert "\n### Upgrading\n" in newest


def test_every_row_of_an_upgrade_says_what_was_what_is_and_for_how_long() -> None:
    rows = [line for line in CHANGELOG.read_text().splitlines() if line.startswith("|")]
    assert len(rows) > 3
    assert [row for row in rows if len(re.split(r"(?<!\\)\|", row)) != 5] == []
    assert [row for row in rows if re.search(r"\| *\|", row)] == []


def test_continuous_integration_runs_every_python_that_the_classifiers_name() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [line.rpartition(" ")[2] for line in pyproject()["project"]["classifiers"] if line.startswith(prefix)]
    for workflow in ("tests.yml", "wheels.yml"):
        (matrix,) = re.findall(r"python: \[(.*)\]", (WORKFLOWS / workflow).read_text())
        assert [version.strip('" ') for version in matrix.split(",")] == named
    assert named[0] == pyproject()["project"]["requires-python"].removeprefix(">=")
    tried = pyproject()["tool"]["cibuildwheel"]["build"]
    assert tried == [f"cp{named[0].replace('.', '')}-*", f"cp{named[-1].replace('.', '')}-*"]


def test_wheels_are_built_on_each_system_that_is_named() -> None:
    (matrix,) = re.findall(r"system: \[(.*)\]", (WORKFLOWS / "wheels.yml").read_text())
    systems = [system.strip().rstrip("-.0123456789") for system in re.sub(r"-[\d.]+", "", matrix).split(",")]
    assert systems == ["ubuntu", "ubuntu-arm", "macos", "macos-intel"]
    kinds = [line.rpartition(" :: ")[2] for line in pyproject()["project"]["classifiers"] if "Operating" in line]
    # A classifier says that it works there; nothing was ever run on macOS, so only the workflow names it.
    assert kinds == ["Linux"]


def test_workflows_run_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [path.read_text() for path in [*WORKFLOWS.glob("*.yml"), ROOT / ".ci" / "run"]]
    called = {target for text in texts for target in re.findall(r"\bmake ([a-z-]+)", text)}
    assert called
    assert called <= targets
    scripts = {name for text in texts for name in re.findall(r"\b(scripts/\w+\.py)", text)}
    assert [name for name in scripts if not (ROOT / name).exists()] == []


def test_groups_of_a_checkout_are_no_extras() -> None:
    project = pyproject()
    assert set(project["dependency-groups"]) == {
        "build", "dev", "examples", "lock", "main-job", "proto", "release", "site", "sql-clients", "tools",
    }  # fmt: skip
    extras = {
        "arrow",
        "avro",
        "compression",
        "connect",
        "db",
        "fsspec",
        "history",
        "jre",
        "otel",
        "security",
        "serve",
        "spark",
        "sqlalchemy",
    }
    assert set(project["project"]["optional-dependencies"]) == extras
