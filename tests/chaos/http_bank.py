"""The bank over HTTP while servers and bookies are killed and stopped: does the database keep its promises?

`python -m tests.chaos.http_bank --seconds N --seed S` runs three bookies and some `buckram db serve` of one database:
one leads, the others send requests on. Faults: kill -9 of the leader, of those that send on, of all servers and of a
bookie; SIGSTOP of each, of the leader also for longer than its lease, which wakes when another one leads. The last line
is the verdict of `chaos.verdict` as JSON; exit code 0 only if no rule is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.chaos.http_customers import NAME, Customer, History, Reader
from tests.support.polling import until

from buckram.cluster import Client, connect
from chaos.actors.bank import DATABASE
from chaos.actors.replicas import digest_of_copy
from chaos.processes import PYTHON, Child
from chaos.verdict.bank import judge_bank
from chaos.verdict.database import read_database
from chaos.verdict.report import RULES, Report

_CUSTOMERS = 6
_LEASE_S = 10.0
"""Whoever is stopped for longer does not lead any more when it wakes."""
FAULTS = {
    "kill leader": 4,
    "kill follower": 3,
    "kill all servers": 1,
    "kill bookie": 3,
    "stop leader": 3,
    "stop leader beyond its lease": 2,
    "stop follower": 2,
    "stop bookie": 2,
}
"""How often each is drawn, beside the others."""


class Bank:
    """The processes, and what is done to them."""

    def __init__(self, root: Path, seed: int, servers: int) -> None:
        self.uri = f"sqlite://{root / 'metadata.db'}"
        self._rng = random.Random(f"faults {seed}")
        self.counts: Counter[str] = Counter()
        self.bookies = [
            self._child(root, f"b{number}", "bookie", "run", "--data", str(root / f"b{number}")) for number in range(3)
        ]
        self.servers = [self._child(root, f"s{number}", "db", "serve", NAME) for number in range(servers)]
        self.urls: list[str] = []

    def _child(self, root: Path, name: str, *words: str) -> Child:
        command = [PYTHON, "-m", "buckram", *words, "--metadata", self.uri, "--json", "--port", "0"]
        return Child(name, 0, command, root / f"{name}.log", ready=True)

    def start(self) -> None:
        """Each takes a free port, which it keeps when it is started again."""
        for children in (self.bookies, self.servers):
            for child in children:
                child.spawn()
            for child in children:
                child.wait_ready()
                child.command = [*child.command[:-1], str(child.said.get("port") or urlsplit(child.said["url"]).port)]
        self.urls += [server.said["url"] for server in self.servers]

    def kill_all(self) -> None:
        for child in (*self.servers, *self.bookies):
            child.kill()

    def mend(self) -> None:
        """Everybody runs again."""
        for child in (*self.bookies, *self.servers):
            child.resume()
            child.spawn()

    async def trouble(self, stop: asyncio.Event, ends_at: float) -> None:
        """One fault after the other. No fault that lasts begins when there is no time for it any more."""
        pause_s = 0.5  # so that a run of some seconds has a fault, whatever the seed
        while not await _stopped(stop, pause_s):
            pause_s = 0.5 + self._rng.random() * 4
            fault = self._rng.choices(list(FAULTS), list(FAULTS.values()))[0]
            lasts = self._rng.uniform(0.3, 4.0)
            if fault == "stop leader beyond its lease":
                lasts = _LEASE_S + self._rng.uniform(2.0, 6.0)
            if time.monotonic() + lasts > ends_at:
                fault, lasts = self._rng.choice(("kill leader", "stop leader")), 0.3
            await self._do(fault, lasts, stop)
        await asyncio.to_thread(self.mend)

    async def _do(self, fault: str, lasts: float, stop: asyncio.Event) -> None:
        whom = await self._whom(fault)
        self.counts[fault] += 1
        if fault.startswith("kill"):
            for child in whom:
                await asyncio.to_thread(child.kill)
            await _stopped(stop, lasts * 0.2)
            for child in whom:
                await asyncio.to_thread(child.spawn)
            return
        for child in whom:
            child.pause()
        await _stopped(stop, lasts)
        for child in whom:
            child.resume()

    async def _whom(self, fault: str) -> Sequence[Child]:
        if "bookie" in fault:
            return [self._rng.choice(self.bookies)]
        if "all" in fault:
            return self.servers
        leader = await asyncio.to_thread(self.leader)
        others = [child for child in self.servers if child is not leader]
        return [leader] if "leader" in fault else [self._rng.choice(others)]

    def leader(self) -> Child:
        """The server that says that it leads; any, if none does."""
        said = zip(self.servers, map(_roles, self.urls), strict=True)
        leading = [child for child, roles in said if roles.get(NAME, {}).get("role") == "leader"]
        return leading[0] if leading else self._rng.choice(self.servers)

    async def end(self, report: Report) -> None:
        """Tell the servers to end, when all of them serve again; then nothing is written any more."""
        for server, url in zip(self.servers, self.urls, strict=True):
            await until(lambda url=url: bool(_roles(url)), f"{server.name} does not serve again", 60.0)  # type: ignore[misc]
            report.check("ends", await asyncio.to_thread(server.stop), f"{server.name} had to be killed")


def _roles(url: str) -> dict[str, Any]:
    """What a server says about its databases; nothing if it does not answer."""
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(f"{url}/", timeout=1) as answer:
        found: dict[str, Any] = json.load(answer)["databases"]
        return found
    return {}


async def _stopped(stop: asyncio.Event, within_s: float) -> bool:
    """Wait for the end, for so long. Whether it has come."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await stop.wait()
    return stop.is_set()


