"""Rates of calls: what is counted, and whose CPU."""

from __future__ import annotations

import asyncio
import os

import pytest
from bench.cases import CASES
from bench.rates import percentile, rate


async def test_every_client_calls_one_after_the_other_and_all_calls_count() -> None:
    running, most, calls = [0] * 4, 0, 0

    async def call(number: int) -> None:
        nonlocal most, calls
        running[number] += 1
        assert running[number] == 1
        most, calls = max(most, sum(running)), calls + 1
        await asyncio.sleep(0)
        running[number] -= 1

    began = asyncio.get_running_loop().time()
    found = await rate(4, 0.05, call, [os.getpid()])
    assert most == 4
    assert found.per_s == pytest.approx(calls / (asyncio.get_running_loop().time() - began), rel=0.5)
    assert 0 < found.p50_ms <= found.p99_ms
    assert found.client_us > 0
    figures = found.figures("tx", "_alone")
    assert set(figures) == {
        f"tx_{what}_alone" for what in ("per_s", "p50_ms", "p99_ms", "client_cpu_us", "servers_cpu_us")
    }


def test_a_percentile_is_one_of_the_values() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 3.0, 5.0, 5.0]


def test_cases_of_databases_say_what_they_measure() -> None:
    named = {name for name in CASES if name.startswith("databases")}
    assert named == {
        *("databases", "databases_large", "databases_idle_writer", "databases_take_over", "databases_asleep"),
        "databases_beside",
    }
    assert all((CASES[name].__doc__ or "").endswith(".") for name in named)
