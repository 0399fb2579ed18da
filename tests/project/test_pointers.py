"""Pointers in docstrings and pages are followed, and subjects of commits are measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import pointers
from scripts.subjects import too_long


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    product = tmp_path / "src" / "buckram" / "streams"
    (product / "read").mkdir(parents=True)
    (product / "read" / "tail.py").write_text("class Tail: ...\n")
    monkeypatch.setattr(pointers, "ROOT", tmp_path)
    monkeypatch.setattr(pointers, "PRODUCT", tmp_path / "src" / "buckram")
    return product / "read" / "cursors.py"


@pytest.mark.parametrize(
    "text",
    [
        "`streams/read/tail.py`",
        "`read/tail.py:Tail`",
        "`src/buckram/streams/read/tail.py:Tail.next`",
        "`tail.py`",
        "a/b.py",
    ],
)
def test_a_file_and_a_name_that_are_there_are_found(source: Path, text: str) -> None:
    source.write_text(f'"""Not here: tails ({text})."""\n')
    (source.parent / "tail.py").write_text("class Tail:\n    def next(self): ...\n")
    pointers.text_of.cache_clear()
    pointers.names.cache_clear()
    assert list(pointers.lost(source)) == []


@pytest.mark.parametrize(
    "text", ["`streams/read/tails.py`", "`streams/read/tail.py:Head`", "`tails.py`", "`tails.py:Tail`"]
)
def test_what_is_gone_is_told(source: Path, text: str) -> None:
    source.write_text(f'"""Not here.\n\nTails ({text})."""\n')
    pointers.text_of.cache_clear()
    pointers.names.cache_clear()
    assert list(pointers.lost(source)) == [f"src/buckram/streams/read/cursors.py:3: {text} leads nowhere"]


def test_subjects_of_72_columns_are_the_longest() -> None:
    assert too_long(f"abc {'x' * 72}\ndef {'x' * 73}") == [f"def {'x' * 73}"]
