"""Where statements end, and which begin and end transactions; SQLite's own judgement beside it."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.db.sql_text import ClassifiedStatement, Kind, classify, is_single, placeholders, split


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("BEGIN", ClassifiedStatement(Kind.BEGIN, "deferred")),
        ("begin transaction;", ClassifiedStatement(Kind.BEGIN, "deferred")),
        ("BEGIN DEFERRED TRANSACTION", ClassifiedStatement(Kind.BEGIN, "deferred")),
        ("-- first\nBEGIN /* now */ IMMEDIATE ;", ClassifiedStatement(Kind.BEGIN, "immediate")),
        ("BEGIN EXCLUSIVE", ClassifiedStatement(Kind.BEGIN, "immediate")),
        ("BEGIN TRANSACTION READONLY", ClassifiedStatement(Kind.BEGIN, "readonly")),
        ("BEGIN READONLY", ClassifiedStatement(Kind.BEGIN, "readonly")),
        ("COMMIT", ClassifiedStatement(Kind.COMMIT)),
        ("END TRANSACTION", ClassifiedStatement(Kind.COMMIT)),
        (";; ROLLBACK", ClassifiedStatement(Kind.ROLLBACK)),
        ("ROLLBACK TRANSACTION TO SAVEPOINT Inner", ClassifiedStatement(Kind.ROLLBACK_TO, name="inner")),
        ("ROLLBACK TO [Inner]", ClassifiedStatement(Kind.ROLLBACK_TO, name="inner")),
        ("ROLLBACK TO savepoint", ClassifiedStatement(Kind.ROLLBACK_TO, name="savepoint")),
        ('SAVEPOINT "a ""b"""', ClassifiedStatement(Kind.SAVEPOINT, name='a "b"')),
        ("RELEASE SAVEPOINT x", ClassifiedStatement(Kind.RELEASE, name="x")),
        ("RELEASE x", ClassifiedStatement(Kind.RELEASE, name="x")),
        ("SELECT 'BEGIN'", ClassifiedStatement(Kind.OTHER)),
        ("EXPLAIN COMMIT", ClassifiedStatement(Kind.OTHER)),
        ("BEGIN NONSENSE", ClassifiedStatement(Kind.OTHER)),
        ("COMMIT AND CHAIN", ClassifiedStatement(Kind.OTHER)),
        ("'x'", ClassifiedStatement(Kind.OTHER)),
        ("", ClassifiedStatement(Kind.EMPTY)),
        (" ; -- nothing", ClassifiedStatement(Kind.EMPTY)),
    ],
)
def test_kinds_of_statements(sql: str, expected: ClassifiedStatement) -> None:
    assert classify(sql) == expected


def test_a_script_is_split_where_statements_end() -> None:
    trigger = (
        "CREATE TEMP TRIGGER t AFTER INSERT ON a BEGIN UPDATE a SET x = CASE WHEN 1 THEN 2 END; DELETE FROM b; END;"
    )
    script = f"""
        -- a comment; with a semicolon
        INSERT INTO a VALUES ('it''s; not the end', "x;y", [z;], `;`);;
        {trigger}
        EXPLAIN CREATE TRIGGER u AFTER DELETE ON a BEGIN SELECT 1; END;
        CREATE TABLE "create trigger" (x);
        SELECT 1 /* ; */"""
    assert split(script) == [
        "-- a comment; with a semicolon\n        INSERT INTO a VALUES ('it''s; not the end', \"x;y\", [z;], `;`);",
        trigger,
        "EXPLAIN CREATE TRIGGER u AFTER DELETE ON a BEGIN SELECT 1; END;",
        'CREATE TABLE "create trigger" (x);',
        "SELECT 1 /* ; */",
    ]
    assert split(" ; -- nothing\n;") == []
    assert is_single(trigger)
    assert is_single("SELECT ';' ; ")
    assert not is_single("SELECT 1; SELECT 2")


def test_placeholders_have_the_character_before_their_name() -> None:
    sql = "SELECT :a, @b, $c, ?12, ?, 'not :d', x::e -- :f"
    assert placeholders(sql) == {"a": ":a", "b": "@b", "c": "$c", "12": "?12", "e": ":e"}


QUOTES = [";", "'", "''", '"', "[", "]", "`", "--", "/*", "*/"]
WORDS = [*QUOTES, "a", "BEGIN", "END", "CREATE", "TRIGGER", "TEMP", "é", "$x"]
PIECES = st.lists(st.sampled_from([*WORDS, "\n", " ", "CREATE TRIGGER t ", "; END ;", "SELECT 1"]), max_size=25)


@given(PIECES.map(" ".join))
def test_sqlite_agrees_on_where_statements_end(script: str) -> None:
    """Its complete_statement says of each semicolon whether the text up to it, after the last end, is a statement."""
    expected, begin = list[str](), 0
    for at, character in enumerate(script, 1):
        if character == ";" and sqlite3.complete_statement(script[begin:at]):
            expected.append(script[begin:at].strip())
            begin = at
    found = split(script)
    ended = [piece for piece in expected if classify(piece).kind is not Kind.EMPTY]
    assert found[: len(ended)] == ended
    assert len(found) <= len(ended) + 1
