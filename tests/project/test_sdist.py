"""The source distribution: it has what a checkout has, and installs where there is no compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "build", ".*")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools leaves files in the folder that it builds."""
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "sources"
    copy.mkdir()
    grafted = re.findall(r"^graft (\S+)", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE)
    for name in grafted:
        shutil.copytree(ROOT / name, copy / name, ignore=NOT_SOURCES)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy / path.name)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(folder)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return next(folder.glob("*.tar.gz"))


def test_it_has_what_a_checkout_has(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "Makefile", "mkdocs.yml", "docs/index.md", "clients/go/go.mod", "clients/go/client.go", "src/buckram/py.typed",
        "src/buckram/core/entries/_hot.c", "src/buckram/gateway/console/api.js", "src/buckram/sim/__main__.py",
        "scripts/try_install.py", "tests/conftest.py", "deploy/helm/buckram/Chart.yaml",
    ):  # fmt: skip
        assert needed in names, f"{needed} is missing"
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []


def test_it_installs_without_a_compiler_and_works(sdist: Path, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    without = {key: value for key, value in os.environ.items() if not key.startswith(("BUCKRAM_", "PYTHON"))}
    without |= {"CC": "false", "CXX": "false"}
    # What it needs comes from the environment of the tests, and so does pip: nothing is fetched.
    words = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", str(sdist)]
    pip = [sys.executable, "-m", "pip", "--python", str(python), *words]
    known = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    Path(known, "of-the-tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = subprocess.run(pip, env=without, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    command = [str(python), str(ROOT / "scripts" / "try_install.py"), "--pure"]
    tried = subprocess.run(command, env=without, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stdout + tried.stderr[-4000:]
    assert tried.stdout.startswith(f"{known}/buckram: pure Python")
