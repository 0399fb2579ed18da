"""Scripts with the forms of statement that sqllogictest's select1 to select5 have, drawn from a seed. Pure.

Those files are made by programs that draw expressions, conditions and orders for one table (1 to 3, the second and the
third with NULLs), compounds of several (4), and joins of many tables in different orders (5).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_COLUMNS = "abcde"
_EXPRESSIONS = (
    *("a", "b", "c", "d", "e", "a-b", "b-c", "c-d", "d-e", "a+b*2", "a+b*2+c*3", "a+b*2+c*3+d*4+e*5"),
    *("abs(a)", "abs(b-c)", "(a+b+c+d+e)/5"),
    "CASE WHEN a<b-3 THEN 111 WHEN a<=b THEN 222 WHEN a<b+3 THEN 333 ELSE 444 END",
    "CASE a+1 WHEN b THEN 111 WHEN c THEN 222 WHEN d THEN 333 WHEN e THEN 444 ELSE 555 END",
    "CASE WHEN c>(SELECT avg(c) FROM t1) THEN a*2 ELSE b*10 END",
    "(SELECT count(*) FROM t1 AS x WHERE x.b<t1.b)",
    "(SELECT count(*) FROM t1 AS x WHERE x.c>t1.c AND x.d<t1.d)",
)
_CONDITIONS = (
    *("a>b", "b>c", "c>d", "d>e", "(e>c OR e<d)", "(c<=d-2 OR c>=d+2)", "(e>a AND e<b)", "(a>b-2 AND a<b+2)"),
    *("d NOT BETWEEN 110 AND 150", "c BETWEEN b-2 AND d+2", "coalesce(a,b,c,d,e)<>0"),
    *("a IS NULL", "b IS NOT NULL", "EXISTS(SELECT 1 FROM t1 AS x WHERE x.b<t1.b)"),
)
_ROWS, _TABLES, _JOINED = 30, 6, 12


def script(seed: int, queries: int) -> str:
    """The script of a seed, with so many queries besides those that repeat another in a different order."""
    rng = random.Random(f"sqllogic {seed}")
    found = [*_one_table(rng, queries // 2), *_compounds(rng, queries // 4), *_joins(rng, queries // 4)]
    return "\n\n".join(found)


def _one_table(rng: random.Random, queries: int) -> Iterator[str]:
    yield "statement ok\nCREATE TABLE t1(a INTEGER, b INTEGER, c INTEGER, d INTEGER, e INTEGER)"
    for row in range(_ROWS):
        names, values = list(_COLUMNS), [str(100 + row * 5 + number) for number in range(5)]
        rng.shuffle(names)
        if rng.random() < 0.3:
            values[rng.randrange(5)] = "NULL"
        yield f"statement ok\nINSERT INTO t1({','.join(names)}) VALUES({','.join(values)})"
    for number in range(queries):
        chosen = rng.sample(_EXPRESSIONS, rng.randrange(1, 8))
        sql = f"SELECT {', '.join(chosen)} FROM t1"
        conditions = rng.sample(_CONDITIONS, rng.randrange(4))
        if conditions:
            sql += f" WHERE {rng.choice((' AND ', ' OR ')).join(conditions)}"
        head = f"query {'I' * len(chosen)} rowsort x{number}"
        order = rng.sample(range(1, len(chosen) + 1), len(chosen))
        yield f"{head}\n{sql}"
        yield f"{head}\n{sql} ORDER BY {','.join(map(str, order))}"


def _compounds(rng: random.Random, queries: int) -> Iterator[str]:
    for table in range(1, _TABLES + 1):
        columns = ", ".join(f"{name}{table} INTEGER" for name in _COLUMNS)
        yield f"statement ok\nCREATE TABLE m{table}({columns}, x{table} VARCHAR(30))"
        if rng.random() < 0.5:
            unique = rng.choice(("", "UNIQUE "))
            yield f"statement ok\nCREATE {unique}INDEX m{table}i ON m{table}(a{table}, {rng.choice('bcd')}{table} DESC)"
        for row in range(8):
            values = ",".join(str(rng.randrange(1000)) for _ in _COLUMNS)
            yield f"statement ok\nINSERT INTO m{table} VALUES({values},'table m{table} row {row}')"
    for _ in range(queries):
        parts = [_part(rng, table) for table in rng.sample(range(1, _TABLES + 1), rng.randrange(2, _TABLES + 1))]
        sql = parts[0]
        for part in parts[1:]:
            sql += f" {rng.choice(('UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT'))} {part}"
        yield f"query I valuesort\n{sql}"


def _part(rng: random.Random, table: int) -> str:
    def condition() -> str:
        column, values = f"{rng.choice(_COLUMNS)}{table}", [rng.randrange(1000) for _ in range(rng.randrange(1, 12))]
        if rng.random() < 0.5:
            return f"{column} in ({','.join(map(str, values))})"
        return rng.choice((f"{values[0]}={column}", f"{column}>{values[0]}", f"NOT ({column}<{values[0]})"))

    where = f" WHERE {condition()} {rng.choice(('AND', 'OR'))} ({condition()})" if rng.random() < 0.8 else ""
    return f"SELECT {rng.choice(_COLUMNS)}{table} FROM m{table}{where}"


def _joins(rng: random.Random, queries: int) -> Iterator[str]:
    for table in range(1, _JOINED + 1):
        columns = f"a{table} INTEGER PRIMARY KEY, b{table} INTEGER, x{table} VARCHAR(40)"
        yield f"statement ok\nCREATE TABLE j{table}({columns})"
        others = rng.sample(range(1, 11), 10)
        values = ",".join(f"({row},{other},'table j{table} row {row}')" for row, other in enumerate(others, 1))
        yield f"statement ok\nINSERT INTO j{table} VALUES{values}"
    for number in range(queries):
        tables = rng.sample(range(1, _JOINED + 1), rng.randrange(2, 9))
        conditions = [f"a{rng.choice(tables)}={rng.randrange(1, 11)}"]
        conditions += [f"b{table}=a{before}" for table, before in zip(tables[1:], tables, strict=False)]
        for order in range(2):
            rng.shuffle(conditions)
            names = ",".join(f"j{table}" for table in (tables if order else tables[::-1]))
            shown = ",".join(f"x{table}" for table in tables)
            sql = f"SELECT {shown} FROM {names} WHERE {' AND '.join(conditions)}"
            yield f"query {'T' * len(tables)} valuesort join-{number}\n{sql}"


__all__ = ["script"]
