"""Placement policies: one kind of policy with a rule for each level, and Apache's four as presets of it.

A policy is written as words: `rack:2` spreads each write quorum over at least two racks where that can be done,
`rack:2:2 enforce` refuses any other ensemble, and acknowledges no entry before its copies are in two racks. A policy
without a rule for hosts spreads over them, too: `host:all`, each copy of an entry on a host of its own, as far as there
are hosts. `host:1` takes that back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from buckram.core.placement.topology import LEVELS, NOWHERE, Location, Topology, check_label
from buckram.errors import ConfigError, InvalidArgument
from buckram.types import BookieId

_FORM = (
    "needs words such as `rack:2`, `region:2:2 rack:2 enforce=region`, `host:all`, `label=NAME`, `weights`, `any`, or "
    "the name of one of Apache's policies"
)
ALL = 1000
"""The spread of `all`: each copy of an entry in a domain of its own."""


@dataclass(frozen=True, slots=True)
class LevelRule:
    """Each write quorum spans at least `spread` domains of the level, and an entry is acknowledged only from `ack`.

    Both are capped at the write quorum. `desired`: number of domains to span if there are so many; 0: `spread`.
    `enforce`: an ensemble that does not meet the rule is refused; otherwise the best one is taken, and `ack` asks for
    no more domains than that has.
    """

    level: str
    spread: int
    ack: int = 1
    enforce: bool = False
    desired: int = 0

    def needed(self, write_quorum: int) -> int:
        return max(1, min(write_quorum, self.spread))

    def wanted(self, write_quorum: int) -> int:
        return max(1, min(write_quorum, max(self.spread, self.desired)))

    def acks(self, write_quorum: int) -> int:
        return max(1, min(write_quorum, self.ack))

    @property
    def as_there_are(self) -> bool:
        """Return whether the rule asks for no more domains than there are (`all`, not enforced)."""
        return self.spread >= ALL and not self.enforce

    def __str__(self) -> str:
        wide = f"-{self.desired}" if self.desired > self.spread else ""
        ack = f":{self.ack}" if self.ack != (self.spread if self.enforce else 1) else ""
        return f"{self.level}:{'all' if self.spread >= ALL else self.spread}{wide}{ack}"


HOSTS = LevelRule("host", ALL)
"""The rule of hosts in each policy that is written without one."""


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """Rules by level, and the bookies that may be taken.

    `label`: those with this label are taken first, or, with `enforce_label`, only those; "": bookies without one first.
    """

    rules: tuple[LevelRule, ...] = ()
    label: str = ""
    enforce_label: bool = False
    weights: bool = False
    """Draw bookies with more free space more often."""

    @classmethod
    def parse(cls, text: str) -> PlacementPolicy:
        """Parse a policy. Raises InvalidArgument, which names the wrong word and the accepted ones."""
        words = text.split()
        if not words:
            raise InvalidArgument(f"placement {text!r}: {_FORM}")
        preset = PRESETS.get(words[0].rpartition(".")[2])
        return _parsed(text, words) if preset is None else _preset(text, words)

    def rule(self, level: str) -> LevelRule | None:
        return next((rule for rule in self.rules if rule.level == level), None)

    @property
    def enforces(self) -> bool:
        return self.enforce_label or any(rule.enforce for rule in self.rules)

    @property
    def strict(self) -> list[bool]:
        """Return for each rule whether it is enforced."""
        return [rule.enforce for rule in self.rules]

    def label_fits(self, bookie: BookieId, topology: Topology) -> bool:
        """Return whether a bookie has the label of the policy; if the policy has none, whether it has no label."""
        labels = topology.labelled(bookie)
        return self.label in labels if self.label else not labels

    def __str__(self) -> str:
        # The default rule of hosts is not written, so that older versions can read what newer ones recorded.
        named = [rule for rule in self.rules if rule != HOSTS]
        words = [str(rule) for rule in named] or ["any"]
        words += [] if self.rule("host") else ["host:1"]
        words += [f"label={self.label}"] if self.label else []
        words += ["weights"] if self.weights else []
        strict = [rule.level for rule in self.rules if rule.enforce] + (["label"] if self.enforce_label else [])
        if len(strict) == len(named) + bool(self.label) and strict:
            words.append("enforce")
        elif strict:
            words.append(f"enforce={','.join(strict)}")
        return " ".join(words)


ANYWHERE = PlacementPolicy()
"""No rule at all; written `any host:1`."""

PLACEMENT_KEY = "buckram.placement"
"""Key in the custom metadata of a ledger that was made under a policy of its own."""


def policy_of(custom_metadata: Mapping[str, bytes], default: PlacementPolicy) -> PlacementPolicy:
    """Return the policy under which a ledger was made; `default` if it records none, or one of other software that does
    not parse."""
    kept = custom_metadata.get(PLACEMENT_KEY)
    if kept is None:
        return default
    try:
        return PlacementPolicy.parse(kept.decode())
    except (InvalidArgument, UnicodeDecodeError):
        return default


def parse_policy(key: str, text: str) -> PlacementPolicy:
    """Parse a policy for a key of the configuration. Raises ConfigError."""
    try:
        return PlacementPolicy.parse(text)
    except InvalidArgument as error:
        raise ConfigError(f"{key}: {error}") from None


def parse_location(key: str, path: str) -> Location:
    """Parse a location for a key of the configuration; an empty path is NOWHERE. Raises ConfigError."""
    try:
        return Location.parse(path) if path else NOWHERE
    except InvalidArgument as error:
        raise ConfigError(f"{key}: {error}") from None


def _parsed(text: str, words: Sequence[str]) -> PlacementPolicy:
    rules: dict[str, tuple[int, int, int | None]] = {}
    label, weights, strict = "", False, list[str]()
    for word in words:
        name, colon, numbers = word.partition(":")
        key, equals, value = word.partition("=")
        if colon and name in LEVELS and name not in rules:
            rules[name] = _numbers(text, word, numbers)
        elif equals and key == "label":
            label = check_label(value)
        elif word == "weights":
            weights = True
        elif word == "enforce":
            strict.append("all")
        elif equals and key == "enforce":
            strict += value.split(",")
        elif word != "any":
            raise InvalidArgument(f"placement {text!r}: {word!r} is not understood: {_FORM}")
    for level in strict:
        if level not in rules and level != "all" and not (level == "label" and label):
            raise InvalidArgument(f"placement {text!r}: enforce={level} has no rule: add one such as {level}:2")
    if strict and not rules and not label:
        raise InvalidArgument(f"placement {text!r}: there is nothing to enforce: add a rule such as rack:2")
    found = []
    for level in LEVELS:
        if level in rules:
            spread, desired, ack = rules[level]
            enforce = "all" in strict or level in strict
            found.append(
                LevelRule(level, spread, ack if ack is not None else spread if enforce else 1, enforce, desired)
            )
    found += [] if HOSTS.level in rules else [HOSTS]
    return PlacementPolicy(tuple(found), label, bool(label) and ("all" in strict or "label" in strict), weights)


def _numbers(text: str, word: str, numbers: str) -> tuple[int, int, int | None]:
    spreads, colon, acks = numbers.partition(":")
    least, dash, most = spreads.partition("-")
    every = least == "all" and not dash
    parts = [*([] if every else [least]), *([most] if dash else []), *([acks] if colon else [])]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:6]) <= 100 for part in parts):
        raise InvalidArgument(
            f"placement {text!r}: {word!r} needs numbers from 1 to 100, as in rack:2 or rack:2:2, or all, as in "
            "host:all"
        )
    spread, desired = ALL if every else int(least), int(most) if dash else 0
    ack = int(acks) if colon else None
    if dash and desired < spread:
        raise InvalidArgument(f"placement {text!r}: {word!r} desires fewer than it needs: write {desired}-{spread}")
    if ack is not None and ack > spread:
        raise InvalidArgument(
            f"placement {text!r}: {word!r} acknowledges from {ack} and spreads over {spread}: spread over {ack}, too"
        )
    return spread, desired, ack


# -- Apache's ---------------------------------------------------------------------------------------------------------

PRESETS: dict[str, Mapping[str, str]] = {
    "DefaultEnsemblePlacementPolicy": {},
    "RackawareEnsemblePlacementPolicy": {
        "minNumRacksPerWriteQuorum": "2",
        "enforceMinNumRacksPerWriteQuorum": "false",
        "enforceMinNumFaultDomainsForWrite": "false",
    },
    "RegionAwareEnsemblePlacementPolicy": {
        "minNumRegionsPerWriteQuorum": "2",
        "enforceMinNumRegionsPerWriteQuorum": "true",
        "minNumRacksPerWriteQuorum": "2",
        "enforceMinNumRacksPerWriteQuorum": "false",
    },
    "ZoneawareEnsemblePlacementPolicy": {
        "minNumZonesPerWriteQuorum": "2",
        "desiredNumZonesPerWriteQuorum": "3",
        "enforceStrictZoneawarePlacement": "true",
        "enforceMinNumFaultDomainsForWrite": "false",
    },
}
"""Apache's policies with their parameters and defaults. The parameters follow the name: `name=value`, by spaces."""
_ALSO = {
    "reppMinimumRegionsForDurability": "minNumRegionsPerWriteQuorum",
    "minRegionsForDurability": "minNumRegionsPerWriteQuorum",
    "reppEnableDurabilityEnforcementInReplace": "enforceMinNumRegionsPerWriteQuorum",
    "minNumZones": "minNumZonesPerWriteQuorum",
    "desiredNumZones": "desiredNumZonesPerWriteQuorum",
}
_OURS = ("label", "weights")


