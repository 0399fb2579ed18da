"""Counts how the product is divided into rooms and files, for docs/project/house.md.

`python scripts/counts.py [NAME...] [--of CHECKOUT]` prints a line for each count, by default all of them and of the
checkout that one stands in. An older state is counted alike out of a worktree: `git worktree add ../before COMMIT`,
then `--of ../before`. The simulator and the faults, which were packages of the product once, are left out of all counts
but those of contracts and pages.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.words import found_in, is_bare

SMALL, LARGE = 80, 500
BESIDE = ("sim", "chaos")
"""Folders of the package that are no part of the product, or were not."""
COMPILED = "core.entries.hot ->"
"""Import of the compiled module, which import-linter takes for the package: an exception of the tool's, not of ours."""
_IMPORT = re.compile(r"^ *(?:from|import) (buckram[\w.]*)(?: import (\(\n[^)]*\)|[^\n]*))?", re.MULTILINE)


@cache
def files(root: Path) -> Mapping[Path, str]:
    """Return the modules of the product below its package, with their texts."""
    package = root / "src" / "buckram"
    paths = (path.relative_to(package) for path in sorted(package.rglob("*.py")))
    return {path: (package / path).read_text(encoding="utf-8") for path in paths if path.parts[0] not in BESIDE}


def modules(root: Path) -> dict[Path, int]:
    """Return how many lines each module has that is no `__init__.py`."""
    return {path: text.count("\n") for path, text in files(root).items() if path.name != "__init__.py"}


def contracts(root: Path) -> list[Mapping[str, list[str]]]:
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return list(table["tool"]["importlinter"]["contracts"])


def exceptions(root: Path) -> int:
    """Return the number of imports that contracts leave out, the compiled module's aside."""
    return sum(COMPILED not in one for contract in contracts(root) for one in contract.get("ignore_imports", []))


def importers(root: Path) -> Mapping[str, set[Path]]:
    """Return by whom each module of the product is imported; modules by their dotted names."""
    known = {".".join(("buckram", *path.with_suffix("").parts)) for path in modules(root)}
    found: dict[str, set[Path]] = {name: set() for name in known}
    for path, text in files(root).items():
        for module, names in _IMPORT.findall(text):
            for name in (module, *(f"{module}.{one}" for one in re.findall(r"\w+", names))):
                if name in known:
                    found[name].add(path)
    return found


def alone(root: Path) -> int:
    """Return the number of modules that one other module imports, which stands in the same folder."""
    places = {".".join(("buckram", *path.with_suffix("").parts)): path for path in modules(root)}
    by = importers(root).items()
    return sum(len(users) == 1 and next(iter(users)).parent == places[name].parent for name, users in by)


def twice(root: Path) -> int:
    """Return the number of names that two or more classes of one layer have, private ones aside."""
    names: Counter[tuple[str, str]] = Counter()
    for path, text in files(root).items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names[path.parts[0], node.name] += 1
    return sum(number > 1 for number in names.values())


def bare(root: Path) -> int:
    """Return the number of docstrings and notes that begin without a subject and a verb."""
    return sum(is_bare(one.text) for text in files(root).values() for one in found_in(ast.parse(text)))


def where(root: Path) -> int:
    """Return the number of rows of "Where is ...?"."""
    page = (root / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Where is ...?\n")[2].partition("\n## ")[0]
    return sum(line.startswith("| ") for line in table.splitlines()) - 1  # The first one is the heading.


COUNTS: Mapping[str, Callable[[Path], int]] = {
    "packages": lambda root: sum(path.name == "__init__.py" for path in files(root)),
    "contracts": lambda root: len(contracts(root)),
    "exceptions": exceptions,
    "files": lambda root: len(files(root)),
    "modules": lambda root: len(modules(root)),
    "lines": lambda root: sum(text.count("\n") for text in files(root).values()),
    "small": lambda root: sum(lines < SMALL for lines in modules(root).values()),
    "large": lambda root: sum(lines > LARGE for lines in modules(root).values()),
    "alone": alone,
    "twice": twice,
    "bare": bare,
    "where": where,
}


def counted(root: Path, names: list[str]) -> Iterator[str]:
    """Yield a line for each count."""
    for name in names or COUNTS:
        yield f"{name} {COUNTS[name](root)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COUNTS))
    parser.add_argument("--of", type=Path, metavar="CHECKOUT", default=Path(__file__).parents[1])
    options = parser.parse_args()
    if unknown := set(options.names) - set(COUNTS):
        parser.error(f"no count is named {', '.join(sorted(unknown))}")
    for line in counted(options.of, options.names):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
