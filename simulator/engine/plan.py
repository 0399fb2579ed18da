"""The plan of a life's cluster, drawn from its seed: shape, sizes, modes, configuration and kinds of faults.

Plans favour what exposed defects before: E > Qw, Qw == Qa, Qa = 1, clusters no larger than the ensemble, few entries.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from buckram.config import BookieConfig, ClientConfig, NetConfig, StoreConfig
from buckram.types import DigestType
from simulator.engine.faults import all_faults, faults_for
from simulator.engine.faults.registry import LEDGERS, STREAMS
from simulator.engine.pace import LATE_S, Pace, draw_pace
from simulator.engine.world import KIB, Configs

SHAPES = (
    (3, 3, 2),
    (3, 3, 2),
    (3, 2, 2),
    (3, 2, 2),
    (2, 2, 2),
    (2, 2, 2),
    (3, 3, 3),
    (3, 2, 1),
    (3, 3, 1),
    (2, 2, 1),
    (4, 3, 2),
    (4, 2, 2),
    (4, 2, 1),
    (4, 4, 3),
    (5, 3, 2),
    (5, 2, 2),
    (5, 3, 3),
    (4, 3, 3),
    (1, 1, 1),
    (2, 1, 1),
    (3, 1, 1),
    (5, 5, 3),
)
SHAPES_WITH_LIAR = ((3, 3, 2), (2, 2, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3), (5, 5, 3))
METADATA = ("memory",) * 8 + ("zk+hierarchical", "zk+hierarchical", "zk+longhierarchical", "zk+flat")
"""A third of the lives run on a simulated ZooKeeper. This is drawn from random numbers of its own, so that it changes
nothing else of a life."""


@dataclass(slots=True)
class Plan:
    """The plan of a life. `shape` is (E, Qw, Qa), `faults` are names of registered faults.

    `busy_s` is about how long clients work. `entries` is the number of entries per ledger, roughly; the flags are
    explained where they are used.
    """

    seed: int
    bookies: int
    shape: tuple[int, int, int]
    digest: DigestType
    configs: Configs
    faults: list[str]
    metadata: str = "memory"
    writers: int = 1
    readers: int = 1
    recoverers: int = 1
    entries: int = 3
    explicit: bool = False
    deferred: bool = False
    racks: int = 0
    regions: bool = False
    """True if the rule of `racks` is one of regions; then each bookie has a rack of its own."""
    sites: int = 0
    """Number of hosts that bookies share, with copies to be kept apart (M6); 0: each bookie has a host of its own."""
    liar: bool = False
    attacker: bool = False
    deleting: bool = False
    again: bool = False
    """True if ids of deleted ledgers are given to new ledgers at the end."""
    repairing: bool = False
    collecting: bool = False
    hung_for_good: bool = False
    final_power_loss: bool = False
    late_wake: bool = False
    calm: bool = False
    large: bool = False
    tenants: str = ""
    """Permissions of a client of another tenant on the ledgers (none or read); empty: bookies demand no logins."""
    quotas: Mapping[str, int | None] = field(default_factory=dict)
    password: bytes = b""
    busy_s: float = 2.0
    pace: Pace = field(default_factory=Pace)
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def cluster(self) -> Plan:
        """Return the plan itself: the plan of a life of ledgers is that of its cluster."""
        return self

    def location(self, number: int) -> str | None:
        """Return where a bookie is: in one of two regions, or racks; None where that does not matter."""
        if not self.racks:
            return None
        return f"/region{number % 2}/rack{number}" if self.regions else f"/rack{number % 2}"

    def site(self, number: int) -> str:
        """Return the shared host on which a bookie runs; empty: one of its own."""
        return f"host{number % self.sites}" if self.sites else ""

    def __str__(self) -> str:
        modes = [
            name
            for name in (
                "explicit",
                "deferred",
                "liar",
                "attacker",
                "deleting",
                "again",
                "repairing",
                "collecting",
                "hung_for_good",
                "final_power_loss",
                "late_wake",
                "calm",
            )
            if getattr(self, name)
        ]
        places = f" stranger {self.tenants}" if self.tenants else ""
        places += f" quotas {self.quotas}" if self.quotas else ""
        places += f" {'regions' if self.regions else 'racks'} {self.racks}" if self.racks else ""
        places += f" hosts {self.sites}" if self.sites else ""
        return (
            f"{self.bookies} bookies, {self.quorums}, {self.digest.name}, v{self.configs.client.wire_protocol}, "
            f"{self.metadata}, about {self.entries} entries, {self.writers}+{self.readers}+{self.recoverers} clients, "
            f"faults {self.faults}, {self.pace}, "
            f"{' '.join(modes)}{places}"
        )

    @property
    def quorums(self) -> str:
        """Return the shape of ledgers as text, such as 3/3/2."""
        return "/".join(map(str, self.shape))

    @property
    def beginning(self) -> str:
        """Return what the texts of other subjects' plans begin with."""
        return f"{self.bookies} bookies, {self.quorums}, {self.metadata}, {self.pace}"


