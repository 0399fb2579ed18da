"""The SHA-256 of every jar that Maven fetches for tests and benchmarks: `locks/jars.txt`.

Maven itself compares what it fetches with a sum that stands beside the file at the same place, which only finds damage.
`python -m javakit.hashes` writes the file anew (`make lock JARS=1`): it fetches all lines, 400 MB.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = Path(__file__).parents[1] / "locks" / "jars.txt"
HEADER = "# Written by `make lock JARS=1`: the jars of javakit/*.xml that were tested. javakit/hashes.py checks them.\n"


class WrongJar(Exception):
    """A jar is not the one that was tested, or was never written down: nothing is run with it."""


def check(jars: Iterable[Path], known: Mapping[str, str] | None = None) -> None:
    """Raise WrongJar if one of them is not as `known`, by default as the file has it."""
    known = read() if known is None else known
    for jar in jars:
        if jar.name not in known:
            raise WrongJar(f"{jar} is not in {FILE.name}: `make lock JARS=1` writes down what is tested from now on")
        if (found := digest(jar)) != known[jar.name]:
            raise WrongJar(
                f"{jar} has SHA-256 {found}, and the one that was tested has {known[jar.name]} ({FILE.name}): "
                "remove the file, and look at where Maven fetches from"
            )


def read(file: Path = FILE) -> dict[str, str]:
    """By name, which has the version in it."""
    lines = [line.split() for line in file.read_text().splitlines() if not line.startswith("#")]
    return {name: found for found, name in lines}


def write(jars: Iterable[Path], file: Path = FILE) -> int:
    """How many are written down. Two of one name and different content have no place in it."""
    found: dict[str, str] = {}
    for jar in jars:
        if found.setdefault(jar.name, digest(jar)) != digest(jar):
            raise WrongJar(f"two jars with the name {jar.name} differ: the file can tell them apart by names only")
    lines = [f"{found[name]}  {name}\n" for name in sorted(found)]
    draft = file.with_name(f"{file.name}.new")
    draft.write_text(HEADER + "".join(lines))
    draft.replace(file)
    return len(found)


def digest(jar: Path) -> str:
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    from javakit.programs import LINES, jars

    with tempfile.TemporaryDirectory(prefix="buckram-jars-") as folder:
        paths = {Path(jar) for line in LINES for jar in jars(Path(folder), line, checked=False)}
    sys.stdout.write(f"{FILE}: {write(paths)} jars\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
