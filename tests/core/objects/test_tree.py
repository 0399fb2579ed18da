"""The tree of names, against a plain sorted dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.objects import tree
from buckram.core.objects.rows import ObjectRow
from buckram.core.objects.tree import Blocked, Directory, SortedNames, find, place_for, walk

ROW = ObjectRow(1, 0, "", 0, 0, (), ())
PART = st.sampled_from(["a", "b", "ab", "a.b", "a-", "a0", "ä", "z"])
PATH = st.lists(PART, min_size=1, max_size=4).map("/".join)


def put(root: Directory, path: str) -> bool:
    """False if it is blocked."""
    if isinstance(find(root, path), Directory):
        return False
    try:
        directory, name = place_for(root, path, 0)
    except Blocked:
        return False
    directory.attach(name, ROW, 0)
    return True


@settings(max_examples=200, deadline=None)
@given(st.lists(PATH), st.lists(PATH), PATH | st.text("ab/.", max_size=6), PATH | st.text("ab/.", max_size=6))
def test_walking_gives_names_in_order_from_any_place(
    paths: list[str], removed: list[str], prefix: str, after: str
) -> None:
    root, model = Directory(), dict[str, None]()
    for path in paths:
        if put(root, path):
            model[path] = None
    for path in removed:
        if path in model:
            place = tree.parent_of(root, path)
            assert place is not None
            place[0].detach(place[1], 0)
            del model[path]
    assert [name for name, _ in walk(root, "", "")] == sorted(model)
    wanted = sorted(name for name in model if name.startswith(prefix) and name > after)
    assert [name for name, _ in walk(root, prefix, after)] == wanted


def test_directories_vanish_with_their_last_object_and_block_names() -> None:
    root = Directory()
    assert put(root, "a/b/c")
    assert not put(root, "a/b")
    assert not put(root, "a/b/c/d")
    place = tree.parent_of(root, "a/b/c")
    assert place is not None
    place[0].detach("c", 0)
    assert root.nodes == {}
    assert put(root, "a")


def test_a_blocked_name_makes_no_directories() -> None:
    root = Directory()
    put(root, "a/b")
    with pytest.raises(Blocked, match="'a/b' is an object"):
        place_for(root, "a/b/c/d", 0)
    assert list(root.nodes) == ["a"]


def test_very_many_names_stay_sorted() -> None:
    names = SortedNames()
    wanted = [f"{number * 7919 % 10007:05}" for number in range(10007)]
    for name in wanted:
        names.add(name)
    for name in wanted[::2]:
        names.remove(name)
    left = sorted(wanted[1::2])
    assert list(names.since("")) == left
    assert list(names.since("05000")) == [name for name in left if name >= "05000"]
    assert list(names.since("99999")) == []
