"""Public names: each is written once by hand, and what type checkers read and `__all__` agree with that."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from scripts import generate_names
from scripts.generate_names import BEGIN, END, INSIDE, PACKAGE

import buckram
from buckram import errors


def test_every_public_name_is_there() -> None:
    for name in buckram.__all__:
        assert getattr(buckram, name) is not None
    assert set(errors.__all__) - set(buckram.__all__) == {*INSIDE, "Code"} - {"limit_named"}


def test_type_checkers_see_what_can_be_imported() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen - {"Any"} == set(buckram.__all__)


def test_lists_are_current() -> None:
    subprocess.run([sys.executable, "scripts/generate_names.py", "--check"], cwd=PACKAGE.parent.parent, check=True)


def test_a_new_name_is_in_every_list() -> None:
    text = (PACKAGE / "__init__.py").read_text().replace("_LAZY = {\n", '_LAZY = {\n    "Novel": "buckram.novels",\n')
    new = generate_names.replaced(text, generate_names.package_lists(text))
    assert new.count('"Novel",\n') == 1
    assert "    from buckram.novels import Novel\n" in new


def test_a_module_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no part 2"):
        generate_names.replaced(f"{BEGIN}{END}", ["", ""])
