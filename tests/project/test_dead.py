"""Dead definitions are found, and none is in the sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from scripts.dead import ALLOWED, USERS, dead, facts_of, faults, read_files

ROOT = Path(__file__).parents[2]
A, B = "src/buckram/a.py", "src/buckram/b.py"


def found(**files: str) -> Mapping[str, int]:
    return dead({f"src/buckram/{name}.py": facts_of(text) for name, text in files.items()})


@pytest.mark.soak  # `make lint`, a part of each `make test`, does the same
def test_the_sources_have_no_dead_definition(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    allowed = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))["allowed"]
    assert all(allowed.values()), "each row says who uses it"
    assert faults(dead(read_files(USERS)), allowed) == []


def test_functions_classes_methods_and_properties_that_nothing_uses_are_dead() -> None:
    text = "def f(): pass\nclass C:\n    def m(self): return self.m()\n    @property\n    def p(self): return 1\n"
    assert found(a=text) == {f"{A}:f": 1, f"{A}:C": 2, f"{A}:C.m": 3, f"{A}:C.p": 5}


@pytest.mark.parametrize("use", ["from buckram.a import f", "import buckram.a as a\na.f()", 'getattr(x, "f")'])
def test_what_another_file_uses_is_alive(use: str) -> None:
    assert found(a="def f(): pass", b=use) == {}


def test_a_name_of_another_file_a_call_of_itself_and_an_offer_are_no_use() -> None:
    text = '__all__ = ["f"]\ndef f(): return f()\n'
    assert found(a=text, b="f = 1\nprint(f)") == {f"{A}:f": 2}
    assert found(a=text + "f()\n") == {}
    assert found(a="def g(): pass\nclass C:\n    def go(self): return g()\nC().go()") == {}
    assert found(a="def close(x): x.close()\nclose(C())\nclass C:\n    def close(self): pass") == {}


def test_what_a_library_calls_is_alive() -> None:
    assert found(a="import click\n@click.command()\ndef f(): pass\n") == {}
    assert found(a="from asyncio import Protocol\nclass C(Protocol):\n    def got(self): pass\nC()") == {}
    assert found(a="from enum import Enum\nclass C(Enum):\n    def got(self): pass\nC(1)") == {f"{A}:C.got": 3}


def test_a_row_that_is_not_needed_is_a_fault() -> None:
    assert faults({f"{A}:f": 7}, {f"{A}:f": "others call it"}) == []
    (line,) = faults({f"{A}:f": 7}, {})
    assert line.startswith(f"{A}:7: nothing but tests uses f: remove it")
    (line,) = faults({}, {f"{A}:f": "others call it"})
    assert line.endswith("must go: it is used, or gone")


def test_facts_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    source, cache = tmp_path / "a.py", tmp_path / "kept" / "dead.json"
    source.write_text("def f(): pass\n")
    first = read_files([tmp_path], cache)
    assert read_files([tmp_path], cache) == first == {source.as_posix(): facts_of("def f(): pass\n")}
    source.write_text("def other(): pass\n")
    assert read_files([tmp_path], cache)[source.as_posix()].defined == [["other", 1]]
    cache.write_text("cut sh")
    assert read_files([tmp_path], cache)[source.as_posix()].defined == [["other", 1]]
