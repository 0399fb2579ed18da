"""Pointers that lead nowhere: `client/write/engine.py` or `core/wire/adds.py:AddRun` in docstrings, comments and pages.

`python scripts/pointers.py`. A path counts from the root, from `src/buckram`, or from the file that names it; behind a
colon stands a name that the file defines. Exit code 1 for any that leads nowhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ROOT / "src" / "buckram"
FOLDERS = ("src", "simulator", "chaos", "bench", "javakit", "scripts", "examples", "docs")
PAST = ("docs/project/changelog.md",)
"""Pages that tell of what was."""
_BARE = re.compile(r"`(?P<name>\w+\.py)(?::[A-Za-z_][\w.]*)?`")
"""A file named without its folder, which is looked for below all folders."""
_POINTER = re.compile(r"`(?P<path>(?:[\w.-]+/)+[\w-]+\.(?:py|toml|md|c))(?::(?P<name>[A-Za-z_][\w.]*))?`")


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def target(path: str, source: Path) -> Path | None:
    """Return the file that a path means where it stands; None if there is none."""
    for base in (ROOT, ROOT / "src", PRODUCT, source.parent, source.parent.parent, ROOT / "docs", ROOT / "tests"):
        if (base / path).is_file():
            return base / path
    return None


@cache
def names(root: Path) -> frozenset[str]:
    """Return the names of all Python files."""
    return frozenset(path.name for folder in (*FOLDERS, "tests") for path in (root / folder).rglob("*.py"))


def lost(source: Path) -> Iterator[str]:
    """Yield the pointers of a file that lead nowhere."""
    product = source.is_relative_to(PRODUCT)
    for number, line in enumerate(text_of(source).splitlines(), 1):
        for found in _POINTER.finditer(line):
            there = target(found["path"], source)
            name = (found["name"] or "").rpartition(".")[2]
            if there is None or (name and re.search(rf"\b{re.escape(name)}\b", text_of(there)) is None):
                yield f"{source.relative_to(ROOT)}:{number}: {found[0]} leads nowhere"
        for found in _BARE.finditer(line) if product else ():
            if found["name"] not in names(ROOT):
                yield f"{source.relative_to(ROOT)}:{number}: {found[0]} leads nowhere"


def main() -> int:
    files = [path for folder in FOLDERS for kind in ("*.py", "*.md") for path in sorted((ROOT / folder).rglob(kind))]
    files += sorted(ROOT.glob("*.md"))
    faults = [
        fault
        for path in files
        if path.relative_to(ROOT).as_posix() not in PAST and "_site" not in path.parts
        for fault in lost(path)
    ]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
