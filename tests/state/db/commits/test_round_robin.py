"""Turns: callers one after the other, each in its own order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from buckram.state.db.commits.write_queue import RoundRobin


def test_callers_have_turns_in_rotation_and_keep_their_own_order() -> None:
    turns = RoundRobin[str]()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        turns.add(item[0], item)
    assert turns.first == "a1"
    assert [turns.take() for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert not turns.queues


def test_what_is_given_back_is_next_and_in_its_order() -> None:
    turns = RoundRobin[str]()
    for item in ("a1", "a2", "b1"):
        turns.add(item[0], item)
    taken = [turns.take() for _ in range(3)]
    turns.add("c", "c1")
    for item in reversed(taken):
        turns.give_back(item[0], item)
    assert [turns.take() for _ in range(4)] == ["a1", "b1", "c1", "a2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_nobody_waits_for_more_than_one_turn_of_each_other_caller(asked: list[tuple[str, bool]]) -> None:
    turns, waiting, passed = RoundRobin[int](), dict[str, list[int]](), dict[str, list[str]]()
    for number, (caller, takes) in enumerate(asked):
        turns.add(caller, number)
        waiting.setdefault(caller, []).append(number)
        passed.setdefault(caller, [])
        if takes:
            item = turns.take()
            served = next(name for name, items in waiting.items() if items and items[0] == item)
            assert waiting[served].pop(0) == item
            passed[served] = []
            for name in waiting:
                if name != served and waiting[name]:
                    passed[name].append(served)
                    assert len(set(passed[name])) == len(passed[name]), "somebody was passed twice by the same caller"
    assert dict(turns.oldest()) == {caller: items[0] for caller, items in waiting.items() if items}
    assert sorted(turns.drain()) == sorted(item for items in waiting.values() for item in items)
    assert not turns.queues
