import pytest

from buckram.core.placement.policy import ANYWHERE, LevelRule, PlacementPolicy
from buckram.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("any", ANYWHERE),
        ("rack:2", PlacementPolicy((LevelRule("rack", 2),))),
        ("rack:2 enforce", PlacementPolicy((LevelRule("rack", 2, 2, True),))),
        ("rack:3:1 enforce", PlacementPolicy((LevelRule("rack", 3, 1, True),))),
        ("rack:3:2", PlacementPolicy((LevelRule("rack", 3, 2),))),
        (
            "region:2:2 rack:2 enforce=region",
            PlacementPolicy((LevelRule("region", 2, 2, True), LevelRule("rack", 2))),
        ),
        ("zone:2-3 label=gold weights", PlacementPolicy((LevelRule("zone", 2, desired=3),), "gold", False, True)),
        ("any label=gold enforce", PlacementPolicy((), "gold", True)),
    ],
)
def test_words_mean_rules_and_are_written_as_they_are_read(text: str, policy: PlacementPolicy) -> None:
    assert PlacementPolicy.parse(text) == policy
    assert PlacementPolicy.parse(str(policy)) == policy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs words"),
        ("row:2", "'row:2' is not understood"),
        ("rack:0", "needs numbers"),
        ("rack:2:3", "spread over 3"),
        ("rack:3-2", "write 2-3"),
        ("any enforce", "nothing to enforce"),
        ("rack:2 enforce=zone", "enforce=zone has no rule"),
        ("RackawareEnsemblePlacementPolicy racks=3", "it has: minNumRacksPerWriteQuorum"),
        ("RackawareEnsemblePlacementPolicy minNumRacksPerWriteQuorum=x", "needs a number"),
        ("label=a/b", "label"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        PlacementPolicy.parse(text)


@pytest.mark.parametrize(
    ("apache", "ours"),
    [
        ("DefaultEnsemblePlacementPolicy", "any"),
        ("RackawareEnsemblePlacementPolicy", "rack:2"),
        ("org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy", "rack:2"),
        (
            "RackawareEnsemblePlacementPolicy minNumRacksPerWriteQuorum=3 enforceMinNumRacksPerWriteQuorum=true",
            "rack:3:1 enforce",
        ),
        (
            "RackawareEnsemblePlacementPolicy enforceMinNumRacksPerWriteQuorum=true "
            "enforceMinNumFaultDomainsForWrite=true",
            "rack:2 enforce",
        ),
        ("RegionAwareEnsemblePlacementPolicy", "region:2:2 rack:2 enforce=region"),
        ("RegionAwareEnsemblePlacementPolicy reppMinimumRegionsForDurability=3", "region:3 rack:2 enforce=region"),
        ("ZoneawareEnsemblePlacementPolicy", "zone:2-3:1 rack:2 enforce=zone"),
        (
            "ZoneawareEnsemblePlacementPolicy desiredNumZones=2 enforceStrictZoneawarePlacement=false label=gold",
            "zone:2 rack:2 label=gold",
        ),
    ],
)
def test_apaches_policies_are_presets(apache: str, ours: str) -> None:
    found, wanted = PlacementPolicy.parse(apache), PlacementPolicy.parse(ours)
    assert str(found) == str(wanted)
