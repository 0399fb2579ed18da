"""docs/tutorial/spark.md is a program: its Python runs here from top to bottom, in the session of the tests."""

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
from buckram.spark.options import table
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "spark.md"
SNIPPET = re.compile(r"(<!-- not run: [^>]*-->\n *)?```python\n(.*?)```", re.DOTALL)
_MOST, _MOST_OF_A_LINE = 2000, 300
_NEWLINE = "\n"


@pytest.fixture
def own_cluster() -> Iterator[ThreadedCluster]:
    """The page makes namespaces: it needs a cluster of its own."""
    with ThreadedCluster(bookies=3) as running:
        yield running
        close_connections()


@pytest.fixture
def last_words() -> Iterator[list[str]]:
    """Said when the test is over: pytest shows it below all that the JVM and its workers have written, which is much
    even where all is well."""
    words: list[str] = []
    yield words
    if words:
        print("\n".join(words), file=sys.stderr)


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
            # Not from the handler: pytest would tell of the error itself, too, with the whole page as its source.
            pytest.fail(failure.partition(_NEWLINE)[0], pytrace=False)
        count += 1
    assert count > 5
    assert names["spark"].sparkContext is spark.sparkContext
    if "client" in names:
        names["client"].close()


def test_the_tutorial_has_the_current_table_of_options() -> None:
    assert table() in PAGE.read_text()


def test_a_failure_names_the_line_of_the_page_and_its_values() -> None:
    names: dict[str, Any] = {"found": ["x" * 9000], "more": {"a": 1}}
    code = next(snippets("# Page\n\n```python\nlow = 1\nassert found and \\\n    more['a'] < low\n```\n"))
    told = failure_of(code, names).splitlines()
    place = "docs/tutorial/spark.md"
    assert told[0].startswith(f"{place}:5: assert found and more['a'] < low: AssertionError: assert (['xxx")
    assert told[1].endswith("x'] and 1 < 1)")
    assert told[2].startswith("found = ['xxx")
    assert told[3:] == ["low = 1", "more = {'a': 1}"]
    assert max(map(len, told)) <= _MOST
    code = next(snippets("# Page\n\n```python\ndef f():\n    raise OSError('it is\\nso')\n\nf()\n```\n"))
    assert failure_of(code, names).splitlines() == [
        f"{place}:7: f(): OSError: it is", f"{place}:5: raise OSError('it is\\nso')", "it is", "so",
    ]  # fmt: skip


# -- running it -----------------------------------------------------------------------------------------------


def snippets(text: str) -> Iterator[str]:
    """Lines are those of the page, so that an error says where it is."""
    for found in SNIPPET.finditer(text):
        if not found[1]:
            yield "\n" * text[: found.start(2)].count("\n") + found[2]


def failure_of(code: str, names: dict[str, Any]) -> str:
    """Run it; empty if it ends well, else what is to be known of its end, the most important in the first line."""
    tree = ast.parse(code)
    rewrite_asserts(tree, code.encode())  # so that an assertion says what it compared
    try:
        exec(compile(tree, str(PAGE), "exec"), names)
    except Exception as error:
        places = [(line, _statement(code, line)) for line in _lines_of(error.__traceback__)]
        text = str(error)[:_MOST]
        line, statement = places[0]
        what = f"{type(error).__name__}: {text.partition(_NEWLINE)[0][:_MOST_OF_A_LINE]}"
        told = [f"docs/tutorial/spark.md:{line}: {_source(statement)}: {what}"]
        told += [f"docs/tutorial/spark.md:{line}: {_source(statement)}" for line, statement in places[1:]]
        told.append(text)
        if isinstance(error, AssertionError):
            told += _values(places[-1][1], names)
        return _NEWLINE.join(told)
    return ""


def _lines_of(trace: TracebackType | None) -> Iterator[int]:
    """Of the page, from the outermost on."""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(PAGE):
            yield trace.tb_lineno
        trace = trace.tb_next


def _statement(code: str, line: int) -> ast.stmt:
    """The innermost one at this line."""
    there = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt)]
    return max((node for node in there if node.lineno <= line <= (node.end_lineno or line)), key=lambda n: n.lineno)


def _source(statement: ast.stmt) -> str:
    return textwrap.shorten(ast.unparse(statement), _MOST_OF_A_LINE)


def _values(statement: ast.stmt, names: Mapping[str, Any]) -> Iterator[str]:
    """What its names are: pytest shortens more than is good for a report of a job."""
    used = dict.fromkeys(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
    for name in used:
        if name in names and not callable(names[name]) and not isinstance(names[name], ModuleType):
            yield f"{name} = {names[name]!r}"[:_MOST]
