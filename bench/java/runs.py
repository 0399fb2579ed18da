"""The measurements: which load, by which client, on which bookies. A session holds what they run on."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import data_root
from bench.java.loads import Loaders, ask_together
from bench.java.once import ONCE
from bench.java.sides import ApacheSide, OurSide, Side
from bench.machine import between, snapshot
from bench.machines import helpers, here
from buckram.launch.zookeeper_server import ZooKeeperServer, start_zookeeper

LOGS = Path(".bench/java/logs")
WARM_UP_S = 30.0
PATIENCE_S = 600.0
"""For quiet and for second tries, over all measurements."""
QUIET_SHARE = 0.08
QUIET_SAMPLES = 2


@dataclass(frozen=True)
class Run:
    """One measurement. Its key is CASE:CLIENT>BOOKIES."""

    case: str
    client: str
    bookies: str

    @property
    def key(self) -> str:
        return f"{self.case}:{self.client}>{self.bookies}"

    @classmethod
    def parse(cls, key: str) -> Run:
        case, _, rest = key.partition(":")
        client, _, bookies = rest.partition(">")
        return cls(case, client, bookies)


RATES = (1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000)
"""Rates in entries per second for the plot of latency over throughput."""
LOADS: dict[str, dict[str, Any]] = {
    # Our client appends `run` entries in a call; without it, batches of a thousand. Apache's has single adds only.
    "one": {"load": "write"},
    "small": {"load": "write", "size": 100},
    "one-20": {"load": "write", "run": 20},
    "one-1": {"load": "write", "run": 1},
    "hundred": {"load": "write", "ledgers": 100, "run": 20},
    "hundred-1": {"load": "write", "ledgers": 100, "run": 1},
    "hundred-1x4": {"load": "write", "ledgers": 25, "run": 1, "clients": 4},
    "paced": {"load": "paced", "rate": 5000},
    "tail": {"load": "paced", "rate": 5000, "seconds": 300},
    "sequential": {"load": "sequential"},
    "remote": {"load": "sequential", "remote": True},
    **{f"rate-{rate}": {"load": "paced", "rate": rate, "seconds": 8} for rate in RATES},
}
ALONE = ("start", "idle", "million", "restart")
"""Cases with a bookie of their own and without a client of Apache's."""
SEQUENTIAL_ENTRIES = 500_000
WARM_S, WARM_AGAIN_S = {"sequential": 25.0}, {"sequential": 8.0}
"""Seconds of load before a slice is measured, the first time and later, where 10 s and 4 s are not enough for compiled
code."""
OUR_WARM_S = {"sequential": 4.0}
"""Ours, instead of 2 s: files are read past the page cache in the first pass and fill it in the second."""
OUTSTANDING = {"apache-2": 2500, "apache-3": 2500, "ours": 4000}
"""The best seen for each client; for a hundred ledgers likewise."""


