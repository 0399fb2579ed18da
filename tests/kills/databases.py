"""Commands about SQL databases: `db serve`, `backup`, `restore` and `fork`."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.kills.harness import Case, Ended
from tests.kills.world import Command, World, buckram

from buckram.sql import connect

ROWS = [(number, f"row {number}" * 50) for number in range(40)]


def make(world: World, name: str) -> None:
    """Make a database with rows."""
    with contextlib.closing(connect(world.uri, name)) as db:
        db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, text TEXT)")
        db.executemany("INSERT INTO item VALUES (?, ?)", ROWS)
        db.commit()


def new_space(world: World) -> str:
    space = world.name("db")
    world.client.namespaces.create(space, ensemble="3/3/2")
    return space


def rows(world: World, name: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(connect(world.uri, name)) as db:
        return [tuple(row) for row in db.execute("SELECT id, text FROM item ORDER BY id").fetchall()]


def rows_of(file: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return db.execute("SELECT id, text FROM item ORDER BY id").fetchall()


def serve(world: World) -> Case:
    space, folder = new_space(world), world.new_folder()
    make(world, f"{space}/main")

    def ready(line: dict[str, Any]) -> None:
        sent = {"requests": [{"type": "execute", "stmt": {"sql": "SELECT count(*) FROM item"}}, {"type": "close"}]}
        head = {"Content-Type": "application/json"}
        url = f"{line['url']}/{space}/main/v2/pipeline"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(sent).encode(), head), timeout=60) as answer:
            found = json.loads(answer.read())
        assert found["results"][0]["response"]["result"]["rows"][0][0]["value"] == str(len(ROWS)), found

    def check(_: Ended) -> None:
        assert rows(world, f"{space}/main") == ROWS

    words = ("db", "serve", f"{space}/main", "--host", "127.0.0.1", "--port", "0", "--metadata", world.uri, "--json")
    return Case(words, folder, check, ready=ready, environment={"TMPDIR": str(folder)})


def backup(world: World) -> Case:
    """A file that is there keeps its content until the new one is whole."""
    space, folder = new_space(world), world.new_folder()
    name, file = f"{space}/main", folder / "main.db"
    make(world, name)
    buckram("db", "backup", name, file, "--metadata", world.uri)
    with contextlib.closing(connect(world.uri, name)) as db:
        db.execute("INSERT INTO item VALUES (1000, 'new')")
        db.commit()
    newer = [*ROWS, (1000, "new")]

    def died() -> None:
        assert rows_of(file) in (ROWS, newer)

    def check(_: Ended) -> None:
        assert rows_of(file) == newer
        assert [one.name for one in folder.iterdir()] == ["main.db"]

    words = ("db", "backup", name, str(file), "--metadata", world.uri, "--json")
    return Case(words, folder, check, died)


def restore(world: World) -> Case:
    space, folder = new_space(world), world.new_folder()
    file = folder.with_suffix(".db")
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, text TEXT)")
        db.executemany("INSERT INTO item VALUES (?, ?)", ROWS)
        db.commit()

    def check(_: Ended) -> None:
        assert rows(world, f"{space}/copy") == ROWS

    words = ("db", "restore", str(file), f"{space}/copy", "--metadata", world.uri, "--json")
    return Case(words, folder, check)


def fork(world: World) -> Case:
    space = new_space(world)
    make(world, f"{space}/main")

    def check(_: Ended) -> None:
        assert rows(world, f"{space}/copy") == ROWS
        assert rows(world, f"{space}/main") == ROWS

    words = ("db", "fork", f"{space}/main", f"{space}/copy", "--metadata", world.uri, "--json")
    return Case(words, world.new_folder(), check)


COMMANDS: dict[str, Command] = {"db serve": serve, "db backup": backup, "db restore": restore, "db fork": fork}
