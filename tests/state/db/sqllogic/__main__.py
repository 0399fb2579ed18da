"""Scripts of sqllogictest through the log: `python -m tests.state.db.sqllogic [--files FOLDER] [--queries N] [--seed
S]`.

Without FOLDER, those that are drawn from the seed and `language.test`. FOLDER is a checkout of SQLite's sqllogictest
(https://www.sqlite.org/sqllogictest, public domain): its select1 to select5 and its evidence files run as well, and
have to be those whose digest is known here. The last line is JSON; exit code 0 only if nothing differs from SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.state.db.sqllogic.generated import script
from tests.state.db.sqllogic.records import records
from tests.state.db.sqllogic.running import Found, run

from buckram.testing import cluster

HERE = Path(__file__).parent
FILES = ("test/select?.test", "test/evidence/*.test")
DIGEST = "7a5b3e1ff01499ec42b62fb2b6ed1c0ea50e82d37b882e5f2640eb202f3a3554"
"""Of all these files, by name and content: others may be newer, and what they give was not looked at."""
VARIABLE = "BUCKRAM_SQLLOGICTEST"
"""FOLDER for `make soak`."""


def scripts(folder: Path | None, seed: int, queries: int) -> Iterator[tuple[str, str]]:
    """Names and texts."""
    yield "language.test", (HERE / "language.test").read_text()
    yield f"seed {seed}", script(seed, queries)
    if folder is not None:
        yield from files_of(folder)


def files_of(folder: Path) -> list[tuple[str, str]]:
    """The files of a checkout. Raises ValueError if they are not those that are known."""
    paths = [path for pattern in FILES for path in sorted(folder.glob(pattern))]
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(folder)} {len(path.read_bytes())}\n".encode() + path.read_bytes())
    if digest.hexdigest() != DIGEST:
        raise ValueError(f"{len(paths)} files in {folder} have the digest {digest.hexdigest()}, known is {DIGEST}")
    return [(path.name, path.read_text()) for path in paths]


async def run_all(named: Sequence[tuple[str, str]]) -> Found:
    """Each on a database of its own."""
    found = Found()
    async with cluster(bookies=3) as bookies, bookies.client() as client:
        await client.namespaces.create("logic")
        for number, (name, text) in enumerate(named):
            async with client.namespace("logic").database(f"d{number}") as database:
                await database.lead()
                one = await run(name, records(text), database)
            print(f"{name}: {_summary(one)}", file=sys.stderr, flush=True)
            found.add(one)
    return found


def _summary(found: Found) -> dict[str, Any]:
    return {
        "statements": found.statements,
        "queries": found.queries,
        "errors": found.errors,
        "refused": dict(found.refused),
        "differences": len(found.differences),
        "unexpected": len(found.unexpected),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=Path, default=os.environ.get(VARIABLE) or None, help=f"default {VARIABLE}")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = asyncio.run(run_all(list(scripts(options.files, options.seed, options.queries))))
    for text in (*found.differences[:20], *found.unexpected[:20]):
        print(text, file=sys.stderr)
    print(json.dumps({"files": options.files is not None, **_summary(found)}))
    return 1 if found.differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
