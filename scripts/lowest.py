"""The lower ends of the wheel's ranges: `python scripts/lowest.py DIRECTORY [PYTEST_ARGUMENT...]`. Part of `make soak`.

Makes an environment in which the package and its extras have the oldest version of everything that pyproject.toml
names, and runs the tests in it that need no Spark and no Java. What tests themselves need is as locked. uv resolves, as
for `make lock`; the exit code is that of pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.lock import fetch_uv
from scripts.locks import LOCKS, ROOT, Lock, entries, grouped, name_of, path_of, pyproject, requirements

EXTRAS = tuple(extra for extra in LOCKS["all"].extras if extra not in ("connect", "jre", "spark"))
"""Extras that are tested. The others pin their versions, or need a Java."""
TOOLS = ("hypothesis", "py-spy", "pytest", "pytest-asyncio", "pytest-xdist", "setuptools")
"""Packages of the group `dev` that are installed. The others require newer versions of Buckram's own dependencies."""
TESTS = (
    "core",
    "client",
    "bookie",
    "metadata",
    "streams",
    "state/db",
    "sql",
    "serve/http",
    "serve/gateway",
    "files",
    "runtime/telemetry",
    "cli",
)


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    uv = fetch_uv(folder / "uv")
    python = make(uv, folder / "venv")
    chosen = sys.argv[2:] or [f"tests/{name}" for name in TESTS]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not spark", *chosen]
    # One of many shares: other versions of packages break everything or nothing.
    environment = {key: value for key, value in os.environ.items() if key not in ("CI", "BUCKRAM_SOAK")}
    return subprocess.call(command, cwd=ROOT, env={**environment, "BUCKRAM_SHARE": "0"})


def make(uv: Path, target: Path) -> Path:
    """Return the Python of the environment; raises SystemExit if there is no such choice of versions."""
    oldest, installed = target.with_suffix(".in"), target.with_suffix(".txt")
    installed.unlink(missing_ok=True)  # uv would prefer what it finds there
    oldest.write_text("\n".join(wanted()) + "\n")
    resolve = [str(uv), "pip", "compile", str(oldest), "-o", str(installed), "--resolution", "lowest-direct"]
    install = [str(uv), "pip", "install", "--quiet", "--python", str(target)]
    steps = [
        [*resolve, "--python", sys.executable, "--no-header", "--no-annotate", "--no-emit-index-url", "--quiet"],
        [str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(target)],
        [*install, "-r", str(installed)],
        [*install, "--no-deps", "--no-build-isolation", "-e", str(ROOT)],
    ]
    for step in steps:
        if subprocess.call(step, cwd=ROOT) != 0:
            raise SystemExit(f"the lower ends of pyproject.toml do not go together: {' '.join(step[1:4])}")
    python = target / "bin" / "python"
    named = {name_of(one) for one in requirements(Lock(EXTRAS))}
    print(*(line for line in installed.read_text().splitlines() if name_of(line) in named), sep="\n", flush=True)
    return python


def wanted() -> list[str]:
    """Return the ranges of the package, and exact versions of what runs the tests."""
    versions = {name_of(entry): entry for entry in entries(path_of("setup").read_text())}
    tools = [versions[name] for name in map(name_of, grouped(pyproject()["dependency-groups"], "dev")) if name in TOOLS]
    return [*requirements(Lock(EXTRAS)), *tools]


if __name__ == "__main__":
    raise SystemExit(main())
