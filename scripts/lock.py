"""Write the files of `locks/` anew: `make lock`, or `python scripts/lock.py [--upgrade] [--jars] [NAME...]`.

Versions that are there and still fit stay; `--upgrade` takes the newest that fit. uv resolves, for every system and
Python at once; it is locked itself, and fetched into an environment of its own. `--jars` has Maven fetch every jar that
tests and benchmarks use, 400 MB, and writes their hashes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.locks import FOLDER, LOCKS, PYTHONS, ROOT, path_of, pyproject, requirements

HEADER = "# Written by `make lock` from the ranges of pyproject.toml; scripts/locks.py says what it is for.\n"
OPTIONS = ("--universal", "--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header", "--quiet")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/lock.py", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="the newest versions that fit, not those that are there")
    parser.add_argument("--jars", action="store_true", help="also the jars that Maven fetches")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(LOCKS)}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="buckram-lock-") as folder:
        uv = fetch_uv(Path(folder))
        # A dictionary's order is that of its table: `all` comes first, and the others take its versions.
        for name in options.names or LOCKS:
            print(f"{path_of(name)}: {write(uv, name, upgrade=options.upgrade)} packages", flush=True)
    if options.jars:
        return subprocess.call([sys.executable, "-m", "javakit.hashes"], cwd=ROOT)
    return 0


def fetch_uv(folder: Path) -> Path:
    """Return the program that the lock file named `lock` has; at the very first time the newest of its range."""
    target = folder / "venv"
    if path_of("lock").exists() and path_of("build").exists():
        subprocess.check_call([sys.executable, str(ROOT / "scripts" / "make_venv.py"), str(target), "--lock", "lock"])
    else:
        subprocess.check_call([sys.executable, "-m", "venv", str(target)])
        wanted = requirements(LOCKS["lock"])
        subprocess.check_call([str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", *wanted])
    return target / "bin" / "uv"


def write(uv: Path, name: str, *, upgrade: bool) -> int:
    """Resolve one file; how many packages it has then. What is there is replaced only when all went well."""
    lock, path = LOCKS[name], path_of(name)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        draft = Path(folder) / "resolved.txt"
        if path.exists():
            draft.write_text(path.read_text())  # uv prefers the versions that it finds there
        oldest = ".".join(map(str, PYTHONS[0]))
        command = [str(uv), "pip", "compile", "-", "-o", str(draft), "--python-version", oldest, *OPTIONS]
        if not lock.apart and name != "all":
            command += ["--constraint", str(path_of("all"))]
        if upgrade:
            command.append("--upgrade")
        wanted = "\n".join(requirements(lock, pyproject()))
        subprocess.run(command, input=wanted, text=True, check=True, cwd=ROOT)
        text = draft.read_text()
        draft.write_text(HEADER + text)
        draft.replace(path)
    return sum("==" in line for line in text.splitlines())


if __name__ == "__main__":
    raise SystemExit(main())
