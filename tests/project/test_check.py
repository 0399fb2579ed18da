"""Which tests `make check` runs for a change, and what it says of changes that no quick test is about."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from scripts.check import told_of_unrun
from scripts.choice import Choice, TestFile, chosen, imported, module_of, nearest_chosen, read_tests
from scripts.nearest import Table, has_quick_tests, read_table
from scripts.timings import Outcome, read_outcomes

ROOT = Path(__file__).parents[2]
QUORUM = "src/buckram/core/ledgers/quorum.py"
TABLE = Table(
    {"core/ledgers/append": "core/test_all", "jobs/": "jobs/test_jobs", "core/ledgers/quorum": "core/test_other"},
    {"types": "records only"},
)


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, TestFile]:
    monkeypatch.chdir(tmp_path)
    body = "import pytest\ndef test_one(): pass\n"
    texts = {
        "tests/core/ledgers/test_quorum.py": body + "import os\n",
        "tests/core/test_all.py": "from buckram.core.ledgers import quorum, append\nfrom buckram.net import tcp\n"
        + body,
        "tests/core/test_import.py": "from buckram.core.ledgers import quorum\n" + body,
        "tests/core/test_other.py": body,
        "tests/core/test_slow.py": "from buckram.core.ledgers import quorum\nimport pytest\n"
        "pytestmark = pytest.mark.slow\ndef test_one(): pass\n",
        "tests/jobs/test_jobs.py": "import pytest\n@pytest.mark.spark\ndef test_one(): pass\n",
        "tests/docs/test_pages.py": 'PAGE = "docs/reference/api.md"\n' + body,
    }
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    for name in (QUORUM, "src/buckram/jobs/scrub.py", "src/buckram/types.py", "src/buckram/core/__main__.py"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("")
    return read_tests()


def choose(tests: Mapping[str, TestFile], *changes: str, most_s: float = 60.0, **seconds: float) -> Choice:
    return chosen(changes, tests, TABLE, {f"tests/core/{name}.py": needed for name, needed in seconds.items()}, most_s)


def test_modules_are_named_as_tests_import_them() -> None:
    assert module_of(QUORUM) == "buckram.core.ledgers.quorum"
    assert module_of("src/buckram/spark/__init__.py") == "buckram.spark"
    assert module_of("tests/support/net_kit.py") == "tests.support.net_kit"


def test_imports_over_several_lines_are_found() -> None:
    text = "from buckram.core.ledgers import (\n    append,\n    quorum as q,\n)\n"
    assert "buckram.core.ledgers.append" in imported(ast.parse(text))
    assert imported(ast.parse("import buckram.runtime.net.tcp as tcp")) == {"buckram.runtime.net.tcp"}


def test_the_mirrored_test_and_that_of_the_row_must_run_and_those_that_import_the_module_may(
    tests: Mapping[str, TestFile],
) -> None:
    found = choose(tests, QUORUM)
    assert found.must == ["tests/core/ledgers/test_quorum.py", "tests/core/test_other.py"]
    assert found.may == ["tests/core/test_import.py", "tests/core/test_all.py"]
    assert (found.left, found.untested) == (0, [])


def test_what_must_run_is_not_left_out_for_want_of_time(tests: Mapping[str, TestFile]) -> None:
    found = choose(tests, QUORUM, most_s=4.0, test_other=100.0)
    assert found.must == ["tests/core/ledgers/test_quorum.py", "tests/core/test_other.py"]
    assert (found.may, found.left) == ([], 2)


def test_a_changed_test_runs_first(tests: Mapping[str, TestFile]) -> None:
    found = choose(tests, QUORUM, "tests/core/test_import.py")
    assert found.must[0] == "tests/core/test_import.py"


def test_a_row_that_names_no_quick_test_gives_the_command(tests: Mapping[str, TestFile]) -> None:
    found = choose(tests, "src/buckram/jobs/scrub.py")
    assert found.must == []
    (line,) = found.untested
    assert line.startswith("src/buckram/jobs/scrub.py: no quick test is about it")
    assert line.endswith("-m pytest tests/jobs/test_jobs.py")
    (line,) = choose(tests, "tests/core/test_slow.py").untested
    assert line.endswith("-m pytest tests/core/test_slow.py")


def test_modules_without_a_test_are_told_with_the_reason_and_deleted_ones_are_not(
    tests: Mapping[str, TestFile],
) -> None:
    (line,) = choose(tests, "src/buckram/types.py").untested
    assert "records only" in line
    (line,) = choose(tests, "src/buckram/core/__main__.py").untested
    assert line.endswith("-m pytest tests/core")
    assert choose(tests, "src/buckram/core/gone.py").untested == []


def test_a_page_chooses_the_tests_that_name_it(tests: Mapping[str, TestFile]) -> None:
    found = choose(tests, "docs/reference/api.md")
    assert (found.must, found.may) == ([], ["tests/docs/test_pages.py"])


@pytest.mark.parametrize(
    ("text", "quick"),
    [
        ("def test_a(): pass", True),
        ("def helper(): pass", False),
        ("pytestmark = [pytest.mark.slow]\ndef test_a(): pass", False),
        ("@pytest.mark.spark\ndef test_a(): pass", False),
        ("@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.soak)])\ndef test_a(n): pass", False),
        ("LONG = pytest.mark.slow\n@LONG\ndef test_a(): pass\nasync def test_b(): pass", True),
        ("LONG = pytest.mark.slow\n@LONG\ndef test_a(): pass", False),
        ("class TestOne:\n    def test_a(self): pass", True),
    ],
)
def test_a_file_is_quick_if_a_test_of_it_has_no_mark(text: str, quick: bool) -> None:
    assert has_quick_tests(ast.parse(text)) is quick


def test_a_test_that_had_to_run_and_did_not_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ran.jsonl"
    path.write_text('["tests/a.py", ""]\n["tests/b.py", "Skipped: needs Java"]\n["tests/a.py", "Skipped: too old"]\n')
    outcomes = read_outcomes(path)
    assert outcomes == {"tests/a.py": Outcome(1, "Skipped: too old"), "tests/b.py": Outcome(0, "Skipped: needs Java")}
    about = {"tests/a.py": ["src/a.py"], "tests/b.py": ["src/b.py"], "tests/c.py": ["src/c.py"]}
    assert told_of_unrun(Choice(must=["tests/a.py", "tests/b.py"], about=about), outcomes)
    assert "src/b.py: tests/b.py was skipped: Skipped: needs Java" in capsys.readouterr().out
    assert not told_of_unrun(Choice(must=["tests/c.py"], about=about), outcomes)
    assert "src/c.py: no test of tests/c.py ran" in capsys.readouterr().out


def test_every_product_module_has_a_quick_test_that_must_run_or_a_line_that_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    every, table = read_tests(), read_table()
    modules = sorted(path.as_posix() for path in Path("src/buckram").rglob("*.py"))
    found = {module: nearest_chosen([module], every, table) for module in modules}
    assert [module for module, one in found.items() if bool(one.must) == bool(one.untested)] == []
    assert all(every[name].quick for one in found.values() for name in one.must)
    quick = sum(bool(one.must) for one in found.values())
    assert quick > 0.85 * len(modules), f"quick tests are about {quick} of {len(modules)} modules only"
