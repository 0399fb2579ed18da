"""What `pip install buckram` gives: an empty environment with a wheel, from a folder of wheels without an index.

The folder is `.venv/wheels`; where it lacks a wheel that the core needs, pip fetches it once. `make soak` tries all
extras, the source distribution and other Pythons (`scripts/install_matrix.py`).
"""

from __future__ import annotations

import fcntl
import importlib
import re
import subprocess
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts.install_matrix import NONE, installed, make, pip, project, python_of, readme, run, tried, would_install
from scripts.public_imports import BROUGHT_BY, CORE, MODULES, NAMES, judged, needed_by
from tests.support.page_kit import bare_environment

from buckram.cli.shared.exits import Exit, fault_of
from buckram.extras import BRINGS, needs
from buckram.extras import MODULES as BROUGHT

ROOT = Path(__file__).parents[2]
WHEELS = Path(sys.prefix) / "wheels"
CORE_MODULES = ("apsw", "httptools", "starlette", "uvicorn", "zstandard")
"""What extras and the core have both."""


def core_wheels() -> Path:
    """The folder, filled. One process at a time; without a network it must have been filled before."""
    WHEELS.mkdir(exist_ok=True)
    wanted = "\n".join(project()["dependencies"])
    stamp = WHEELS / f"filled-{sys.version_info[0]}.{sys.version_info[1]}"
    with (WHEELS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "-w", str(WHEELS)]
            done = subprocess.run([*command, *wanted.splitlines()], capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{WHEELS} was not filled, which needs the index once: {done.stderr[-1500:]}"
            stamp.write_text(wanted)
    return WHEELS


@pytest.mark.share(3, "installations")
def test_an_installed_wheel_gives_what_the_readme_shows(wheel: Path, tmp_path: Path) -> None:
    place, wheels = tmp_path / "env", core_wheels()
    make(place, str(wheel), wheels=wheels)
    assert tried(place, NONE) == []
    assert readme(place, spark=False) == []
    assert plugin_faults(place, tmp_path) == []
    before = installed(place)
    for extra in ("serve", "db"):
        # The same packages as without an extra: what was tried above holds for an environment of its own, too.
        assert would_install(place, f"{wheel}[{extra}]", wheels) == before
        pip(place, "install", f"{wheel}[{extra}]", wheels=wheels)
        assert tried(place, extra) == []
    assert installed(place) == before


def plugin_faults(place: Path, folder: Path) -> list[str]:
    """What pytest, put beside the packages of this environment, says of a test with the fixture of buckram."""
    beside = folder / "beside"
    beside.mkdir()
    for name in ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging"):
        found = find_spec(name)
        assert found is not None
        assert found.origin is not None
        there = Path(found.origin) if found.submodule_search_locations is None else Path(found.origin).parent
        (beside / there.name).symlink_to(there)
    (folder / "test_it.py").write_text("def test_it(buckram_cluster):\n    assert buckram_cluster.uri\n")
    env = bare_environment(place / "bin", folder) | {"PYTHONPATH": str(beside)}
    code = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'test_it.py']))"
    python = str(place / "bin" / "python")
    done = run([python, "-P", "-c", code], folder, env)
    found_points = run([python, "-P", str(ROOT / "scripts" / "public_imports.py")], folder, env)
    return [one.stdout + one.stderr for one in (done, found_points) if one.returncode]


def test_the_extras_db_and_serve_repeat_the_core() -> None:
    table = project()
    for extra in ("db", "serve"):
        assert set(table["optional-dependencies"][extra]) <= set(table["dependencies"])


def test_each_extra_says_what_it_brings() -> None:
    assert set(project()["optional-dependencies"]) == set(BRINGS)
    assert set(BROUGHT.values()) <= set(BRINGS)


def test_every_command_has_help_where_all_of_them_are_missing() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "walk_help.py"), "--without", *BROUGHT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) > 150


def test_a_command_that_lacks_its_extra_names_it_and_is_a_wrong_use() -> None:
    code = (
        "import sys; from scripts.walk_help import Absent; sys.meta_path.insert(0, Absent(['jwt', 'apsw']))\n"
        "from buckram.cli.app import run; sys.exit(run(['token', 'show', 'x']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    said = "buckram: buckram token needs the extra security: pip install 'buckram[security]'\n"
    assert done.stderr == said


def test_a_missing_package_of_an_extra_is_no_bug_of_buckram() -> None:
    fault = fault_of(ModuleNotFoundError("No module named 'apsw.ext'", name="apsw.ext"))
    assert fault.exit_code == Exit.USAGE
    assert "needs the extra db: pip install 'buckram[db]'" in fault.message
    assert fault_of(ModuleNotFoundError("No module named 'other'", name="other")).exit_code == Exit.INTERNAL


def public_modules() -> set[str]:
    """Packages that say what is public, what other programs load by name, and what pages for users import."""
    inits = [path for path in (ROOT / "src").rglob("__init__.py") if "\n__all__ = " in path.read_text()]
    found = {".".join(path.parent.relative_to(ROOT / "src").parts) for path in inits}
    found = {name for name in found if not name.startswith(("buckram.sim", "buckram.chaos"))}  # in no wheel
    points = [
        point for point in distribution("buckram").entry_points if point.group not in ("console_scripts", "pytest11")
    ]
    found |= {point.module for point in points}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("tutorial/*.md"), *(ROOT / "docs").glob("howto/*.md")]:
        found |= set(re.findall(r"^ *(?:from|import) (buckram[\w.]*)", page.read_text(), re.MULTILINE))
    return found


def test_every_public_module_has_a_row_in_the_table_of_imports() -> None:
    assert sorted(public_modules() - set(MODULES)) == [], "scripts/public_imports.py says which extra each needs"
    assert set(MODULES.values()) - {CORE} == set(BROUGHT_BY)


def test_every_documented_module_and_no_other_name_is_in_the_table() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert set(re.findall(r"^## (buckram[\w.]*)$", page, re.MULTILINE)) <= set(MODULES)
    for name in NAMES:
        module, _, own = name.rpartition(".")
        assert own in importlib.import_module(module).__all__
        assert needed_by(module, own) != MODULES[module]


def test_all_that_is_public_can_be_imported_with_all_extras_and_says_what_it_needs_without() -> None:
    script = str(ROOT / "scripts" / "public_imports.py")
    modules = sorted(BROUGHT)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from scripts.walk_help import Absent; from scripts import public_imports\n"
        f"sys.meta_path.insert(0, Absent({sorted(set(modules) - set(CORE_MODULES))}))\n"
        "wrong = public_imports.faults(set()); sys.exit('\\n'.join(wrong) if wrong else 0)"
    )
    for words in ([script, *BRINGS], ["-c", code]):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_said_of_a_missing_extra_is_a_fault() -> None:
    silent = ModuleNotFoundError("No module named 'fsspec'", name="fsspec")
    told = ModuleNotFoundError(needs("it", "fsspec"), name="fsspec")
    assert judged("it", "fsspec", silent, set())
    assert judged("it", "fsspec", told, set()) == []
    assert judged("it", "fsspec", told, {"history"}), "history brings fsspec"
    assert judged("it", CORE, told, set())


def test_only_one_module_has_the_line_that_installs_an_extra() -> None:
    written = [path for path in (ROOT / "src").rglob("*.py") if "buckram[" in path.read_text()]
    assert [path.name for path in written] == ["extras.py"], "buckram.extras.needs() says it for all"


def test_a_python_that_is_not_there_is_not_found() -> None:
    assert python_of("3.99") is None
