"""Dead definitions: functions, classes, methods and properties of the sources that nothing but tests uses.

`python scripts/dead.py`. A name counts as used where the sources, the bench, the examples or the tools read it, import
it or have it as a string. A method that may override one of a class from elsewhere, and what a decorator registers,
counts as used, too. Whatever else is called from outside stands with its reason in scripts/dead_allowed.toml, and a row
there that is not needed any more is a fault. Exit code 1 for any fault. What was found in a file is kept in
`.test-times/` until the file changes.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

ALLOWED = Path(__file__).with_name("dead_allowed.toml")
CACHE = Path(".test-times/dead.json")
SOURCES = (Path("src/buckram"), Path("chaos"), Path("simulator"))
USERS = (*SOURCES, Path("bench"), Path("examples"), Path("javakit"), Path("scripts"))
OWN_BASES = {"builtins", "typing", "enum", "abc", "collections", "buckram"}
"""A class whose bases come from these has no method that only a library calls."""
REGISTERING = {"command", "group", "fixture", "callback", "register", "hookimpl", "result_callback"}
"""A function below one of these decorators is called by name, or by a library."""
FORMAT = 2
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Facts:
    """Definitions of one file, as [name or Class.name, line], and the names that it uses."""

    defined: list[list[Any]] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    """Names that it reads, outside the function or class of that name."""
    outside: list[str] = field(default_factory=list)
    """Attributes, strings and imports."""


def facts_of(text: str) -> Facts:
    tree = ast.parse(text)
    found = Facts([[name, line] for name, line in _definitions(tree)])
    plain, outside = set[str](), set[str]()
    _note_uses(tree, plain, outside, frozenset())
    found.plain, found.outside = sorted(plain), sorted(outside)
    return found


def _definitions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    origins = _origins(tree)
    for node in tree.body:
        if not isinstance(node, Function | ast.ClassDef) or _is_special(node.name):
            continue
        if not any(_registers(decorator) for decorator in node.decorator_list):
            yield node.name, node.lineno
        if isinstance(node, ast.ClassDef) and all(_is_ours(base, origins) for base in node.bases):
            for inner in node.body:
                if isinstance(inner, Function) and not _is_special(inner.name):
                    yield f"{node.name}.{inner.name}", inner.lineno


def _origins(tree: ast.Module) -> dict[str, str]:
    """Return the package that each imported name comes from."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({(alias.asname or alias.name).partition(".")[0]: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            found.update({alias.asname or alias.name: node.module or "buckram" for alias in node.names})
    return {name: origin.partition(".")[0] for name, origin in found.items()}


def _is_ours(base: ast.expr, origins: Mapping[str, str]) -> bool:
    node = base.value if isinstance(base, ast.Subscript) else base
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and origins.get(node.id, "builtins") in OWN_BASES


def _registers(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(function, ast.Attribute) and function.attr in REGISTERING


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _note_uses(tree: ast.AST, plain: set[str], outside: set[str], inside: frozenset[str]) -> None:
    """Note what a file uses; `inside` are the definitions around, which do not use themselves."""
    for node in ast.iter_child_nodes(tree):
        within = inside
        if isinstance(node, Function | ast.ClassDef):
            within = inside | {node.name}
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id not in inside:
                plain.add(node.id)
        elif isinstance(node, ast.Attribute):
            itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not (itself and node.attr in inside):
                outside.add(node.attr)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value.isidentifier():
                outside.add(node.value)
            continue
        elif isinstance(node, ast.ImportFrom):
            outside.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Assign) and _is_all(node):
            continue  # what is offered is not used yet
        _note_uses(node, plain, outside, within)


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def dead(files: Mapping[str, Facts], sources: Iterable[Path] = SOURCES) -> dict[str, int]:
    """Definitions below `sources` that nothing uses, as path:Class.name, each with its line."""
    outside = {name for facts in files.values() for name in facts.outside}
    found: dict[str, int] = {}
    for path, facts in files.items():
        plain = set(facts.plain)
        for qualified, line in facts.defined if any(Path(path).is_relative_to(source) for source in sources) else ():
            owner, _, name = qualified.rpartition(".")
            if name not in outside and (owner or name not in plain):
                found[f"{path}:{qualified}"] = line
    return found


def faults(found: Mapping[str, int], allowed: Mapping[str, str]) -> list[str]:
    """Return a sentence for each dead definition that is not allowed, and for each row that allows nothing."""
    said = []
    for where, line in found.items():
        path, _, name = where.partition(":")
        if where not in allowed:
            said.append(f"{path}:{line}: nothing but tests uses {name}: remove it, or say in {ALLOWED.name} who does")
    return said + [f"{ALLOWED.name}: the row {row} must go: it is used, or gone" for row in allowed if row not in found]


def read_files(folders: Iterable[Path], cache: Path = CACHE) -> dict[str, Facts]:
    """Return the facts of every file; those of an unchanged file come from the cache."""
    kept = _read_cache(cache)
    found: dict[str, Facts] = {}
    states: dict[str, list[int]] = {}
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        name, stat = path.as_posix(), path.stat()
        if path.stem.endswith("_pb2"):
            continue
        states[name] = [stat.st_mtime_ns, stat.st_size]
        state, facts = kept.get(name, ([], None))
        found[name] = facts if facts and state == states[name] else facts_of(path.read_text(encoding="utf-8"))
    cache.parent.mkdir(exist_ok=True)
    rows = {name: [states[name], astuple(facts)] for name, facts in found.items()}
    draft = cache.with_suffix(".draft")
    draft.write_text(json.dumps([FORMAT, rows]))
    draft.replace(cache)
    return found


def _read_cache(cache: Path) -> dict[str, tuple[list[int], Facts | None]]:
    try:
        number, rows = json.loads(cache.read_text())
        return {name: (state, Facts(*facts)) for name, (state, facts) in rows.items()} if number == FORMAT else {}
    except (OSError, ValueError, TypeError):
        return {}


def main() -> int:
    allowed = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))["allowed"]
    said = faults(dead(read_files(USERS)), allowed)
    for line in said:
        print(line)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
