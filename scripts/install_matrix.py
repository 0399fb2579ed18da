"""Installs a wheel or a source distribution by plain pip into empty environments, and tries there what users have.

`python scripts/install_matrix.py [--extra NAME]... [--python VERSION]... [--no-sdist]`, from a checkout: every extra
alone and none, the source distribution, and each Python that is here. The last line is JSON; what could not be run is
`not_run` there, and is no success. In each environment: the help of every command, every public import
(`public_imports.py`), and the README from its top to its bottom.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support.page_kit import bare_environment, run_pages

ROOT = Path(__file__).resolve().parents[1]
NONE = "none"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
COMMAND_S, INSTALL_S = 180, 1500
BY_HAND: tuple[tuple[tuple[str, ...], int, str], ...] = (
    ((), 2, "Usage: buckram"),
    (("-h",), 0, "Usage: buckram"),
    (("--help",), 0, "Usage: buckram"),
    (("db",), 2, "Usage: buckram db"),
    (("misspelt",), 2, "No such command"),
    (("version",), 0, "buckram, version"),
)
"""Arguments of the command in a process of its own, the expected exit code, and a text of its output."""


@dataclass(frozen=True)
class Outcome:
    """Result of one environment. Sizes in MB: of the archives that pip fetched, and on disk."""

    name: str
    ok: bool
    seconds: float
    fetched: float
    on_disk: float
    faults: tuple[str, ...] = ()


def project() -> dict[str, dict[str, list[str]]]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(table, dict)
    return table


def clean_sources(target: Path) -> Path:
    """Return a copy of what the checkout has under version control, with its changes: what a clone has, and no
    leftovers.

    Where there is no version control, as in a source distribution, all but what builds and runs leave behind.
    """
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if not (ROOT / ".git").exists():
        left = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "build", ".*")
        shutil.copytree(ROOT, target, ignore=left, dirs_exist_ok=True)
        return target
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def build(kind: str, sources: Path, folder: Path, env: Mapping[str, str] | None = None) -> Path:
    """Return a "wheel" or an "sdist" of these sources, with the setuptools that is installed here."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    words = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(words, cwd=sources, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the {kind} was not built: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return folder / done.stdout.split()[-1]


def make(place: Path, requirement: str, python: str = sys.executable, wheels: Path | None = None) -> None:
    """Make an empty environment with this installed by pip; from the folder of wheels only, if one is given."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True, timeout=COMMAND_S)
    pip(place, "install", requirement, wheels=wheels)


def pip(place: Path, verb: str, *words: str, wheels: Path | None = None) -> str:
    """Run pip on this environment from outside of it and return its output. Raises RuntimeError if it fails."""
    offline = ["--no-index", "--find-links", str(wheels)] if wheels is not None else []
    command = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), verb]
    command += ["--quiet", "--disable-pip-version-check", "--no-input", *offline, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode:
        raise RuntimeError(f"pip {verb} {' '.join(words)}: {done.stderr[-1500:]}")
    return done.stdout


def installed(place: Path) -> set[str]:
    """Return the packages of an environment, each with its version."""
    return {_plain(path.stem) for path in place.glob("lib/python*/site-packages/*.dist-info")}


def would_install(place: Path, requirement: str, wheels: Path) -> set[str]:
    """Return the packages that pip would install for this into an empty environment."""
    words = ("--dry-run", "--ignore-installed", "--report", "-", requirement)
    report = json.loads(pip(place, "install", *words, wheels=wheels))
    return {_plain(f"{one['metadata']['name']}-{one['metadata']['version']}") for one in report["install"]}


def _plain(name: str) -> str:
    return re.sub(r"[-_]+", "-", name).lower()


def tried(place: Path, extra: str) -> list[str]:
    """Return the faults of an environment that has this extra alone, one sentence each."""
    found: list[str] = []
    with tempfile.TemporaryDirectory() as empty:
        folder = Path(empty)
        env = bare_environment(place / "bin", folder)
        for arguments, code, text in BY_HAND:
            done = run([str(place / "bin" / "buckram"), *arguments], folder, env)
            said = done.stdout + done.stderr
            if done.returncode != code or text not in said or "internal error" in said:
                found.append(f"buckram {' '.join(arguments)}: exit code {done.returncode}: {said[-300:]}")
        python = str(place / "bin" / "python")
        for script, words in (("walk_help.py", ()), ("public_imports.py", (extra,))):
            done = run([python, "-P", str(ROOT / "scripts" / script), *words], folder, env)
            if done.returncode:
                found.append(f"{script}: {(done.stdout + done.stderr)[-1500:]}")
        where = run([python, "-P", "-c", "import buckram; print(buckram.__file__)"], folder, env).stdout.strip()
        if not where.startswith(str(place)):
            found.append(f"buckram comes from {where}")
        found += without_extra(place, folder, env)
    return found


def without_extra(place: Path, folder: Path, env: Mapping[str, str]) -> list[str]:
    """Return the faults of missing extras: `buckram version` has to list each with the line that installs it, and a
    command that needs it has to name it and exit with code 2."""
    shown = run([str(place / "bin" / "buckram"), "version", "--json"], folder, env)
    missing = {one["extra"]: one["install"] for one in json.loads(shown.stdout)["missing_extras"]}
    found = [f"{extra}: {line}" for extra, line in missing.items() if line != f"pip install 'buckram[{extra}]'"]
    uri = f"sqlite://{folder / 'none' / 'm.db'}"
    commands = {
        "security": ["token", "show", "no-token"],
        "spark": ["job", "scrub", "--metadata", uri],
    }
    for extra, words in commands.items():
        if extra in missing:
            done = run([str(place / "bin" / "buckram"), *words], folder, env)
            line = f"needs the extra {extra}: pip install 'buckram[{extra}]'"
            if done.returncode != 2 or line not in done.stderr:
                found.append(f"buckram {' '.join(words)}: exit code {done.returncode}: {done.stderr[-300:]}")
    return found


def readme(place: Path, spark: bool) -> list[str]:
    """Return the failures of the README's blocks, run in their order beside one cluster."""
    with tempfile.TemporaryDirectory() as folder:
        page = ROOT / "README.md"
        done = run_pages([page], bin=place / "bin", folder=Path(folder), spark=spark, alone=True)
    if not done:
        return ["README: nothing of it ran"]
    return [f"README: {one}" for one in done if one.failure]


