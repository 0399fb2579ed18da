"""A pytest plugin that writes down what each test took: `-p scripts.pytest_timing`, to the file that TEST_TIMES names.

One JSON list a line: the test's id, its seconds, and the CPU seconds of this process and of the children that ended.
TEST_DEADLINE is a moment of the monotonic clock after which tests are skipped: `make check` is over in half a minute.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Generator
from pathlib import Path

import pytest

VARIABLE, DEADLINE = "TEST_TIMES", "TEST_DEADLINE"


def cpu_seconds() -> float:
    """User and system time of this process and of all children that were waited for."""
    kinds = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(kind.ru_utime + kind.ru_stime for kind in kinds)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > float(os.environ.get(DEADLINE, "inf")):
        pytest.skip("no time is left for it; make test runs it")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    began, cpu = time.monotonic(), cpu_seconds()
    result = yield
    path = os.environ.get(VARIABLE)
    if path and began < float(os.environ.get(DEADLINE, "inf")):
        row = [item.nodeid, round(time.monotonic() - began, 3), round(cpu_seconds() - cpu, 3)]
        with Path(path).open("a") as times:
            times.write(json.dumps(row) + "\n")
    return result
