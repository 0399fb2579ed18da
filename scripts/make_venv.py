"""Make a virtual environment and install into it, also where the system's Python has no ensurepip.

`python make_venv.py DIRECTORY [--group NAME]... PIP_ARGUMENT...`. Groups are those of pyproject.toml, read here because
pip knows them only from 25.1 on. Debian ships `ensurepip` apart (python3-venv); without it, pip is borrowed from the
system or fetched as a wheel from the package index, so that no root is needed. What pip fetches and installs is shown.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

MINIMUM = (3, 11)


def main() -> int:
    if sys.version_info < MINIMUM:
        print(f"Python {sys.version.split()[0]} is too old: 3.11 or newer is needed; set PYTHON=/path/to/python3.11")
        return 1
    parser = argparse.ArgumentParser(prog="make_venv.py", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--group", action="append", default=[], help="a dependency group of pyproject.toml")
    options, arguments = parser.parse_known_args()
    target: Path = options.directory
    began, python = time.monotonic(), target / "bin" / "python"
    if not python.exists() or subprocess.call([str(python), "-m", "pip", "--version"], stdout=subprocess.DEVNULL) != 0:
        make(target)
    code = install(python, [*arguments, *grouped(options.group)])
    if code == 0:
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file() and not path.is_symlink())
        print(f"{target}: {size / 1e6:,.0f} MB, made in {time.monotonic() - began:.0f} s", flush=True)
    return code


def grouped(names: list[str], pyproject: Path = Path("pyproject.toml")) -> list[str]:
    """The requirements of these dependency groups."""
    import tomllib  # after the check of Python's version, which 3.10 must live to see

    groups = tomllib.loads(pyproject.read_text())["dependency-groups"]
    found: list[str] = []
    for name in names:
        if name not in groups:
            raise SystemExit(f"{pyproject} has no dependency group {name!r}; known: {', '.join(groups)}")
        found += groups[name]
    return found


SHOWN = ("  Downloading ", "Building wheels", "Installing ", "Successfully built", "ERROR", "WARNING", "error", "    ")
"""Beginnings of pip's lines that say what takes time or went wrong."""


def install(python: Path, arguments: list[str]) -> int:
    """pip install, with what it does shown line by line."""
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command = [str(python), "-m", "pip", "install", *quiet]
    print(f"pip install {' '.join(arguments)}", flush=True)
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if line.startswith(SHOWN) and "Using cached" not in line and ".metadata (" not in line:
                print(f"  {line.partition(' (from ')[0].rstrip()[:160]}", flush=True)
    return pip.returncode


def make(target: Path) -> None:
    print(f"making {target} with {sys.executable}", flush=True)
    if subprocess.call([sys.executable, "-m", "venv", str(target)], stdout=subprocess.DEVNULL) == 0:
        return
    print("this Python has no ensurepip (on Debian it is in python3-venv): fetching pip itself")
    subprocess.check_call([sys.executable, "-m", "venv", "--clear", "--without-pip", str(target)])
    python = str(target / "bin" / "python")
    if subprocess.call([sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL) == 0:
        subprocess.check_call([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip"])
        return
    with tempfile.TemporaryDirectory() as folder:
        wheel = fetch_pip(Path(folder))
        # A pip wheel is a zip that Python can run, so it installs itself.
        subprocess.check_call([python, f"{wheel}/pip", "install", "--quiet", str(wheel)])


def fetch_pip(folder: Path) -> Path:
    """The newest pip wheel of the index that PIP_INDEX_URL names."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
    with urllib.request.urlopen(index, timeout=60) as answer:
        page = answer.read().decode()
    found = re.findall(r'href="([^"]+/pip-[0-9.]+-py3-none-any\.whl[^"]*)"', page)
    links: list[str] = [html.unescape(link) for link in found]
    if not links:
        raise SystemExit(f"no pip wheel at {index}; install python3-venv or set PYTHON to a Python that has ensurepip")
    newest = max(links, key=lambda link: [int(n) for n in re.findall(r"\d+", link.split("/pip-")[1].split("-py3")[0])])
    path = folder / newest.split("#")[0].rsplit("/", 1)[1]
    with urllib.request.urlopen(urllib.parse.urljoin(index, newest), timeout=120) as answer:
        path.write_bytes(answer.read())
    return path


if __name__ == "__main__":
    raise SystemExit(main())