def run(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(words), cwd=folder, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=COMMAND_S,
    )  # fmt: skip


def python_of(version: str) -> str | None:
    """Return a Python of this version that runs; a name on the PATH may lead nowhere."""
    homes = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for path in [str(home) for home in homes] + [shutil.which(f"python{version}") or ""]:
        with_version = re.compile(rf"Python {re.escape(version)}\.")
        if path:
            said = subprocess.run([path, "--version"], capture_output=True, text=True)
            if said.returncode == 0 and with_version.match(said.stdout):
                return path
    return None


def fetched(place: Path, requirement: str) -> float:
    """MB of all archives that pip fetches for this, the package's own wheel among them."""
    with tempfile.TemporaryDirectory() as folder:
        pip(place, "download", "--dest", folder, requirement)
        return sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6


def one(name: str, source: Path, extra: str, python: str = sys.executable) -> Outcome:
    """Make one environment, try it, and take it away."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place, size, archives = Path(folder) / "env", 0.0, 0.0
        try:
            requirement = str(source) + ("" if extra == NONE else f"[{extra}]")
            make(place, requirement, python)
            files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
            size = sum(path.stat().st_size for path in files) / 1e6
            archives = fetched(place, requirement)
            faults = tried(place, extra) + readme(place, spark=extra == "spark")
        except (RuntimeError, subprocess.SubprocessError, OSError, ValueError, AssertionError) as error:
            faults = [f"{type(error).__name__}: {error}"]
    return Outcome(
        name, not faults, round(time.monotonic() - began, 1), round(archives, 1), round(size, 1), tuple(faults)
    )


def main() -> int:
    extras = [NONE, *project()["optional-dependencies"]]
    parser = argparse.ArgumentParser(prog="install_matrix.py", description=__doc__)
    parser.add_argument("--extra", action="append", choices=extras, help="only this one; repeatable")
    parser.add_argument("--python", action="append", help="only these versions; repeatable")
    parser.add_argument("--no-sdist", action="store_true", help="leave the source distribution out")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    not_run: dict[str, str] = {}

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        print(f"{outcome.name}: {'well' if outcome.ok else outcome.faults}, {outcome.seconds} s", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        sources = clean_sources(Path(folder) / "clone")
        wheel, sdist = (build(kind, sources, Path(folder)) for kind in ("wheel", "sdist"))
        for extra in options.extra or extras:
            note(one(extra, wheel, extra))
        if not options.no_sdist:
            note(one("sdist", sdist, NONE))
        for version in options.python or PYTHONS:
            if (python := python_of(version)) is None:
                not_run[f"python{version}"] = f"there is no Python {version} here"
            else:
                note(one(f"python{version}", wheel, NONE, python))
    ok = bool(outcomes) and all(outcome.ok for outcome in outcomes)
    print(json.dumps({"ok": ok, "environments": [asdict(outcome) for outcome in outcomes], "not_run": not_run}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
