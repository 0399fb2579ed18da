import pytest

from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.judge import acknowledged, breaches
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.placement.topology import Topology

WHERE = Topology.of({"a": "/eu/r1", "b": "/eu/r2", "c": "/us/r1", "d": "/us/r1"})


def test_each_write_quorum_is_judged_for_each_level() -> None:
    policy = PlacementPolicy.parse("region:2 rack:2")
    assert breaches(["a", "c", "b", "d"], Quorum(4, 2, 2), policy, WHERE) == []
    found = breaches(["a", "b", "c", "d"], Quorum(4, 2, 2), policy, WHERE)
    assert [(one.level, one.members) for one in found] == [
        ("region", ("a", "b")),
        ("region", ("c", "d")),
        ("rack", ("c", "d")),
    ]
    assert str(found[0]) == "level region: a, b are in /eu, 2 are needed"


def test_a_place_that_is_not_known_is_none() -> None:
    (found,) = breaches(["a", "x"], Quorum(2, 2, 1), PlacementPolicy.parse("rack:2"), WHERE)
    assert found.found == ("/eu//r1",)


def test_a_level_that_nobody_named_is_asked_for_only_where_it_is_enforced() -> None:
    nowhere, three = Topology(), Quorum(3, 3, 2)
    assert breaches(["a", "b", "c"], three, PlacementPolicy.parse("rack:2"), nowhere) == []
    assert breaches(["a", "b", "c"], three, PlacementPolicy.parse("zone:2 rack:2"), Topology.of({"d": "/r1"}))
    assert breaches(["a", "b", "c"], three, PlacementPolicy.parse("rack:2 enforce"), nowhere)


@pytest.mark.parametrize(
    ("text", "copies", "enough"),
    [
        ("rack:2", "ab", True),
        ("rack:2", "a", False),
        ("rack:2 enforce", "cd", False),
        ("rack:2 enforce", "ac", True),
        ("region:2 rack:2 enforce", "ab", False),
        ("region:2:2", "ab", False),
        ("region:2:1 enforce", "ab", True),
    ],
)
def test_copies_are_enough_when_they_span_each_level(text: str, copies: str, enough: bool) -> None:
    policy = PlacementPolicy.parse(text)
    assert acknowledged(list(copies), ["a", "b", "c", "d"], Quorum(4, 4, 2), policy, WHERE) is enough


def test_without_enforcement_no_more_is_asked_than_the_write_set_has() -> None:
    policy = PlacementPolicy.parse("rack:2:2")
    assert acknowledged(["c", "d"], ["c", "d", "x"], Quorum(3, 3, 2), policy, WHERE)
    strict = PlacementPolicy.parse("rack:2:2 enforce")
    assert not acknowledged(["c", "d"], ["c", "d", "x"], Quorum(3, 3, 2), strict, WHERE)
