"""What the container file builds runs a bookie, healthy and stopped in order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.support.container_kit import Build, Stage
from tests.support.http_kit import ask

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "container" / "Containerfile"
OFFLINE = "--no-deps --no-index --no-build-isolation --ignore-installed --no-compile --quiet"
"""The packages that it needs are those of the Python that runs the tests."""
PACKAGES = sysconfig.get_path("purelib")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Stage]:
    if shutil.which("gcc") is None:
        pytest.skip("NO GCC HERE: the container file is not carried out")
    build = Build(FILE, ROOT, tmp_path_factory.mktemp("image"), {"PIP_OPTIONS": OFFLINE}, {"PYTHONPATH": PACKAGES})
    return build, build.run()


@pytest.mark.share(3, "containers and alerts")
def test_it_runs_a_bookie_with_health_and_ends_in_order(built: tuple[Build, Stage], tmp_path: Path) -> None:
    _, stage = built
    environment = {
        **os.environ,
        **stage.environment,
        "PYTHONPATH": PACKAGES,
        "BUCKRAM_METADATA": f"sqlite://{tmp_path}/metadata.db",
        "BUCKRAM_BOOKIE_HOST": "127.0.0.1",
        "BUCKRAM_BOOKIE_PORT": "0",
        "BUCKRAM_BOOKIE_HTTP": "127.0.0.1:0",
    }
    program = stage.root / "opt/buckram/bin" / stage.entrypoint[0]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        child = subprocess.Popen(
            [str(program), *stage.command, "--json"], env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert child.stdout is not None
        said = child.stdout.readline()
        assert said, log.read_text()
        http = json.loads(said)["http"]
        assert ask(http, "GET", "/version").json["compiled"] == "yes"
        python, *words = stage.healthcheck
        check = [str(stage.root / "opt/buckram/bin" / python), *words]
        checked = {**environment, "BUCKRAM_BOOKIE_HTTP": http}
        assert subprocess.run(check, env=checked, check=False).returncode == 0
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
        assert subprocess.run(check, env=checked, capture_output=True, check=False).returncode == 1
    finally:
        child.kill()
        child.communicate()
    assert (stage.root / "data" / "bookie").is_dir()
    assert all(json.loads(line)["level"] for line in log.read_text().splitlines())


def test_it_runs_other_commands_from_its_own_packages(built: tuple[Build, Stage]) -> None:
    _, stage = built
    environment = {**os.environ, **stage.environment, "PYTHONPATH": PACKAGES}
    python = stage.root / "opt/buckram/bin/python"
    found = subprocess.run(
        [python, "-c", "import buckram; print(buckram.__file__)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=stage.root,
    )
    assert found.stdout.startswith(str(stage.root))


def test_it_does_not_run_as_root(built: tuple[Build, Stage]) -> None:
    build, stage = built
    assert stage.user == "10001:10001"
    assert any(call.startswith("useradd --system --uid 10001") for call in build.calls)
    assert any(call.startswith("chown 10001:10001") for call in build.calls)
