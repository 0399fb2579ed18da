"""The Python code of docs/tutorial/spark.md runs from top to bottom, in the session of the tests."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import pytest
from _pytest.assertion.rewrite import rewrite_asserts
from pyspark.sql import SparkSession

from buckram.spark.clients import close_connections
from buckram.spark.db_options import DATABASE_OPTIONS
from buckram.spark.options import table
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "spark.md"
SNIPPET = re.compile(r"(<!-- not run: [^>]*-->\n *)?```python\n(.*?)```", re.DOTALL)
_MOST, _MOST_OF_A_LINE = 2000, 300
_NEWLINE = "\n"


@pytest.fixture
def own_cluster() -> Iterator[ThreadedCluster]:
    """A cluster for the page alone, because the page creates namespaces."""
    with ThreadedCluster(bookies=3) as running:
        yield running
        close_connections()


@pytest.fixture
def last_words() -> Iterator[list[str]]:
    """Print a failure after the test, so that pytest shows it below the long output of the JVM and its workers."""
    words: list[str] = []
    yield words
    if words:
        print("\n".join(words), file=sys.stderr)


@pytest.mark.share(5, "drivers")
def test_the_code_of_the_tutorial_runs(
    spark: SparkSession, last_words: list[str], own_cluster: ThreadedCluster, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"METADATA": own_cluster.uri}
    count = 0
    for code in snippets(PAGE.read_text()):
        if failure := failure_of(code, names):
            last_words.append(failure)
            # It is raised outside of the handler, or pytest would also print the page's error with the whole page.
            pytest.fail(failure.partition(_NEWLINE)[0], pytrace=False)
        count += 1
    assert count > 5
    assert names["spark"].sparkContext is spark.sparkContext
    if "client" in names:
        names["client"].close()


def test_the_tutorial_has_the_current_table_of_options() -> None:
    assert table() in PAGE.read_text()
    assert table(DATABASE_OPTIONS) in PAGE.read_text()


def test_a_failure_names_the_line_of_the_page_and_its_values() -> None:
    names: dict[str, Any] = {"found": ["x" * 9000], "more": {"a": 1}}
    code = next(snippets("# Page\n\n```python\nlow = 1\nassert found and \\\n    more['a'] < low\n```\n"))
    report = failure_of(code, names).splitlines()
    place = "docs/tutorial/spark.md"
    assert report[0].startswith(f"{place}:5: assert found and more['a'] < low: AssertionError: assert (['xxx")
    assert report[1].endswith("x'] and 1 < 1)")
    assert report[2].startswith("found = ['xxx")
    assert report[3:] == ["low = 1", "more = {'a': 1}"]
    assert max(map(len, report)) <= _MOST
    code = next(snippets("# Page\n\n```python\ndef f():\n    raise OSError('it is\\nso')\n\nf()\n```\n"))
    assert failure_of(code, names).splitlines() == [
        f"{place}:7: f(): OSError: it is", f"{place}:5: raise OSError('it is\\nso')", "it is", "so",
    ]  # fmt: skip


# -- running it -----------------------------------------------------------------------------------------------


def snippets(text: str) -> Iterator[str]:
    """Return the page's code with the line numbers of the page, so that an error names the line."""
    for found in SNIPPET.finditer(text):
        if not found[1]:
            yield "\n" * text[: found.start(2)].count("\n") + found[2]


def failure_of(code: str, names: dict[str, Any]) -> str:
    """Run the code; returns an empty text, or a report of the failure whose first line says the most important."""
    tree = ast.parse(code)
    rewrite_asserts(tree, code.encode())  # Assertions then show the values that they compare.
    try:
        exec(compile(tree, str(PAGE), "exec"), names)
    except Exception as error:
        places = [(line, _statement(code, line)) for line in _lines_of(error.__traceback__)]
        text = str(error)[:_MOST]
        line, statement = places[0]
        what = f"{type(error).__name__}: {text.partition(_NEWLINE)[0][:_MOST_OF_A_LINE]}"
        report = [f"docs/tutorial/spark.md:{line}: {_source(statement)}: {what}"]
        report += [f"docs/tutorial/spark.md:{line}: {_source(statement)}" for line, statement in places[1:]]
        report.append(text)
        if isinstance(error, AssertionError):
            report += _values(places[-1][1], names)
        return _NEWLINE.join(report)
    return ""


def _lines_of(trace: TracebackType | None) -> Iterator[int]:
    """Return the statements of the page at this line, from the outermost on."""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(PAGE):
            yield trace.tb_lineno
        trace = trace.tb_next


def _statement(code: str, line: int) -> ast.stmt:
    """Return the innermost statement at this line."""
    there = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt)]
    return max((node for node in there if node.lineno <= line <= (node.end_lineno or line)), key=lambda n: n.lineno)


def _source(statement: ast.stmt) -> str:
    return textwrap.shorten(ast.unparse(statement), _MOST_OF_A_LINE)


def _values(statement: ast.stmt, names: Mapping[str, Any]) -> Iterator[str]:
    """Return the values of the statement's names; pytest would shorten them too much."""
    used = dict.fromkeys(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
    for name in used:
        if name in names and not callable(names[name]) and not isinstance(names[name], ModuleType):
            yield f"{name} = {names[name]!r}"[:_MOST]
