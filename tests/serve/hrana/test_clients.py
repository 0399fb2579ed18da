"""Clients of libSQL, unchanged, against `buckram db serve` and a gateway: JavaScript, Python (three of them), and Go.

Each needs its own tools and is skipped without them: the Python packages of the dependency group `sql-clients`, node
with npm, go. The one for Go is built from its sources, which takes a minute, so only `make soak` runs it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.serve.hrana.processes import ServeProcess

import buckram.sync
from buckram.testing import ThreadedCluster

CLIENTS = Path(__file__).parent / "clients"
TOOLS = Path(sys.prefix) / "share" / "buckram-test-clients"
"""Where packages of other languages are kept between runs."""


@pytest.fixture(scope="module", params=["db serve", pytest.param("gateway", marks=pytest.mark.share(3))])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where databases of the namespace shop are served: by a server of these, and by a gateway."""
    names = [f"shop/{name}" for name in ("js", "js-ws", "drizzle", "libsql", "client", "client-ws", "alchemy", "go")]
    with ThreadedCluster(bookies=3) as cluster:
        with buckram.sync.connect(cluster.uri) as client:
            client.namespaces.create("shop")
            if request.param == "gateway":
                for name in names:
                    client.namespace("shop").create_database(name.partition("/")[2])
        if request.param == "gateway":
            with ServeProcess(cluster.uri) as gateway:
                yield f"{gateway.url}/v2/databases"
        else:
            with ServeProcess(cluster.uri, *names) as serve:
                yield serve.url


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}, which is not installed")
    return found


def output(*command: str, directory: Path, seconds: float = 120) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def javascript(program: str, url: str) -> Any:
    """What a program printed. Its packages are fetched once, and again when the lock is another."""
    node, npm = tool("node"), tool("npm")
    directory = TOOLS / "js"
    directory.mkdir(parents=True, exist_ok=True)
    for file in (CLIENTS / "js").iterdir():
        shutil.copy(file, directory / file.name)
    fetched_for, lock = directory / "node_modules" / ".fetched-for", (directory / "package-lock.json").read_text()
    if not fetched_for.exists() or fetched_for.read_text() != lock:
        fetched = subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if fetched.returncode:
            pytest.skip(f"npm cannot fetch @libsql/client and drizzle-orm: {fetched.stderr[-200:]}")
        fetched_for.write_text(lock)
    return json.loads(output(node, program, url, directory=directory))


def test_drizzle_makes_a_table_anew_that_others_name(url: str) -> None:
    seen = javascript("drizzle.mjs", f"{url}/shop/drizzle/")
    assert seen == {
        "rows": [
            {"book": {"id": 10, "author": 1}, "author": {"id": 1, "name": "a"}},
            {"book": {"id": 20, "author": 2}, "author": {"id": 2, "name": "b"}},
        ],
        "keys": "SQLITE_CONSTRAINT",
        "lost": "SQLITE_CONSTRAINT",
        "after": 2,
        "migrations": 2,
        "inTransaction": 3,
    }


@pytest.mark.parametrize(
    ("scheme", "database"), [("http", "js"), pytest.param("ws", "js-ws", marks=pytest.mark.share(3))]
)
def test_javascript(url: str, scheme: str, database: str) -> None:
    seen = javascript("client.mjs", f"{url}/shop/{database}/".replace("http", scheme, 1))
    assert seen == {
        "inserted": [1, "1"],
        "columns": [["id", "s", "f", "b"], ["INTEGER", "TEXT", "REAL", "BLOB"]],
        "rows": [[1, "é", 1.5, [0, 255]], [2, "b", 2, None]],
        "batch": 3,
        "failedBatch": "SQLITE_CONSTRAINT",
        "afterFailedBatch": 3,
        "afterRollback": 3,
        "inTransaction": "SQLITE_CONSTRAINT",
        "afterCommit": 4,
        "readOnly": "SQLITE_READONLY",
        "script": 3,
        "syntax": "SQLITE_ERROR",
        "parallel": 52,
        "migrated": 1,
    }


def python(program: str, package: str, url: str) -> Any:
    if find_spec(package) is None:
        pytest.skip(f"needs the Python package {package}")
    return json.loads(output(sys.executable, program, url, directory=CLIENTS / "python"))


def test_python_libsql(url: str) -> None:
    seen = python("libsql_program.py", "libsql", f"{url}/shop/libsql")
    assert seen == {"unique": True, "rows": [[1, "é", 1.5, "00FF"]]}


@pytest.mark.parametrize(
    ("scheme", "database"), [("http", "client"), pytest.param("ws", "client-ws", marks=pytest.mark.share(3))]
)
def test_python_libsql_client(url: str, scheme: str, database: str) -> None:
    libsql_client: Any = pytest.importorskip("libsql_client", reason="needs the package libsql-client")

    async def main() -> None:
        async with libsql_client.create_client(f"{url}/shop/{database}/".replace("http", scheme, 1)) as client:
            await client.execute("CREATE TABLE t (s TEXT UNIQUE, b BLOB)")
            statement = libsql_client.Statement("SELECT * FROM t WHERE s = :s", {"s": "a"})
            found = await client.batch([("INSERT INTO t VALUES (?, ?)", ["a", b"\x00"]), statement])
            assert [(row["s"], row["b"]) for row in found[1].rows] == [("a", b"\x00")]
            with pytest.raises(libsql_client.LibsqlError, match="SQLITE_CONSTRAINT: UNIQUE"):
                await client.batch(["INSERT INTO t (s) VALUES ('b')", "INSERT INTO t (s) VALUES ('a')"])
            with pytest.raises(libsql_client.LibsqlError, match="SQLITE_ERROR"):
                await client.execute("SELEKT")
            assert (await client.execute("SELECT count(*) FROM t")).rows[0][0] == 1
            if scheme == "ws":
                transaction = client.transaction()
                await transaction.execute("INSERT INTO t (s) VALUES ('c')")
                assert (await client.execute("SELECT count(*) FROM t")).rows[0][0] == 1
                await transaction.commit()
                assert (await client.execute("SELECT count(*) FROM t")).rows[0][0] == 2

    asyncio.run(main())


def test_sqlalchemy_libsql(url: str) -> None:
    seen = python("sqlalchemy_program.py", "sqlalchemy_libsql", f"{url}/shop/alchemy")
    assert seen == {"rows": [[1, "a"], [2, "b"]]}


@pytest.mark.soak  # it is built for a minute
def test_go(url: str) -> None:
    go, directory = tool("go"), TOOLS / "go"
    directory.mkdir(parents=True, exist_ok=True)
    for file in (CLIENTS / "go").iterdir():
        shutil.copy(file, directory / file.name)
    output(go, "build", "-o", "client", ".", directory=directory, seconds=900)
    seen = json.loads(output("./client", f"{url}/shop/go/", directory=directory))
    assert seen == {"inserted": [1, 1], "unique": True, "rows": [[1, "é", 2], [2, "c", 0]]}
