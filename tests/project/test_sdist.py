"""The source distribution: it has what a checkout has, and installs where there is no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_it_has_what_a_checkout_has(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "Makefile", "mkdocs.yml", "docs/index.md", "clients/go/go.mod", "clients/go/client.go", "src/buckram/py.typed",
        "src/buckram/core/entries/_hot.c", "src/buckram/core/entries/_hot.h",
        "src/buckram/core/entries/_take_adds.c",
        "src/buckram/serve/gateway/console/api.js", "src/buckram/sim/__main__.py",
        "simulator/__main__.py",
        "scripts/try_install.py", "tests/conftest.py", "deploy/helm/buckram/Chart.yaml",
    ):  # fmt: skip
        assert needed in names, f"{needed} is missing"
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []


@pytest.mark.share(3, "installations")
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