def make_cluster(seed: int) -> Plan:
    """Return the plan of a cluster, with common faults only."""
    rng = random.Random(f"plan {seed}")
    shape = rng.choice(SHAPES)
    bookies = max(3, min(5, shape[0] + rng.choice((0, 0, 1, 1, 2))))
    plan = Plan(seed, bookies, shape, rng.choice(list(DigestType)), _configs(rng), _faults(rng, shape, bookies))
    plan.entries = rng.choice((0, 1, 2, 3, 5, 5, 8, 12, 20, 30))
    plan.writers = rng.choice((1, 1, 1, 2))
    plan.readers = rng.choice((0, 1, 1, 2))
    plan.recoverers = rng.choice((0, 1, 1, 2)) if plan.readers else rng.choice((1, 1, 2))
    plan.busy_s = rng.choice((0.3, 1.0, 2.0, 6.0))
    plan.password = rng.choice((b"", b"", b"secret"))
    _suit_faults(plan)
    shape = plan.shape
    kind = rng.random()
    if kind < 0.08:
        plan.explicit = True
    elif kind < 0.16:
        plan.deferred = True
    elif kind < 0.24 and shape[1] >= 2:
        plan.racks = 2
        plan.regions = random.Random(f"regions {seed}").random() < 0.4
        plan.faults = [fault for fault in plan.faults if fault != "wipe"] or ["kill"]
    elif kind < 0.30:
        plan.liar, plan.digest, plan.faults = True, DigestType.MAC, plan.faults[:1]
        plan.faults = [fault for fault in plan.faults if not all_faults()[fault].damages] or ["cut"]
        _suit_liar(plan)
        shape = plan.shape
    plan.attacker = rng.random() < 0.12
    plan.deleting = rng.random() < 0.12
    plan.repairing = rng.random() < 0.15
    plan.collecting = plan.deleting and rng.random() < 0.7
    plan.hung_for_good = 2 <= shape[2] < shape[1] and shape[0] == shape[1] and rng.random() < 0.12
    plan.final_power_loss = rng.random() < 0.2
    plan.late_wake = rng.random() < 0.3
    plan.calm = rng.random() < 0.15
    if "wipe" in plan.faults and rng.random() < 0.5:
        plan.repairing = True
    if "flip" in plan.faults:
        plan.repairing = plan.repairing or rng.random() < 0.5
        if plan.digest is DigestType.DUMMY:
            plan.digest = DigestType.CRC32C  # DUMMY finds nothing, so the reader could not notice
    if plan.collecting:
        plan.configs.bookie = BookieConfig(collection_interval_s=4.0, collection_age_s=6.0)
    if plan.racks:
        _enforce_racks(plan)
    plan.again = not plan.racks and random.Random(f"ids again {seed}").random() < 0.14
    plan.metadata = random.Random(f"metadata kind {seed}").choice(METADATA)
    plan.pace = draw_pace(seed, plan.bookies)
    set_pace(plan)
    return plan


