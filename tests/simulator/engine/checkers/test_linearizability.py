"""Known good and bad histories of registers and lists, and random ones against a search through all orders."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from simulator.engine.checkers.linearizability import (
    UNKNOWN,
    Call,
    Step,
    list_step,
    not_linearizable,
    register_step,
)


def call(began: float, ended: float | None, operation: tuple[Any, ...], result: Any = None, key: str = "x") -> Call:
    return Call(f"c{began:g}", key, operation, UNKNOWN if ended is None else result, began, ended)


def write(began: float, ended: float | None, value: int, key: str = "x") -> Call:
    return call(began, ended, ("write", value), None, key)


def read(began: float, ended: float, value: int | None, key: str = "x") -> Call:
    return call(began, ended, ("read",), value, key)


GOOD = {
    "one after another": [write(0, 1, 1), read(2, 3, 1)],
    "a concurrent read sees the old value": [write(0, 1, 1), write(2, 5, 2), read(3, 4, 1)],
    "a concurrent read sees the new value": [write(0, 1, 1), write(2, 5, 2), read(3, 4, 2)],
    "a write without an answer took effect late": [write(0, None, 1), read(1, 2, None), read(3, 4, 1)],
    "a write without an answer never took effect": [write(0, None, 1), read(1, 2, None), read(8, 9, None)],
    "touching ends count as concurrent": [write(0, 1, 1), read(1, 2, None)],
    "a change by comparison": [write(0, 1, 1), call(2, 3, ("cas", 1, 2), True), call(4, 5, ("cas", 1, 3), False)],
    "other keys": [write(0, 1, 1, "x"), read(2, 3, None, "y")],
}
BAD = {
    "a lost write": [write(0, 1, 1), read(2, 3, None)],
    "a stale read": [write(0, 1, 1), write(2, 3, 2), read(4, 5, 1)],
    "a value that nobody wrote": [write(0, 1, 1), read(2, 3, 7)],
    "back to the old value": [write(0, 1, 1), write(2, 9, 2), read(3, 4, 2), read(5, 6, 1)],
    "two winners of a comparison": [write(0, 1, 1), call(2, 5, ("cas", 1, 2), True), call(2, 5, ("cas", 1, 3), True)],
    "a write without an answer comes and goes": [write(0, None, 1), read(1, 2, 1), read(3, 4, None)],
    "refused although it fits": [write(0, 1, 1), call(2, 3, ("cas", 1, 2), False)],
    "only one key is wrong": [write(0, 1, 1, "x"), read(2, 3, 1, "x"), write(0, 1, 1, "y"), read(2, 3, None, "y")],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_of_a_register(name: str) -> None:
    assert not_linearizable(GOOD[name], register_step) == ""


@pytest.mark.parametrize("name", BAD)
def test_bad_histories_of_a_register(name: str) -> None:
    assert "none of these fits" in not_linearizable(BAD[name], register_step)


def append(began: float, ended: float | None, value: int, length: int | None = None) -> Call:
    return call(began, ended, ("append", value), length)


def listed(began: float, ended: float, *values: int) -> Call:
    return call(began, ended, ("read",), values)


GOOD_LISTS = {
    "one after another": [append(0, 1, 1, 1), append(2, 3, 2, 2), listed(4, 5, 1, 2)],
    "concurrent appends in either order": [append(0, 9, 1, 2), append(0, 9, 2, 1), listed(10, 11, 2, 1)],
    "an append without an answer is there": [append(0, None, 1), listed(1, 2), listed(3, 4, 1), append(5, 6, 2, 2)],
    "an append without an answer is not there": [append(0, None, 1), append(1, 2, 2, 1), listed(8, 9, 2)],
    "a read during an append": [append(0, 9, 1, 1), listed(1, 2), listed(3, 4, 1)],
}
BAD_LISTS = {
    "a lost append": [append(0, 1, 1, 1), append(2, 3, 2, 2), listed(4, 5, 2)],
    "a doubled append": [append(0, 1, 1, 1), listed(2, 3, 1, 1)],
    "an append without an answer comes and goes": [append(0, None, 1), listed(1, 2, 1), listed(3, 4)],
    "an append without an answer is there twice": [append(0, None, 1), listed(1, 2, 1, 1)],
    "the order changes": [append(0, 9, 1, 1), append(0, 9, 2, 2), listed(1, 2, 1, 2), listed(3, 4, 2, 1)],
    "against the order of time": [append(0, 1, 1, 1), append(2, 3, 2, 2), listed(4, 5, 2, 1)],
    "a stale read": [append(0, 1, 1, 1), append(2, 3, 2, 2), listed(4, 5, 1)],
    "a value that nobody appended": [append(0, 1, 1, 1), listed(2, 3, 1, 7)],
    "two were the first": [append(0, 9, 1, 1), append(0, 9, 2, 1)],
    "it was told another length": [append(0, 1, 1, 1), append(2, 3, 2, 3)],
}


@pytest.mark.parametrize("name", GOOD_LISTS)
def test_good_histories_of_a_list(name: str) -> None:
    assert not_linearizable(GOOD_LISTS[name], list_step, ()) == ""


@pytest.mark.parametrize("name", BAD_LISTS)
def test_bad_histories_of_a_list(name: str) -> None:
    assert "none of these fits" in not_linearizable(BAD_LISTS[name], list_step, ())


def test_lists() -> None:
    history = [call(0, 1, ("append", 1), 1), call(2, 9, ("append", 2), 2), call(3, 4, ("read",), (1,))]
    assert not_linearizable(history, list_step, ()) == ""
    assert not_linearizable([*history, call(5, 6, ("read",), (1, 2)), call(7, 8, ("read",), (1,))], list_step, ())
    assert not_linearizable([*history, call(10, 11, ("read",), (2, 1))], list_step, ())


def _by_brute_force(calls: list[Call], step: Step) -> bool:
    certain = [one for one in calls if one.ended is not None]
    open_ones = [one for one in calls if one.ended is None]
    for count in range(len(open_ones) + 1):
        for chosen in itertools.combinations(open_ones, count):
            for order in itertools.permutations([*certain, *chosen]):
                if _fits(order, step):
                    return True
    return False


def _fits(order: tuple[Call, ...], step: Step) -> bool:
    state: Any = None
    for at, one in enumerate(order):
        if any(later.ended is not None and later.ended < one.began for later in order[at + 1 :]):
            return False
        state, result = step(state, one.operation)
        if one.ended is not None and result != one.result:
            return False
    return True


def test_random_histories_as_a_search_through_all_orders() -> None:
    rng, verdicts = random.Random(7), []
    for _ in range(400):
        calls = []
        for _ in range(rng.choice((3, 4, 5))):
            began = rng.randrange(8)
            ended = None if rng.random() < 0.2 else began + rng.randrange(1, 5)
            operation, result = rng.choice(
                [
                    (("read",), rng.choice((None, 1, 2))),
                    (("write", 1), None),
                    (("write", 2), None),
                    (("cas", 1, 2), rng.random() < 0.5),
                ]
            )
            calls.append(call(began, ended, operation, result))
        verdict = not_linearizable(calls, register_step) == ""
        assert verdict == _by_brute_force(calls, register_step), calls
        verdicts.append(verdict)
    assert 50 < sum(verdicts) < 350


def test_many_concurrent_calls_are_decided() -> None:
    calls = [write(number // 3, number // 3 + 1.5, number) for number in range(150)]
    assert not_linearizable([*calls, read(30.2, 30.4, None)], register_step)
    assert not_linearizable([*calls, read(60, 61, 149)], register_step) == ""
    assert not_linearizable([*calls, read(60, 61, 143)], register_step)
