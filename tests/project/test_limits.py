"""How long a file, a class and a function may be: what is longer has two ideas in it.

Lines of code are counted: no blank lines, no comments, no docstrings; of a function only its body.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE, CLASS, FUNCTION = 600, 350, 60
"""Lines of a whole file, and lines of code of the others."""
FOLDERS = [ROOT / name for name in ("src", "chaos", "simulator")]
FILES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py")) if not path.name.endswith("_pb2.py")]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def docstrings(tree: ast.AST) -> Iterator[int]:
    """Numbers of the lines that strings stand on which are no values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def too_long(text: str, name: str) -> list[str]:
    lines, tree = text.splitlines(), ast.parse(text)
    prose = dict.fromkeys(docstrings(tree))
    code = [
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in prose
        for number, line in enumerate(lines, 1)
    ]
    found = [f"{name} has {len(lines)} lines, the limit is {FILE}"] if len(lines) > FILE else []
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            limit = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
            size = sum(code[node.body[0].lineno - 1 : node.end_lineno])
            if size > limit:
                found.append(f"{name}:{node.lineno} {node.name} has {size} lines of code, the limit is {limit}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_classes_and_functions_keep_their_size_limits(path: Path) -> None:
    assert not too_long(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())


def test_oversized_files_classes_and_functions_are_reported() -> None:
    body = "\n\n    # why\n".join(f"    a{n} = {n}" for n in range(FUNCTION))
    assert too_long(f'def fits(\n    b: int,\n):\n    """A\n    doc."""\n{body}\n', "f.py") == []
    assert too_long(f"def large():\n{body}\n    return 0\n", "f.py") == [
        "f.py:1 large has 61 lines of code, the limit is 60"
    ]
    methods = "\n\n".join(f"    def m{n}(self):\n        return {n}" for n in range(CLASS // 2))
    assert too_long(f"class C:\n    x = 1\n\n{methods}\n", "f.py") == [
        "f.py:1 C has 351 lines of code, the limit is 350"
    ]
    assert len(too_long("a = 1\n" * (FILE + 1), "f.py")) == 1
