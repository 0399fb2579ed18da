import pytest

from buckram.core.placement.policy import ALL, ANYWHERE, HOSTS, LevelRule, PlacementPolicy
from buckram.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("any", PlacementPolicy((HOSTS,))),
        ("any host:1", PlacementPolicy((LevelRule("host", 1),))),
        ("rack:2", PlacementPolicy((LevelRule("rack", 2), HOSTS))),
        ("rack:2 host:2", PlacementPolicy((LevelRule("rack", 2), LevelRule("host", 2)))),
        ("rack:2 host:all", PlacementPolicy((LevelRule("rack", 2), HOSTS))),
        ("rack:2 host:all enforce=host", PlacementPolicy((LevelRule("rack", 2), LevelRule("host", ALL, ALL, True)))),
        ("rack:all:2", PlacementPolicy((LevelRule("rack", ALL, 2), HOSTS))),
        ("rack:2 enforce", PlacementPolicy((LevelRule("rack", 2, 2, True), HOSTS))),
        ("rack:3:1 enforce", PlacementPolicy((LevelRule("rack", 3, 1, True), HOSTS))),
        ("rack:3:2", PlacementPolicy((LevelRule("rack", 3, 2), HOSTS))),
        (
            "region:2:2 rack:2 enforce=region",
            PlacementPolicy((LevelRule("region", 2, 2, True), LevelRule("rack", 2), HOSTS)),
        ),
        (
            "zone:2-3 label=gold weights",
            PlacementPolicy((LevelRule("zone", 2, desired=3), HOSTS), "gold", False, True),
        ),
        ("any label=gold enforce", PlacementPolicy((HOSTS,), "gold", True)),
    ],
)
def test_words_mean_rules_and_are_written_as_they_are_read(text: str, policy: PlacementPolicy) -> None:
    assert PlacementPolicy.parse(text) == policy
    assert PlacementPolicy.parse(str(policy)) == policy


def test_the_rule_of_hosts_is_there_without_a_word_and_is_written_without_one() -> None:
    for text in ("rack:2", "rack:2 enforce", "any", "any label=gold enforce", "zone:2 rack:2 enforce=zone"):
        policy = PlacementPolicy.parse(text)
        assert policy.rule("host") == HOSTS
        assert str(policy) == text, "as versions read it that know no rule without a word"
    assert PlacementPolicy.parse(str(ANYWHERE)).rule("host") == LevelRule("host", 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs words"),
        ("row:2", "'row:2' is not understood"),
        ("rack:0", "needs numbers"),
        ("rack:2:3", "spread over 3"),
        ("rack:3-2", "write 2-3"),
        ("host:all-3", "needs numbers"),
        ("host:2-all", "needs numbers"),
        ("host:2:all", "or all, as in host:all"),
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
