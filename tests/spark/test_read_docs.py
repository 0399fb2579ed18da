"""docs/spark.md is a program: its Python runs here from top to bottom, in the session of the tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buckram.spark.clients import close_connections
from buckram.spark.options import table
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
SNIPPET = re.compile(r"(<!-- not run: [^>]*-->\n *)?```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def own_cluster() -> Iterator[ThreadedCluster]:
    """The page makes namespaces: it needs a cluster of its own."""
    with ThreadedCluster(bookies=3) as running:
        yield running
        close_connections()


def test_the_code_of_the_page_runs(
    spark: SparkSession, own_cluster: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"METADATA": own_cluster.uri}
    text = PAGE.read_text()
    count = 0
    for found in SNIPPET.finditer(text):
        if not found[1]:
            line = text[: found.start(2)].count("\n") + 1
            # Lines are those of the page, so that an error says where it is.
            exec(compile("\n" * (line - 1) + found[2], str(PAGE), "exec"), names)
            count += 1
    assert count > 5
    assert names["spark"].sparkContext is spark.sparkContext
    if "client" in names:
        names["client"].close()


def test_the_table_of_options_is_that_of_the_code() -> None:
    assert table() in PAGE.read_text()
