"""Django's migrations over DB-API, with a backend of these tests (`django_buckram`), in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import buckram.sync
from buckram.testing import ThreadedCluster

ROOT = Path(__file__).parents[2]


def test_django_makes_tables_anew_that_others_name() -> None:
    pytest.importorskip("django", reason="needs the package django")
    with ThreadedCluster(bookies=3) as cluster:
        with buckram.sync.connect(cluster.uri) as client:
            client.namespaces.create("shop")
        command = [sys.executable, "-m", "tests.sql.django_program", cluster.uri, "shop/django"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen.pop("lost").startswith(
        "The row in table 'library_book' with primary key '1' has an invalid foreign key"
    )
    assert seen == {
        "books": [["0", "a", 1900], ["1", "b", 1900], ["2", "b", 1900]],
        "keys": 1,
        "nobody": "FOREIGN KEY constraint failed",
        "twice": "UNIQUE constraint failed: library_author.name",
        "after": [3, 3],
        "back": [["0", "a"], ["1", "b"], ["2", "b"]],
        "relations": ["id", "library_author"],
        "cascade": 1,
    }
