"""A pytest plugin that writes down what each test took: `-p scripts.pytest_timing`, to the file that TEST_TIMES names.

One JSON list a line: the test's id, its seconds, and the CPU seconds of this process and of the children that ended.
TEST_DEADLINE is a moment of the monotonic clock after which tests are skipped, but for those in files that TEST_ALWAYS
names: `make check` is over in half a minute. The file that TEST_OUTCOMES names gets a line for each test that ran or
was skipped, and why.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Generator
from pathlib import Path

import pytest

VARIABLE, DEADLINE, ALWAYS, OUTCOMES = "TEST_TIMES", "TEST_DEADLINE", "TEST_ALWAYS", "TEST_OUTCOMES"


def cpu_seconds() -> float:
    """User and system time of this process and of all children that were waited for."""
    kinds = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(kind.ru_utime + kind.ru_stime for kind in kinds)


def has_time(item: pytest.Item) -> bool:
    always = os.environ.get(ALWAYS, "").split(os.pathsep)
    return item.nodeid.partition("::")[0] in always or time.monotonic() <= float(os.environ.get(DEADLINE, "inf"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not has_time(item):
        pytest.skip("no time is left for it; make test runs it")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    began, cpu, timed = time.monotonic(), cpu_seconds(), has_time(item)
    result = yield
    path = os.environ.get(VARIABLE)
    if path and timed:
        row = [item.nodeid, round(time.monotonic() - began, 3), round(cpu_seconds() - cpu, 3)]
        with Path(path).open("a") as times:
            times.write(json.dumps(row) + "\n")
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record a report once, in the process that runs the test or, under xdist, in the one that receives it."""
    path = os.environ.get(OUTCOMES)
    if path is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    skipped = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if report.when == "call" or skipped or report.failed:
        with Path(path).open("a") as outcomes:
            outcomes.write(json.dumps([report.nodeid.partition("::")[0], skipped]) + "\n")