def _preset(text: str, words: Sequence[str]) -> PlacementPolicy:
    name = words[0].rpartition(".")[2]
    values, ours = dict(PRESETS[name]), list[str]()
    for word in words[1:]:
        key, equals, value = word.partition("=")
        key = _ALSO.get(key, key)
        if key in _OURS:
            ours.append(word)
            continue
        if key not in values or not equals:
            known = ", ".join(values) or "none"
            raise InvalidArgument(f"placement {text!r}: {word!r} is no parameter of {name}; it has: {known}")
        flag = values[key] in ("true", "false")
        if (value not in ("true", "false")) if flag else not (value.isascii() and value.isdigit()):
            raise InvalidArgument(f"placement {text!r}: {word!r} needs {'true or false' if flag else 'a number'}")
        values[key] = value
    return _parsed(text, [*_PRESET_WORDS[name](values), *ours])


def _rack_words(v: Mapping[str, str]) -> list[str]:
    least, strict = v["minNumRacksPerWriteQuorum"], v["enforceMinNumRacksPerWriteQuorum"] == "true"
    ack = least if v.get("enforceMinNumFaultDomainsForWrite") == "true" else "1"
    return [f"rack:{least}:{ack}", *(["enforce=rack"] if strict else [])]


def _region_words(v: Mapping[str, str]) -> list[str]:
    least = v["minNumRegionsPerWriteQuorum"]
    strict = ["enforce=region"] if v["enforceMinNumRegionsPerWriteQuorum"] == "true" else []
    # Apache makes Qa copies span the regions by the choice of members alone; here the acknowledgement asks for it.
    return [f"region:{least}:{least}", *strict, *_rack_words(v)]


def _zone_words(v: Mapping[str, str]) -> list[str]:
    least, most = int(v["minNumZonesPerWriteQuorum"]), int(v["desiredNumZonesPerWriteQuorum"])
    ack = least if v["enforceMinNumFaultDomainsForWrite"] == "true" else 1
    strict = ["enforce=zone"] if v["enforceStrictZoneawarePlacement"] == "true" else []
    return [f"zone:{least}-{max(least, most)}:{ack}", "rack:2", *strict]


_PRESET_WORDS = {
    "DefaultEnsemblePlacementPolicy": lambda v: ["any"],
    "RackawareEnsemblePlacementPolicy": _rack_words,
    "RegionAwareEnsemblePlacementPolicy": _region_words,
    "ZoneawareEnsemblePlacementPolicy": _zone_words,
}
