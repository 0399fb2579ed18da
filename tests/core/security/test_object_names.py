"""Names of objects in grants: ranges, what they have, and how several are put together."""

from __future__ import annotations

import pytest

from buckram.core.security.object_names import NameRange, check_range, disjoint, granted_range
from buckram.errors import InvalidArgument


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("objects/logs/*", NameRange("logs/")),
        ("objects/*", NameRange("")),
        ("objects/a/b.txt", NameRange("a/b.txt", exact=True)),
        ("objects", None),
        ("orders", None),
        ("o*", None),
    ],
)
def test_words_of_a_grant_are_for_objects_or_for_streams(words: str, found: NameRange | None) -> None:
    assert granted_range(words) == found


def test_what_a_range_has() -> None:
    logs, one = NameRange("logs/"), NameRange("logs/a", exact=True)
    assert logs.has("logs/a/b")
    assert not logs.has("log")
    assert one.has("logs/a")
    assert not one.has("logs/a/b")
    assert not one.has_all("logs/a")


def test_the_part_of_a_range_that_begins_with_a_prefix() -> None:
    logs, one = NameRange("logs/"), NameRange("logs/a", exact=True)
    assert logs.from_prefix("") == logs
    assert logs.from_prefix("logs/2026") == NameRange("logs/2026")
    assert logs.from_prefix("x") is None
    assert one.from_prefix("logs/") == one
    assert one.from_prefix("logs/ab") is None


def test_ranges_within_others_are_left_out_and_the_rest_is_in_order() -> None:
    found = disjoint([
        NameRange("b/"), NameRange("b/c/"), NameRange("b/x", exact=True), NameRange("a", exact=True), NameRange("a1"),
        NameRange("b/"),
    ])  # fmt: skip
    assert found == (NameRange("a", exact=True), NameRange("a1"), NameRange("b/"))
    assert disjoint([NameRange("a"), NameRange("a", exact=True)]) == (NameRange("a"),)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("objects/a*/b", "one name, or all that begin with a text"),
        ("objects/[a]/*", "one name, or all that begin with a text"),
        ("objects/", "has 0 bytes"),
        ("objects/../x*", "an empty part"),
        ("objects/a//b", "an empty part"),
    ],
)
def test_what_could_name_no_object_is_refused(words: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check_range(words)
    for good in ("objects/*", "objects/logs/*", "objects/logs/a*", "objects/a"):
        check_range(good)
