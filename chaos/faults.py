"""Faults of a running cluster, by name: each begins, lasts for a while and ends."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.cluster import Cluster
from chaos.machines import Link
from chaos.plan import ONE_RACK, Happening
from chaos.processes import Child

_HOUR_S = 3600.0
_AGAIN_S = 1.0


@dataclass
class Active:
    """A fault under way: when it ends by itself, and how."""

    happening: Happening
    ends_at: float
    end: Callable[[], None]


class Faults:
    """Begins and ends faults; used by one thread. `counts` has the number of times that each began, `lasting` those
    under way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.counts: Counter[str] = Counter()
        self.lasting: list[Active] = []

    def begin(self, happening: Happening, now: float) -> str:
        """Begin a fault. Returns the name of the process that it concerns, or "" if there is none for it."""
        rng = random.Random(happening.whom)
        begun = _BEGIN[happening.fault](self._cluster, rng)
        if begun is None:
            return ""
        whom, end = begun
        self.counts[happening.fault] += 1
        self.lasting.append(Active(happening, now + happening.seconds, end))
        return whom

    def end_due(self, now: float) -> None:
        for active in [one for one in self.lasting if one.ends_at <= now]:
            self.lasting.remove(active)
            active.end()
        self._restart()

    def end_all(self) -> None:
        """End all faults: all processes run again, with a whole network, disk and clock."""
        for active in self.lasting:
            active.end()
        self.lasting.clear()
        self._cluster.net.mend_all()
        for child in self._cluster.everybody():
            child.resume()
        self._restart()

    def _restart(self) -> None:
        """Restart processes that died of a fault, such as a bookie whose sync failed. One that cannot start yet is
        tried again.

        It does not wait for them: what they need may be paused or cut off, which ends only if this thread goes on.
        """
        down = {active.happening.fault for active in self.lasting}
        for child in reversed(self._cluster.everybody()):
            if not child.running and not down & _KEEP_DOWN and time.monotonic() - child.started_at > _AGAIN_S:
                child.spawn()


Begun = tuple[str, Callable[[], None]]
Begin = Callable[[Cluster, random.Random], Begun | None]


def _nothing() -> None:
    """Do nothing: this fault ends by itself when the stopped processes are restarted."""


def _kill(children: Sequence[Child]) -> Begun:
    for child in children:
        child.kill()
    return " ".join(child.name for child in children), _nothing


def _pause(child: Child) -> Begun:
    child.pause()
    return child.name, child.resume


def _one_rack(cluster: Cluster, rng: random.Random) -> Begun:
    """Pause the bookies of all racks but that with the most: they could be enough by their number, and never are."""
    sizes = Counter(cluster.racks[bookie.name] for bookie in cluster.bookies)
    left = max(sorted(sizes), key=lambda rack: sizes[rack])
    others = [bookie for bookie in cluster.bookies if cluster.racks[bookie.name] != left]

    def resume() -> None:
        for bookie in others:
            bookie.resume()

    for bookie in others:
        bookie.pause()
    return " ".join(bookie.name for bookie in others), resume


def _writers(cluster: Cluster) -> list[Child]:
    return [child for child in cluster.actors if child.name[0] in "ws"]


def _followers(cluster: Cluster) -> list[Child]:
    leader = cluster.leader()
    return [child for child in cluster.replicas() if child is not leader]


def _disk(**faults: int) -> Begin:
    def begin(cluster: Cluster, rng: random.Random) -> Begun | None:
        if not (bookies := cluster.fails_on_demand()):
            return None
        bookie = rng.choice(bookies)
        cluster.set_disk(bookie, full="full" in faults, **{k: v for k, v in faults.items() if k != "full"})
        return bookie.name, lambda: cluster.set_disk(bookie)

    return begin


def _long(cluster: Cluster) -> list[Child]:
    """Whom a fault concerns that outlives sessions. The metadata's servers have none."""
    return [*cluster.actors, *cluster.healers, *cluster.bookies]


def _links(make: Callable[[int, int], list[Link]]) -> Begin:
    """Return a fault of the network between a process and all others, or one other."""

    def begin(cluster: Cluster, rng: random.Random) -> Begun:
        everybody = cluster.everybody()
        one = rng.choice(everybody)
        others = [child for child in everybody if child is not one]
        if rng.random() < 0.5:
            others = [rng.choice(others)]
        return _spoil(cluster, [one], others, make)

    return begin


