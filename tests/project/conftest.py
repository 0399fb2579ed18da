"""One wheel and one source distribution, built once as a release builds them, for all who look into them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scripts.install_matrix import build, clean_sources


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone has. setuptools leaves files in the folder that it builds, so that it is a copy."""
    return clean_sources(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="session")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiled = {"BUCKRAM_STRICT_C": "1", "BUCKRAM_REQUIRE_COMPILED": "1"} if shutil.which("cc") else {}
    return build("wheel", sources, tmp_path_factory.mktemp("wheel"), compiled)


@pytest.fixture(scope="session")
def sdist(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", sources, tmp_path_factory.mktemp("sdist"))
