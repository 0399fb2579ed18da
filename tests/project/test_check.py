"""Which tests `make check` chooses for a change."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.check import chosen, imported, module_of


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    texts = {
        "tests/core/ledgers/test_quorum.py": "from buckram.core.ledgers import quorum\n",
        "tests/core/test_all.py": "from buckram.core.ledgers import quorum, append\nfrom buckram.net import tcp\n",
        "tests/core/ledgers/test_append.py": "from buckram.core.ledgers.append import (\n    AppendWindow,\n)\n",
        "tests/spark/test_read.py": "from buckram.core.ledgers import quorum\n",
        "tests/docs/test_pages.py": 'PAGE = "docs/reference/api.md"\n',
    }
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    return sorted(Path("tests").rglob("test_*.py"))


def test_modules_are_named_as_tests_import_them() -> None:
    assert module_of("src/buckram/core/ledgers/quorum.py") == "buckram.core.ledgers.quorum"
    assert module_of("src/buckram/spark/__init__.py") == "buckram.spark"
    assert module_of("tests/support/net_kit.py") == "tests.support.net_kit"


def test_imports_over_several_lines_are_found() -> None:
    assert "buckram.core.ledgers.append" in imported(
        "from buckram.core.ledgers import (\n    append,\n    quorum as q,\n)\n"
    )
    assert imported("import buckram.net.tcp as tcp") == {"buckram.net.tcp"}


def test_tests_closest_to_the_change_come_first(tests: list[Path]) -> None:
    found = chosen(["src/buckram/core/ledgers/quorum.py"], tests, {}, 60.0)
    assert found == ["tests/core/ledgers/test_quorum.py", "tests/core/test_all.py"]


def test_a_changed_test_runs_first_and_spark_is_left_to_make_test(tests: list[Path]) -> None:
    found = chosen(["src/buckram/core/ledgers/quorum.py", "tests/core/ledgers/test_append.py"], tests, {}, 60.0)
    assert found == ["tests/core/ledgers/test_append.py", "tests/core/ledgers/test_quorum.py", "tests/core/test_all.py"]


def test_a_page_chooses_the_tests_that_name_it(tests: list[Path]) -> None:
    assert chosen(["docs/reference/api.md"], tests, {}, 60.0) == ["tests/docs/test_pages.py"]


def test_tests_that_exceed_the_remaining_time_are_skipped(tests: list[Path]) -> None:
    seconds = {"tests/core/ledgers/test_quorum.py": 100.0}
    assert chosen(["src/buckram/core/ledgers/quorum.py"], tests, seconds, 10.0) == ["tests/core/test_all.py"]