def _spoil(
    cluster: Cluster, these: Sequence[Child], those: Sequence[Child], make: Callable[[int, int], list[Link]]
) -> Begun:
    """Begin a fault of all links between two groups of processes; returns its name and the call that ends it."""
    links = [link for one in these for other in those for link in make(one.machine, other.machine)]
    cluster.net.add(*links)
    sides = (" ".join(child.name for child in side) for side in (these, those))
    return " and ".join(sides), lambda: cluster.net.mend(*links)


def _cut(one: int, other: int) -> list[Link]:
    return [Link(one, other, 1.0), Link(other, one, 1.0)]


def _cut_off(cluster: Cluster, one: Child) -> Begun:
    return _spoil(cluster, [one], [child for child in cluster.everybody() if child is not one], _cut)


def _split(cluster: Cluster, rng: random.Random) -> Begun:
    """Split the machines into two halves that do not reach each other."""
    everybody = cluster.everybody()
    rng.shuffle(everybody)
    middle = len(everybody) // 2
    return _spoil(cluster, everybody[:middle], everybody[middle:], _cut)


def _clock(cluster: Cluster, rng: random.Random) -> Begun:
    child = rng.choice([*cluster.bookies, *cluster.actors, *cluster.healers])
    offset_s = rng.choice((-48, -1, 1, 48)) * _HOUR_S * rng.random()
    cluster.set_clock(child, offset_s)
    return f"{child.name} by {offset_s:.0f} s", lambda: cluster.set_clock(child, 0.0)


def _of_metadata(begin: Callable[[list[Child], random.Random], Begun]) -> Begin:
    return lambda cluster, rng: begin(cluster.servers, rng) if cluster.servers else None


_BEGIN: dict[str, Begin] = {
    "kill bookie": lambda cluster, rng: _kill([rng.choice(cluster.bookies)]),
    "kill all bookies": lambda cluster, rng: _kill(cluster.bookies),
    "pause bookie": lambda cluster, rng: _pause(rng.choice(cluster.bookies)),
    ONE_RACK: _one_rack,
    "pause writer": lambda cluster, rng: _pause(rng.choice(_writers(cluster))),
    "pause actor": lambda cluster, rng: _pause(rng.choice(cluster.actors)),
    "long pause": lambda cluster, rng: _pause(rng.choice(_long(cluster))),
    "kill actor": lambda cluster, rng: _kill([rng.choice(cluster.actors)]),
    "kill healer": lambda cluster, rng: _kill([rng.choice(cluster.healers)]),
    "pause healer": lambda cluster, rng: _pause(rng.choice(cluster.healers)),
    "kill metadata": _of_metadata(lambda servers, rng: _kill([rng.choice(servers)])),
    "kill all metadata": _of_metadata(lambda servers, rng: _kill(servers)),
    "pause metadata": _of_metadata(lambda servers, rng: _pause(rng.choice(servers))),
    "full disk": _disk(full=1),
    "failed write": _disk(writes=1),
    "failed sync": _disk(syncs=1),
    "changed bytes": _disk(reads=3),
    "wrong clock": _clock,
    "cut off": _links(_cut),
    "long cut": lambda cluster, rng: _cut_off(cluster, rng.choice(_long(cluster))),
    "kill leader": lambda cluster, rng: _kill([cluster.leader()]),
    "kill follower": lambda cluster, rng: _kill([rng.choice(_followers(cluster))]),
    "kill all replicas": lambda cluster, rng: _kill(cluster.replicas()),
    "pause leader": lambda cluster, rng: _pause(cluster.leader()),
    "long pause of leader": lambda cluster, rng: _pause(cluster.leader()),
    "cut off leader": lambda cluster, rng: _cut_off(cluster, cluster.leader()),
    "long cut of leader": lambda cluster, rng: _cut_off(cluster, cluster.leader()),
    "split": _split,
    "cut in one direction": _links(lambda a, b: [Link(a, b, 1.0)]),
    "lossy link": _links(lambda a, b: [Link(a, b, 0.1), Link(b, a, 0.1)]),
    "slow link": _links(lambda a, b: [Link(a, b, 0.0, 50_000), Link(b, a, 0.0, 20_000)]),
}
_KEEP_DOWN = {fault for fault in _BEGIN if fault.startswith("kill ")}
"""Faults during which no process is restarted."""