def make_plain_cluster(seed: int) -> Plan:
    """Return the plan of a cluster for lives of what is built on ledgers: without modes that are of ledgers alone."""
    cluster = make_cluster(seed)
    cluster.liar = cluster.attacker = cluster.hung_for_good = cluster.explicit = cluster.deferred = False
    cluster.racks, cluster.password, cluster.deleting, cluster.large = 0, b"", False, False
    cluster.again = cluster.late_wake = False
    return cluster


def hurry(cluster: Plan) -> None:
    """Bound the delay of metadata: longer ones only make lives long that read metadata all the time."""
    cluster.pace = replace(cluster.pace, late_s=min(cluster.pace.late_s, LATE_S))
    set_pace(cluster)


def usual_configs(cluster: Plan, **client: Any) -> None:
    """Give clients and bookies the settings of lives that are not of ledgers alone, clients also those of `client`."""
    cluster.configs.client = replace(cluster.configs.client, placement="rack:2", **client)
    cluster.configs.bookie = BookieConfig()


def draw_faults(
    rng: random.Random, cluster: Plan, own: Mapping[str, float], common: Sequence[int], further: Sequence[int]
) -> None:
    """Draw the faults of a life that is not of ledgers alone: some of the cluster's, some of its `own`, by weight.

    `common` and `further` are the numbers of each to choose from. A tenth of the lives has no faults.
    """
    cluster.faults = cluster.faults[: rng.choice(common)]
    cluster.faults += rng.choices(list(own), list(own.values()), k=rng.choice(further))
    none = rng.random() < 0.1
    draw_independent_faults(cluster, STREAMS)
    if cluster.bookies <= cluster.shape[0]:
        # A bookie that is gone for good would leave too few for new ledgers.
        cluster.faults = [fault for fault in cluster.faults if fault != "wipe"]
    if none:
        cluster.faults = []


def log_policy(rng: random.Random, cluster: Plan, roll_bytes: Sequence[int], roll_s: Sequence[float]) -> dict[str, Any]:
    """Return a stream's policy that suits the cluster."""
    return {
        "ensemble": "/".join(map(str, cluster.shape)),
        "digest": cluster.digest.name.lower(),
        "roll_bytes": rng.choice(roll_bytes),
        "roll_s": rng.choice(roll_s),
    }


def draw_sites(plan: Plan) -> None:
    """Have bookies share hosts in some lives, by random numbers of its own. Hosts are fewer than bookies."""
    rng = random.Random(f"sites {plan.seed}")
    if not plan.racks and not plan.liar and plan.bookies > 2 and rng.random() < 0.3:
        plan.sites = rng.randrange(2, plan.bookies)


def _suit_liar(plan: Plan) -> None:
    """Give three quarters of the lives with a liar an ack quorum of at least 2, which the guarantees against it need.

    This is drawn from random numbers of its own, so that it changes nothing else of a life.
    """
    rng = random.Random(f"liar {plan.seed}")
    if plan.shape[2] < 2 and rng.random() < 0.75:
        plan.shape = rng.choice(SHAPES_WITH_LIAR)
        plan.bookies = max(plan.bookies, min(5, plan.shape[0] + rng.choice((0, 1))))
    plan.entries = max(plan.entries, rng.choice((3, 5, 12)))


def is_rare(plan: Plan) -> bool:
    """Return whether few lives are like this: slow disks, late metadata, damage, racks, repairs, rare faults."""
    pace = plan.pace
    known = all_faults()
    rare = any(known[fault].independent or known[fault].damages for fault in plan.faults)
    return bool(rare or pace.late_s or pace.sync_s or plan.racks or plan.repairing)


def _suit_faults(plan: Plan) -> None:
    """Change the plan so that its faults have an effect: some do so only in lives of a certain kind."""
    known = all_faults()
    for fault in known.values():
        if fault.name in plan.faults:
            fault.suit(plan)
    if plan.shape[2] < 2:
        plan.faults = [name for name in plan.faults if not known[name].damages] or ["kill"]