class Session:
    """ZooKeeper, both clusters and the clients, each started when first needed."""

    def __init__(self, *, seconds: float, wait_s: float, share: float = 1.0) -> None:
        """`wait_s`: for quiet, before each measurement, at most. `share`: of the data of long fills, for trials."""
        self._patience_s = PATIENCE_S if wait_s > 0 else 0.0
        self.folder = Path(tempfile.mkdtemp(prefix="java-", dir=data_root()))
        self.seconds, self.wait_s, self._share = seconds, wait_s, share
        self.loaders = Loaders(self.folder)
        self._zookeeper: ZooKeeperServer | None = None
        self._sides: dict[str, Side] = {}
        self._warmed = set[tuple[str, ...]]()
        self.filled: dict[str, list[int]] = {}
        """Ledgers that a fill left for cold reads, by its key."""

    @property
    def zookeeper(self) -> ZooKeeperServer:
        if self._zookeeper is None:
            self._zookeeper = start_zookeeper(self.folder / "zookeeper", host=here(), sync=False)
        return self._zookeeper

    def side(self, name: str) -> Side:
        if name not in self._sides:
            address = self.zookeeper.address
            side: Side = (ApacheSide if name == "apache" else OurSide)(address, self.folder / name)
            try:
                side.start()
            except BaseException:
                side.close()
                raise
            self._sides[name] = side
        return self._sides[name]

    def part(self, amount: int) -> int:
        return max(1, round(amount * self._share))

    def close(self) -> None:
        self.loaders.close()
        for side in self._sides.values():
            side.close()
        if self._zookeeper is not None:
            self._zookeeper.kill()
        LOGS.mkdir(parents=True, exist_ok=True)
        for log in [log for pattern in ("*.log", "apache/*.log", "ours/*/*.log") for log in self.folder.glob(pattern)]:
            shutil.copy(log, LOGS / "-".join(log.relative_to(self.folder).parts))
        shutil.rmtree(self.folder, ignore_errors=True)

    def beside(self, side: Side) -> list[int]:
        """Return the processes that belong to the comparison, but not to the current measurement."""
        idle = [pid for other in self._sides.values() if other is not side for pid in other.pids]
        return [*idle, *self._helpers()]

    def measure(self, run: Run) -> dict[str, Any]:
        """Measure once; if other processes used too much CPU, measure again if there is time to wait for quiet."""
        if run.case not in ALONE:
            self.warm_up(run.client, run.bookies)
        self.wait_quiet()
        if run.case in ONCE:
            before = self.strangers()
            figures = ONCE[run.case](self, run)
            return {"foreign_share": max(before, self.strangers()), **figures}
        figures = self.slice(run)
        if figures["foreign_share"] > QUIET_SHARE and self._patience_s > 0:
            self.wait_quiet()
            began, again = time.monotonic(), self.slice(run)
            self._patience_s -= time.monotonic() - began
            figures = min(figures, again, key=lambda found: float(found["foreign_share"]))
        return figures

    def request(self, run: Run) -> dict[str, Any]:
        """Return the fields common to all requests of this run."""
        return {
            "uri": self.side(run.bookies).uri, "protocol": 3 if run.client == "apache-3" else 2,
            "seconds": self.seconds, "outstanding": OUTSTANDING[run.client],
        }  # fmt: skip

    def slice(self, run: Run) -> dict[str, Any]:
        """Run a load for some seconds; return its figures."""
        side = self.side(run.bookies)
        loader = self.loaders[run.client]
        known = (run.client, run.bookies, run.case)
        if run.client == "ours":
            warm = OUR_WARM_S.get(run.case, 2.0)
        elif known in self._warmed:
            warm = WARM_AGAIN_S.get(run.case, 4.0)
        else:
            warm = WARM_S.get(run.case, 10.0)
        self._warmed.add(known)
        request = {**self.request(run), "warm": warm, **LOADS[run.case]}
        made: list[int] = []
        if request["load"] == "sequential":
            filled = loader.ask({**request, "load": "fill", "entries": SEQUENTIAL_ENTRIES}, self.folder)
            request["ledgers"] = made = filled["ledgers"]
            request["seconds"] = self.seconds / 2
        if (clients := request.pop("clients", 1)) > 1:
            request["outstanding"] //= clients
            together = [self.loaders[f"{run.client}#{number}"] for number in range(clients)]
            figures = ask_together(together, request, self.folder, side.pids, self.beside(side))
        else:
            figures = loader.ask(request, self.folder, side.pids, self.beside(side))
        self.discard(run, made or figures.pop("ledgers"))
        return figures

    def discard(self, run: Run, ledgers: list[int]) -> None:
        """Delete ledgers that are not needed any more, and bring the cluster back to a state where the next measurement
        can begin."""
        side = self.side(run.bookies)
        if side.name == "apache":
            drop = {**self.request(run), "load": "drop", "ledgers": ledgers}
            self.loaders[run.client].ask(drop, self.folder)
        else:
            self.loaders.forget(side.uri)
        side.tidy()

    def cooled(self, bookies: str) -> None:
        """Note that these bookies were restarted, so their code is not compiled yet."""
        self._warmed = {known for known in self._warmed if bookies not in known}

    def warm_up(self, client: str, bookies: str) -> None:
        """Run half a minute of load before measurements of just-in-time compiled code: for each client, and for
        Apache's bookies."""
        needs = [(name,) for name in (client, bookies) if name.startswith("apache") and (name,) not in self._warmed]
        if not needs:
            return
        self._warmed.update(needs)
        loader = self.loaders[client]
        run, made = Run("warm-up", client, bookies), list[int]()
        for ledgers, seconds in ((1, 0.6 * WARM_UP_S), (100, 0.4 * WARM_UP_S)):
            load = {**self.request(run), "load": "write", "ledgers": ledgers, "warm": 0, "seconds": seconds}
            made += loader.ask(load, self.folder)["ledgers"]
        self.discard(run, made)

    def wait_quiet(self) -> None:
        """Until strangers leave the machine alone, or as long as is allowed for one measurement and for all."""
        began, quiet, most = time.monotonic(), 0, min(self.wait_s, self._patience_s)
        while quiet < QUIET_SAMPLES and time.monotonic() - began < most:
            quiet = quiet + 1 if self.strangers() <= QUIET_SHARE else 0
        self._patience_s -= max(0.0, time.monotonic() - began - QUIET_SAMPLES)

    def strangers(self) -> float:
        """Their share of the machine in this second."""
        servers = [pid for side in self._sides.values() for pid in side.pids]
        before = snapshot(self.folder, [os.getpid()], servers, self._helpers())
        time.sleep(1.0)
        return between(before, snapshot(self.folder, [os.getpid()], servers, self._helpers()), 1)["foreign_share"]

    def _helpers(self) -> list[int]:
        server = [self._zookeeper.pid] if self._zookeeper is not None else []
        return [*server, *self.loaders.pids, *helpers()]
