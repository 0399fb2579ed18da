"""Extras: which are missing, and how a missing one is told."""

from __future__ import annotations

import pytest

from buckram.extras import MODULES, extra_of, missing, needed_for, needs, required, some_missing


def test_extras_with_a_missing_requirement_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["click>=8", "no-such-thing>=1; extra == 'db'", 'click; extra == "db"', 'click>=1 ; extra == "serve"']
    found = required(lambda _: lines)
    assert found == [("db", "no-such-thing"), ("db", "click"), ("serve", "click")]
    monkeypatch.setattr("buckram.extras.required", lambda: found)
    (only,) = missing()
    assert (only.name, only.brings, only.install) == ("db", "SQL databases", "pip install 'buckram[db]'")


def test_what_needs_an_extra_is_told_in_one_form() -> None:
    assert needs("a database", "db") == "a database needs the extra db: pip install 'buckram[db]'"
    assert extra_of("pyarrow.parquet") == "arrow"
    assert extra_of("json") is None


def test_a_package_that_an_extra_brings_is_told_as_what_needs_it() -> None:
    wanted = r"it needs the extra spark: pip install"
    with pytest.raises(ModuleNotFoundError, match=wanted) as caught, needed_for("it", "spark"):
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    assert caught.value.name == "pyspark"


def test_a_package_that_no_extra_brings_is_told_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'other'"), needed_for("it", "spark"):
        raise ModuleNotFoundError("No module named 'other'", name="other")


def test_help_looks_for_modules_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks whether anything is missing without reading the metadata of packages; both agree."""
    assert some_missing() == bool(missing())
    monkeypatch.setitem(MODULES, "no_such_module", "db")
    assert some_missing()