def draw_independent_faults(plan: Plan, lives: str) -> None:
    """Add the independent faults of one kind of lives (LEDGERS or STREAMS) to a plan that is otherwise complete."""
    known = all_faults()
    for fault in faults_for(lives, independent=True):
        damaged = any(known[name].damages for name in plan.faults)
        if random.Random(f"{fault.name} {plan.seed}").random() * 100 >= fault.weight or not fault.fits(plan):
            continue
        if not fault.damages or (plan.shape[2] >= 2 and not damaged and not plan.liar):
            plan.faults.append(fault.name)
            fault.suit(plan)


def set_pace(plan: Plan) -> None:
    """Fit time-outs and the busy time to the pace of the life."""
    pace = plan.pace
    # Clients come up and ledgers are made before the faults have passed.
    plan.busy_s = max(plan.busy_s, 10 * pace.sync_s, 1.5 * pace.metadata_s if pace.late_s else 0.0)
    # An add to a new ledger waits until its bookie has read the metadata. Where that takes longer than any reasonable
    # time-out, requests fail, and only safety must hold.
    net, least = plan.configs.net, max(10 * pace.sync_s, 6 * pace.metadata_s if 0 < pace.late_s <= LATE_S else 0.0)
    if net.request_timeout_s < least:
        plan.configs.net = replace(net, request_timeout_s=least)


def _enforce_racks(plan: Plan) -> None:
    """Configure clients to refuse an ensemble that does not spread over the plan's racks."""
    client = plan.configs.client
    plan.configs.client = ClientConfig(
        idle_lac_ms=client.idle_lac_ms,
        speculative_read_ms=client.speculative_read_ms,
        quarantine_s=client.quarantine_s,
        long_poll_s=client.long_poll_s,
        wire_protocol=client.wire_protocol,
        placement=f"region:{plan.racks} rack:{plan.racks} enforce" if plan.regions else f"rack:{plan.racks} enforce",
    )


def _configs(rng: random.Random) -> Configs:
    segment = rng.choice((64, 64, 128)) * KIB
    return Configs(
        net=NetConfig(connect_timeout_s=1.0, request_timeout_s=rng.choice((0.3, 1.0, 3.0)), sweep_interval_s=0.25),
        store=StoreConfig(
            segment_bytes=segment,
            commit_max_bytes=rng.choice((4, 16)) * KIB,
            tail_cache_bytes=rng.choice((8, 64)) * KIB,
            ledger_cache_entries=rng.choice((4, 64)),
            reserved_bytes=2 * segment,
            writable_again_bytes=3 * segment,
        ),
        bookie=BookieConfig(),
        client=ClientConfig(
            max_pending_entries=rng.choice((2, 20_000, 20_000)),
            idle_lac_ms=10.0,
            speculative_read_ms=rng.choice((20.0, 200.0)),
            read_ahead_entries=rng.choice((4, 100)),
            read_batch_bytes=rng.choice((256, 4096, 1 << 20)),
            quarantine_s=rng.choice((0.5, 5.0)),
            long_poll_s=rng.choice((0.3, 2.0)),
            wire_protocol=rng.choice((2, 2, 3)),
            local_read_bytes=1,
        ),
    )


def _faults(rng: random.Random, shape: tuple[int, int, int], bookies: int) -> list[str]:
    pool = faults_for(LEDGERS, independent=False)
    count = rng.choice((1, 1, 2, 2, 3, 4))
    faults = rng.choices(pool, [fault.weight for fault in pool], k=count)
    # Damage stays within the guarantee: at most one bookie loses data, and only where others hold it, too.
    damage = [fault for fault in faults if fault.damages]
    names = [fault.name for fault in faults if not fault.damages]
    if damage:
        # Where Qw == Qa, a bookie that never comes back must be replaceable by another one.
        replaceable = bookies > shape[0] or shape[1] > shape[2]
        if shape[2] >= 2 and (damage[0].name != "wipe" or replaceable):
            names.append(damage[0].name)
    return names or ["kill"]
