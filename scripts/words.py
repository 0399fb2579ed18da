"""Docstrings and notes that begin without a subject and a verb: "Of one gateway.", "What is older is not known."

`python scripts/words.py [--list] [--most PERCENT] [FOLDER]...` counts them by room: docstrings of modules, classes and
functions, and the notes under attributes and constants. A docstring begins with a verb ("Return the grade of a
bookie") or names the thing ("Time constant of the average, seconds"). What is taken for neither begins with a word of
`BARE`, or with a pronoun and nothing that it stands for. `--list` shows each with its place; with `--most` the exit
code is 1 if a room has more than that.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

SOURCES = (Path("src/buckram"), Path("simulator"), Path("chaos"), Path("bench"), Path("scripts"))
_BARE_WORDS = (
    "of what whether which where how when while until who whose whoever whatever wherever why with without for"
    " so as in by to from around at on beyond between behind before after beside below above besides only also"
    " those that these this then than if because and or but not none nobody nothing everything everybody"
    " somebody it they he she such same more less many much further about like there here once again always"
    " never"
)
BARE = frozenset(_BARE_WORDS.split())
"""First words of sentences that lack a subject or a verb, or whose subject stands in another place."""
_VERBS = "is|are|was|has|have|may|can|must|does|do|will|counts|needs|stays|stands|holds|ends|begins"
PLAIN = (
    # A clause before a whole sentence.
    re.compile(r"(for|in|by|with|without|before|after|if|when|while|until|where|because|as) [^.]*, ", re.I),
    re.compile(
        rf"(nobody|nothing|everything|everybody|somebody|this|these|those|it|they|there)( \w+){{0,2}} ({_VERBS})\b",
        re.I,
    ),
    re.compile(r"for (tests|programs|users|each|every)\b", re.I),
)
"""Beginnings that are taken for whole sentences all the same."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Found(NamedTuple):
    line: int
    kind: str
    """"module", "class", "function" or "note"."""
    text: str


def found_in(tree: ast.Module) -> Iterator[Found]:
    """Yield the docstrings and notes of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            text = ast.get_docstring(node)
            if text:
                kind = {ast.Module: "module", ast.ClassDef: "class"}.get(type(node), "function")
                yield Found(getattr(node, "lineno", 1), kind, text)
            body: list[ast.stmt] = node.body
            for before, after in pairwise(body):
                if isinstance(before, ast.Assign | ast.AnnAssign) and _is_text(after):
                    yield Found(after.lineno, "note", after.value.value)  # type: ignore[attr-defined]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_bare(text: str) -> bool:
    """Return whether a text begins without a subject and a verb."""
    first = " ".join(text.split())
    word = re.match(r"[A-Za-z']+", first)
    if word is None or word[0].lower() not in BARE:
        return False
    return not any(pattern.match(first) for pattern in PLAIN)


def room_of(path: Path) -> str:
    """Return the room of a file: two levels of a package, one beside it."""
    parts = path.parts
    return "/".join(parts[2:-1][:2] or parts[1:2]) if parts[:2] == ("src", "buckram") else parts[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", default=list(SOURCES))
    parser.add_argument("--list", action="store_true", help="show each with its place")
    parser.add_argument("--most", type=float, metavar="PERCENT", help="exit code 1 if a room has more than that")
    options = parser.parse_args()
    counted: Counter[str] = Counter()
    bare: Counter[str] = Counter()
    for folder in options.folders:
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
            for one in found_in(ast.parse(path.read_text(encoding="utf-8"))):
                counted[room_of(path)] += 1
                if is_bare(one.text):
                    bare[room_of(path)] += 1
                    if options.list:
                        print(f"{path}:{one.line}: {one.kind}: {' '.join(one.text.split())[:140]}")
    worst = 0.0
    for room, number in sorted(counted.items(), key=lambda row: -bare[row[0]] / row[1]):
        share = 100 * bare[room] / number
        worst = max(worst, share)
        print(f"{share:5.1f} %  {bare[room]:4} of {number:5}  {room}")
    total = sum(counted.values())
    print(f"{100 * sum(bare.values()) / max(total, 1):5.1f} %  {sum(bare.values()):4} of {total:5}  in all")
    return 1 if options.most is not None and worst > options.most else 0


if __name__ == "__main__":
    sys.exit(main())
