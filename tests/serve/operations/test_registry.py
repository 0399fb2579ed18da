"""The table of a server's operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from buckram.serve.operations.registry import Registry


@dataclass(frozen=True)
class One:
    method: str
    path: str
    what: str = ""


class Some:
    def __init__(self, *operations: One) -> None:
        self._operations = operations

    def operations(self) -> Sequence[One]:
        return self._operations


def test_a_path_is_found_by_its_names_and_without_them_first() -> None:
    named, own, deep = One("GET", "/jobs/{job}"), One("DELETE", "/jobs/mine"), One("GET", "/files/{name:path}")
    table = Registry([Some(named), Some(own, deep)])
    assert list(table) == [named, own, deep]
    assert table.at("/jobs/7") == {"GET": named}
    assert table.at("/jobs/mine") == {"DELETE": own}
    assert table.at("/files/a/b\n") == table.at("/files/") == {"GET": deep}
    for unknown in ("/jobs/", "/jobs/7/8", "/jobs", "/jobsx7"):
        assert table.at(unknown) == {}


def test_a_method_of_a_path_is_there_once() -> None:
    with pytest.raises(ValueError, match="GET /jobs is registered twice"):
        Registry([Some(One("GET", "/jobs")), Some(One("PUT", "/jobs"), One("GET", "/jobs"))])
