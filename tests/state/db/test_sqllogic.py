"""Scripts in sqllogictest's format: the reader of them, and a share of them through the log. All run in `make soak`."""

from __future__ import annotations

import apsw
import pytest
from scripts.share import share_of_this_run
from tests.state.db.sqllogic.__main__ import HERE, files_of, run_all
from tests.state.db.sqllogic.generated import script
from tests.state.db.sqllogic.records import hashed, records, written

_QUERIES = 80


async def test_scripts_through_the_log_give_what_sqlite_gives() -> None:
    seed = share_of_this_run() or 0
    found = await run_all([("language.test", (HERE / "language.test").read_text()), (f"seed {seed}", script(seed, 80))])
    assert not found.differences, "\n".join(found.differences)
    assert not found.unexpected, "\n".join(found.unexpected)
    assert dict(found.refused) == {
        "temporary tables, views, triggers and indexes, and whatever else would be in the schema temp": 2
    }
    assert found.queries > _QUERIES
    assert found.errors > 15


def test_records_are_those_for_sqlite_without_comments() -> None:
    text = (
        "# a file\nonlyif mysql\nhalt\n\nhash-threshold 8\n\nstatement error\nSELECT\n  nothing\n\n"
        "skipif sqlite\nstatement ok\nDROP TABLE t\n\nonlyif sqlite\nquery IT rowsort x1\nSELECT 1,\n# of two\n'a'\n"
        "----\n1\na\n\nquery I\nSELECT 1 WHERE 0\n\nhalt\n\nstatement ok\nSELECT 9\n"
    )
    first, second, third = records(text)
    assert (first.sql, first.error, first.types) == ("SELECT\n  nothing", True, "")
    assert (second.sql, second.types, second.sort, second.label) == ("SELECT 1,\n'a'", "IT", "rowsort", "x1")
    assert second.values == ("1", "a")
    assert (third.sort, third.label, third.values) == ("nosort", "", None)
    with pytest.raises(ValueError, match="line 1: 'dance' begins no record"):
        list(records("dance"))


def test_values_are_written_as_scripts_have_them() -> None:
    def by(expression: str, value: object) -> object:
        return apsw.Connection(":memory:").execute(f"SELECT {expression}", (value,)).fetchone()[0]

    rows = [(None, 2, "b\n"), ("9x", 1.5, ""), (9.7, None, 3)]
    assert written("IRT", "nosort", rows, by) == ["NULL", "2.000", "b@", "9", "1.500", "(empty)", "9", "NULL", "3"]
    assert written("IRT", "rowsort", rows, by) == ["9", "1.500", "(empty)", "9", "NULL", "3", "NULL", "2.000", "b@"]
    assert written("TTT", "valuesort", rows[:1], by) == ["2", "NULL", "b@"]
    assert hashed(["1", "2"]) == "2 values hashing to 6ddb4095eb719e2a9f0a3f95677d24e0"


def test_files_that_are_not_known_are_refused(tmp_path: object) -> None:
    with pytest.raises(ValueError, match="0 files in"):
        files_of(HERE)
