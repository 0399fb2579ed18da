"""Options that several commands share."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import buckram.cli

SOURCES = Path(buckram.cli.__file__).parent


def test_an_option_of_several_commands_is_written_once() -> None:
    """Alike means: the same name, type, default and help."""
    calls = Counter(
        ast.unparse(node)
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.option"
    )
    assert len(calls) > 200
    assert [call for call, times in calls.items() if times > 1] == []
