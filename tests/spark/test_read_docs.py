"""The page on Spark has the tables of options that the code knows. Its code is run by tests/docs/test_pages.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from buckram.spark.databases.database_options import DATABASE_OPTIONS
from buckram.spark.shared.options import table

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "spark.md"


def test_the_tutorial_has_the_current_table_of_options() -> None:
    assert table() in PAGE.read_text()
    assert table(DATABASE_OPTIONS) in PAGE.read_text()
