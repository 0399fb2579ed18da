"""Make a virtual environment with the tested packages, also where the system's Python has no ensurepip.

`python make_venv.py DIRECTORY --lock NAME...` installs what these files of `locks/` name (locks.py), pip itself first,
and nothing whose SHA-256 is not in them; sources are built with the setuptools that is locked, too. Debian ships
`ensurepip` apart (python3-venv); without it, pip is borrowed from the system or fetched as a wheel from the package
index, so that no root is needed. The output of pip is shown. A Python for which nothing was resolved gets the packages
that the ranges of pyproject.toml allow, with a warning.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.locks import LOCKS, PYTHONS, ROOT, merged, path_of, pinned, requirements

MINIMUM = PYTHONS[0]
OPTIONS = ("--disable-pip-version-check", "--no-input")
# Modules are compiled when they are first imported; most never are.
LOCKED = ("--no-deps", "--require-hashes", "--no-build-isolation", "--no-compile")
STORED = "[bdist_wheel]\ncompression = stored\n"
"""Settings for wheels that are built here and unpacked at once: compressing PySpark's would take half a minute."""
SAID_EVERY_S = 5.0


def main() -> int:
    if sys.version_info < MINIMUM:
        print(f"Python {sys.version.split()[0]} is too old: 3.11 or newer is needed; set PYTHON=/path/to/python3.11")
        return 1
    parser = argparse.ArgumentParser(prog="make_venv.py", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--lock", action="append", required=True, help=f"what goes into it: {', '.join(LOCKS)}")
    options = parser.parse_args()
    target: Path = options.directory
    began, python = time.monotonic(), target / "bin" / "python"
    if not python.exists() or subprocess.call([str(python), "-m", "pip", "--version"], stdout=subprocess.DEVNULL) != 0:
        make(target)
    code = install(python, options.lock)
    if code == 0:
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file() and not path.is_symlink())
        print(f"{target}: {size / 1e6:,.0f} MB, made in {time.monotonic() - began:.0f} s", flush=True)
    return code


def install(python: Path, names: Sequence[str]) -> int:
    """Put what these lock files have into the environment of `python`; pip's exit code."""
    version = version_of(python)
    apart = all(LOCKS[name].apart for name in names)
    with tempfile.TemporaryDirectory(prefix="buckram-setup-") as folder:
        if version in PYTHONS:
            print(f"  locks/{', '.join(names)}: what was tested, each archive with its SHA-256", flush=True)
            file = Path(folder, "locked.txt")
            file.write_text(merged(names if apart else ["build", *names]))
            # pip comes first, because the others are to be installed by the one that was tested.
            steps = [["--require-hashes", "--no-deps", "-r", str(path_of("build"))], [*LOCKED, "-r", str(file)]]
            if any(LOCKS[name].package for name in names):
                steps.append(["--no-deps", "--no-index", "--no-build-isolation", "-e", str(ROOT)])
        else:
            print(untested(version), flush=True)
            ranges = dict.fromkeys(one for name in ("build", *names) for one in requirements(LOCKS[name]))
            steps = [[*ranges, *(["-e", str(ROOT)] if any(LOCKS[name].package for name in names) else [])]]
        config = Path(folder, "distutils.cfg")
        config.write_text(STORED)
        environment = {**os.environ, "DIST_EXTRA_CONFIG": str(config)}
        return next((code for step in steps if (code := pip_install(python, step, environment))), 0)


def version_of(python: Path) -> tuple[int, int]:
    text = subprocess.check_output([str(python), "-c", "import sys; print(*sys.version_info[:2])"], text=True)
    major, minor = map(int, text.split())
    return major, minor


def untested(version: tuple[int, int]) -> str:
    known = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    return (
        f"\n  NOT WHAT WAS TESTED: locks/ is for Python {known}, and this is {version[0]}.{version[1]}. What the\n"
        "  ranges of pyproject.toml bring today is installed, without hashes. PYTHON=/path/to/python chooses another.\n"
    )


