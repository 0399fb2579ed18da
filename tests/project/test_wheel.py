"""What users install: a wheel with what they need, without what they do not, that works outside a checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from scripts.check_wheel import faults

ROOT = Path(__file__).parents[2]
IMPORT_ALL = """
import importlib, pkgutil, sys
import buckram
assert buckram.__file__.startswith(sys.argv[1]), buckram.__file__
for module in pkgutil.walk_packages(buckram.__path__, "buckram."):
    if module.name.startswith(("buckram.spark", "buckram.jobs")) or module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        assert error.name in ("pyarrow", "fsspec"), error  # extras
assert not [name for name in sys.modules if name.startswith(("buckram.sim", "buckram.chaos"))]
"""


def test_the_wheel_has_what_users_need_and_nothing_else(wheel: Path) -> None:
    assert faults(wheel) == []


def test_one_wheel_serves_every_python_from_3_11_on(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        compiled = [name for name in archive.namelist() if re.search(r"\.(so|pyd)$", name)]
    if not compiled:
        pytest.skip("there is no C compiler here")
    assert "-cp311-abi3-" in wheel.name
    assert compiled == ["buckram/core/entries/_hot.abi3.so"]


@pytest.mark.share(3, "installations")
def test_every_module_of_the_wheel_can_be_imported_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-c", IMPORT_ALL, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_readme_on_an_index_page_names_files_of_the_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    addresses = [value.rpartition(", ")[2] for value in metadata.get_all("Project-URL", [])]
    body = str(metadata.get_payload())
    linked = [
        link.partition("#")[0] for url in addresses for link in re.findall(rf"\]\({re.escape(url)}/([^)]+)", body)
    ]
    named = linked + re.findall(r"`(docs/[^`#]+)`", body)
    assert len(named) >= 5
    assert [path for path in named if not (ROOT / path).exists()] == []
    grafted = (ROOT / "MANIFEST.in").read_text()
    assert linked or "graft docs" in grafted, "who has the source distribution must have the pages"


@pytest.mark.parametrize("address", ["https://buckram.example/source", "https://www.example.com/buckram"])
def test_an_address_that_leads_nowhere_is_refused(wheel: Path, tmp_path: Path, address: str) -> None:
    assert faults(_with_address(wheel, tmp_path, address)) == [
        f"{address} is an example address: set [project.urls] in pyproject.toml"
    ]


def test_an_address_that_may_lead_somewhere_is_taken(wheel: Path, tmp_path: Path) -> None:
    assert faults(_with_address(wheel, tmp_path, "https://forge.invalid/buckram/examples")) == []


def _with_address(wheel: Path, folder: Path, address: str) -> Path:
    """A copy of the wheel with one more address in its metadata."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith(".dist-info/METADATA"):
                content = content.replace(b"Project-URL:", f"Project-URL: Home, {address}\nProject-URL:".encode(), 1)
            new.writestr(name, content)
    return copy


@pytest.mark.parametrize(
    "name", ["buckram/sim/__init__.py", "buckram/chaos/run.py", "tests/conftest.py", "buckram/core/x.c"]
)
def test_a_file_that_is_not_for_users_is_reported(wheel: Path, tmp_path: Path, name: str) -> None:
    spoilt = tmp_path / wheel.name
    spoilt.write_bytes(wheel.read_bytes())
    with zipfile.ZipFile(spoilt, "a") as archive:
        archive.writestr(name, "")
    assert faults(spoilt) == [f"{name} is not for users"]