async def play(seed: int, seconds: float, servers: int, root: Path) -> dict[str, Any]:
    """Run it, and judge what was seen."""
    began, bank, history, report = time.monotonic(), Bank(root, seed, servers), History(), Report()
    try:
        await asyncio.to_thread(bank.start)
        async with connect(bank.uri) as client:
            await _work(seed, seconds, bank, client, history, report)
            end = await read_database(client)
    finally:
        await asyncio.to_thread(bank.kill_all)
    judge_bank(sorted(history.events, key=lambda event: event["at"]), end, report)
    (root / "history.json").write_text("\n".join(map(json.dumps, history.events)))
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "faults": dict(bank.counts),
        "operations": {how: history.counts[how] for how in ("batch", "calls", "linearizable", "leader", "stale")},
        "committed": 0 if end is None else len(end.done),
        "counts": dict(history.counts),
        "checks": {rule: count for rule, count in report.checks.items() if count},
        "violations": len(report.violations),
        "violated": [{"rule": rule, "text": text[:1000]} for rule, text in report.violations[:20]],
    }


async def _work(seed: int, seconds: float, bank: Bank, client: Client, history: History, report: Report) -> None:
    stop, ns = asyncio.Event(), client.namespace()
    longest_s = min(25.0, max(3.0, seconds / 4))
    customers = [Customer(f"c{number}", seed, bank.urls, history, longest_s) for number in range(_CUSTOMERS)]
    await customers[0].make_tables(stop)
    async with ns.database(DATABASE, stand=False) as first, ns.database(DATABASE, stand=False) as second:
        ends_at = time.monotonic() + seconds
        reader = Reader(seed, first, second, history)
        async with asyncio.TaskGroup() as group:
            for one in (*(customer.work(stop) for customer in customers), reader.work(stop)):
                group.create_task(one)
            group.create_task(bank.trouble(stop, ends_at))
            await asyncio.sleep(seconds)
            stop.set()
        await bank.end(report)
        for name, replica in (("first", first), ("second", second)):
            await replica.query("SELECT 1", consistency="stale", at_most_s=0.0)
            digest = await digest_of_copy(replica.backup, Path(bank.uri.removeprefix("sqlite://")).with_name(name))
            history.record("replica-ends", name=name, offset=replica.applied, digest=digest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults and customers are at work")
    parser.add_argument("--seed", type=int, default=1, help="chooses faults and operations")
    parser.add_argument("--servers", type=int, default=3, help="processes of `buckram db serve`")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="buckram-http-bank-"))
    verdict = asyncio.run(play(options.seed, options.seconds, options.servers, root))
    for one in verdict["violated"]:
        print(f"VIOLATION {one['rule']} ({RULES[one['rule']]}): {one['text']}", file=sys.stderr)
    if verdict["violations"]:
        again = f"--seconds {options.seconds:g} --seed {options.seed} --servers {options.servers}"
        print(f"look at {root}; repeat it with: python -m tests.chaos.http_bank {again}", file=sys.stderr)
    else:
        shutil.rmtree(root)
    print(json.dumps(verdict))
    return 1 if verdict["violations"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
