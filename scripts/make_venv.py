"""Make a virtual environment and install into it, also where the system's Python has no ensurepip.

`python make_venv.py DIRECTORY PIP_ARGUMENT...`. Debian ships `ensurepip` apart (python3-venv); without it, pip is
borrowed from the system or fetched as a wheel from the package index, so that no root is needed.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

MINIMUM = (3, 11)


def main() -> int:
    if sys.version_info < MINIMUM:
        print(f"Python {sys.version.split()[0]} is too old: 3.11 or newer is needed; set PYTHON=/path/to/python3.11")
        return 1
    target, arguments = Path(sys.argv[1]), sys.argv[2:]
    python = target / "bin" / "python"
    if not python.exists() or subprocess.call([str(python), "-m", "pip", "--version"], stdout=subprocess.DEVNULL) != 0:
        make(target)
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    return subprocess.call([str(python), "-m", "pip", "install", *quiet, *arguments])


def make(target: Path) -> None:
    print(f"making {target} with {sys.executable}")
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