SHOWN = ("Building wheels", "Installing ", "Successfully built", "ERROR", "WARNING", "error", "    ")
"""Beginnings of pip's lines that are shown: they report slow steps and errors."""
FETCHED = re.compile(r"Downloading (?:\S*/)?(?P<file>[^/\s]+) \((?P<size>[\d.]+ [kM]?B)\)")
PROGRESS = re.compile(r"Progress (?P<done>\d+) of (?P<whole>\d+)")


def pip_install(python: Path, arguments: Sequence[str], environment: dict[str, str]) -> int:
    """Run pip install, showing its steps line by line and the progress of a large archive."""
    known = pip_version(python)
    # Lines that a program can read, from 24.1 on.
    bar = "raw" if known >= (24, 1) else "off"
    command = [str(python), "-m", "pip", "install", *OPTIONS, "--progress-bar", bar, *arguments]
    file, said = "", time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as pip:  # fmt: skip
        assert pip.stdout is not None
        for line in pip.stdout:
            if found := FETCHED.search(line):
                file, said = found["file"], time.monotonic()
                if ".metadata" not in line:
                    print(f"  fetching {file}, {found['size']}", flush=True)
            elif found := PROGRESS.match(line):
                if time.monotonic() - said >= SAID_EVERY_S:
                    done, whole = int(found["done"]), max(int(found["whole"]), 1)
                    print(f"  fetching {file}: {done / 1e6:,.0f} of {whole / 1e6:,.0f} MB", flush=True)
                    said = time.monotonic()
            elif line.startswith(SHOWN):
                print(f"  {line.partition(' (from ')[0].rstrip()[:160]}", flush=True)
    return pip.returncode


def pip_version(python: Path) -> tuple[int, ...]:
    """Return the version of the pip in its environment, (0,) if it is unknown."""
    done = subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"pip (\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else (0,)


def make(target: Path) -> None:
    """Make an environment with any pip; the tested one replaces it."""
    print(f"making {target} with {sys.executable}", flush=True)
    if pip_version(Path(sys.executable)) >= (22, 3):  # it knows --python
        subprocess.check_call([sys.executable, "-m", "venv", "--clear", "--without-pip", str(target)])
        borrowed = [sys.executable, "-m", "pip", "--python", str(target / "bin" / "python"), "install", "--quiet"]
        if subprocess.call([*borrowed, *OPTIONS, *build_tools()]) == 0:
            return
    if subprocess.call([sys.executable, "-m", "venv", "--clear", str(target)], stdout=subprocess.DEVNULL) == 0:
        return
    print("this Python has no ensurepip (on Debian it is in python3-venv): fetching pip itself")
    subprocess.check_call([sys.executable, "-m", "venv", "--clear", "--without-pip", str(target)])
    with tempfile.TemporaryDirectory() as folder:
        wheel = fetch_pip(Path(folder))
        # A pip wheel is a zip that Python can run, so it installs itself.
        python = str(target / "bin" / "python")
        subprocess.check_call([python, f"{wheel}/pip", "install", "--quiet", "--no-index", str(wheel)])


def build_tools() -> list[str]:
    return ["--no-deps", "--no-compile", "--require-hashes", "-r", str(path_of("build"))]


def fetch_pip(folder: Path) -> Path:
    """Fetch the locked wheel of pip from the index that PIP_INDEX_URL names."""
    version, hashes = pinned("build", "pip")
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
    with urllib.request.urlopen(index, timeout=60) as answer:
        page = answer.read().decode()
    file = f"pip-{version}-py3-none-any.whl"
    found = re.search(rf'href="([^"]*{re.escape(file)}[^"]*)"', page)
    if found is None:
        raise SystemExit(f"no {file} at {index}; install python3-venv or set PYTHON to a Python that has ensurepip")
    path = folder / file
    with urllib.request.urlopen(urllib.parse.urljoin(index, html.unescape(found[1])), timeout=120) as answer:
        path.write_bytes(answer.read())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest not in hashes:
        raise SystemExit(f"{file} from {index} has SHA-256 {digest}, which is not in {path_of('build')}: not used")
    return path


if __name__ == "__main__":
    raise SystemExit(main())
