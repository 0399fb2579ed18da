"""Plan of a run, drawn from its seed: which faults, when, for how long. Pure.

A run is a row of rounds. In a round faults come one after the other and overlap; at its end all of them end, the
cluster has to heal, and then one bookie is lost for good. So at no time are more copies lost than the cluster must
bear.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

ROUND_S = 45.0
"""Seconds of faults in a round; healing comes on top."""
LONGEST_S = 6.0
LONG_S = (12.0, 20.0)
"""Shortest and longest duration of long faults, seconds. They outlive the sessions (10 s) of the processes
concerned."""
AT_ONCE = 3
MOST_OF_IT = 0.6
"""The share of the minutes in which rounds begin; the rest is for healing and reading everything."""

FAULTS = {
    "kill bookie": 5,
    "kill all bookies": 1,
    "pause bookie": 3,
    "pause writer": 3,
    "pause actor": 1,
    "long pause": 2,
    "kill actor": 3,
    "kill healer": 3,
    "pause healer": 2,
    "kill metadata": 3,
    "kill all metadata": 1,
    "pause metadata": 2,
    "full disk": 2,
    "failed write": 1,
    "failed sync": 1,
    "changed bytes": 2,
    "wrong clock": 2,
    "cut off": 3,
    "long cut": 1,
    "split": 1,
    "cut in one direction": 3,
    "lossy link": 2,
    "slow link": 2,
    "kill leader": 4,
    "kill follower": 2,
    "kill all replicas": 1,
    "pause leader": 2,
    "long pause of leader": 1,
    "cut off leader": 2,
    "long cut of leader": 1,
}
"""Weight of each fault in the draw. The leader is that of the database."""
LONG = {"long pause", "long cut", "long pause of leader", "long cut of leader"}
ONE_RACK, ONE_RACK_S = "one rack left", 5.0
"""The last fault of each round, alone, and its seconds: the bookies of all racks but one are paused."""
OWN_SERVER = {"kill metadata", "kill all metadata", "pause metadata"}
"""Faults that are possible only if the metadata are in processes of their own."""


class Happening(NamedTuple):
    """A fault: how many seconds after the round's begin, what, for how long, and a number that chooses whom."""

    at_s: float
    fault: str
    seconds: float
    whom: int


class Plan(NamedTuple):
    """A whole run. `lost`: the number that chooses the bookie that is lost for good after each round."""

    seed: int
    metadata: str
    bookies: int
    rounds: tuple[tuple[Happening, ...], ...]
    lost: tuple[int, ...]


def make_plan(seed: int, metadata: str, minutes: float, *, round_s: float = ROUND_S) -> Plan:
    """Return the plan of this seed: as many rounds as there may be time for."""
    rng = random.Random(f"chaos {seed}")
    weights = dict(FAULTS)
    if metadata == "sqlite":
        weights = {fault: weight for fault, weight in weights.items() if fault not in OWN_SERVER}
    seconds = min(round_s, minutes * 60 * 0.5)
    count = max(1, round(minutes * 60 * MOST_OF_IT / (seconds + 15)))
    rounds = tuple(_round(rng, weights, seconds) for _ in range(count))
    return Plan(seed, metadata, 5, rounds, tuple(rng.randrange(1 << 30) for _ in rounds))


def _round(rng: random.Random, weights: dict[str, int], seconds: float) -> tuple[Happening, ...]:
    names, found, at_s = list(weights), list[Happening](), rng.random() * 2
    while at_s < seconds:
        fault = rng.choices(names, list(weights.values()))[0]
        lasts = min(LONGEST_S, 0.2 + rng.random() ** 2 * LONGEST_S)
        if fault in LONG:
            lasts = rng.uniform(*LONG_S)
        if _under_way(found, at_s) < AT_ONCE:
            found.append(Happening(round(at_s, 3), fault, round(lasts, 3), rng.randrange(1 << 30)))
        at_s += rng.expovariate(0.6)
    calm_s = max((one.at_s + one.seconds for one in found), default=0.0)
    found.append(Happening(round(calm_s + 0.5, 3), ONE_RACK, ONE_RACK_S, 0))
    return tuple(found)


def _under_way(found: Sequence[Happening], at_s: float) -> int:
    return sum(one.at_s + one.seconds > at_s for one in found)
