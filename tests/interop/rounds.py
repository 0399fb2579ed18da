"""Rounds on a mixed cluster: kill -9 of bookies and ZooKeeper servers under a Java and a Python writer.

`python -m tests.interop.rounds --rounds N --seed S [--resume FILE]`. Every entry that was acknowledged to either writer
must be read back by both clients, whoever closed or recovered the ledger. The same seed chooses the same kills; when
they fall depends on the machine. One cluster serves all rounds of a run: three ZooKeeper servers, three bookies of each
kind.
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
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from javakit.programs import NEWEST
from tests.interop.apache import Java, JavaFailed, outcome, running
from tests.interop.clusters import PASSWORD, Cluster, payload
from tests.support.polling import answered

from buckram.client.write.writer import Writer
from buckram.cluster import Client, connect
from buckram.config import ClientConfig
from buckram.errors import BuckramError
from buckram.launch.zookeeper_server import Ensemble, start_ensemble

SHAPES = ((3, 3, 2), (4, 3, 2), (3, 2, 2), (4, 4, 3))
KINDS = ("ours", "theirs", "zookeeper")
ENDINGS = ("closed", "recovered", "fenced")
"""By its writer; by the other client after the writer stopped; by the other client while the writer goes on."""
STALL_S = 90.0
"""No acknowledgement and no failure for so long is a failure of the round."""


@dataclass(frozen=True)
class Kill:
    """What is killed once both writers got so many acknowledgements more; back after as many again."""

    kind: str
    index: int
    after: int


@dataclass(frozen=True)
class Round:
    """One round, chosen by its seed."""

    seed: int
    shape: tuple[int, int, int]
    java_wire: int
    our_wire: int
    kills: tuple[Kill, ...]
    java_ending: str
    our_ending: str

    @classmethod
    def choose(cls, seed: int) -> Round:
        rng = random.Random(seed)
        kinds = rng.sample(KINDS, 3)[: rng.choice((2, 3))]
        return cls(
            seed=seed,
            shape=rng.choice(SHAPES),
            java_wire=rng.choice((2, 3)),
            our_wire=rng.choice((2, 3)),
            kills=tuple(Kill(kind, rng.randrange(3), rng.randrange(50, 400)) for kind in kinds),
            java_ending=rng.choice(ENDINGS),
            our_ending=rng.choice(ENDINGS),
        )


@dataclass
class World:
    """The servers and programs that all rounds of a run share."""

    java: Java
    cluster: Cluster
    zookeeper: Ensemble

    def kill(self, kill: Kill) -> None:
        if kill.kind == "zookeeper":
            self.zookeeper.kill(kill.index)
        else:
            (self.cluster.ours if kill.kind == "ours" else self.cluster.theirs)[kill.index].kill()

    def bring_back(self, kill: Kill) -> None:
        if kill.kind == "zookeeper":
            self.zookeeper.restart(kill.index)
        else:
            self.cluster.revive()


@contextlib.contextmanager
def world(root: Path, *, each: int = 3) -> Iterator[World]:
    """A mixed cluster with `each` bookies of each kind, on an ensemble of three ZooKeeper servers."""
    with running(NEWEST, root / "java.log") as java, start_ensemble(root / "zookeeper") as zookeeper:
        cluster = Cluster(f"zk+hierarchical://{zookeeper.address.replace(',', ';')}/rounds", root / "bookies")
        cluster.root.mkdir()
        try:
            cluster.init_with_apache(java)
            cluster.add(ours=each, theirs=each)
            yield World(java, cluster, zookeeper)
        finally:
            cluster.close()


class OurWriting:
    """A writer of ours that appends at full speed until it is stopped or fails."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.stopping, self.acknowledged = writer, False, -1
        self.error: BuckramError | None = None
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        number = 0
        try:
            while not self.stopping:
                ids = await self.writer.append_many(payload(n) for n in range(number, number + 20))
                self.acknowledged = ids[-1]
                number += 20
        except BuckramError as error:
            self.error = error
        self.acknowledged = max(self.acknowledged, self.writer.last_confirmed)


class JavaSteps:
    """Apache's client in a round: a client of its own, so that what it thinks of dead bookies ends with the round."""

    def __init__(self, world: World, spec: Round) -> None:
        self._java = world.java
        self._known = {"uri": world.cluster.uri, "wire": f"v{spec.java_wire}", "client": f"round {spec.seed}"}

    async def __call__(self, step: str, **args: object) -> Any:
        return await outcome(self._java.start(f"Handles.{step}", **self._known, **args), 2 * STALL_S)

    async def call_until_ok(self, step: str, **args: object) -> Any:
        """Retry a step that is safe to repeat, because servers may still be restarting."""

        limit = time.monotonic() + STALL_S
        while True:
            try:
                return await self(step, **args)
            except JavaFailed as failure:
                # Its own AssertionError is a verdict, not a server that is away.
                if failure.error == "AssertionError" or time.monotonic() > limit:
                    raise
            await asyncio.sleep(0.2)


async def play(spec: Round, world: World) -> dict[str, int]:
    """Run one round; AssertionError says what was lost or stood still."""
    java = JavaSteps(world, spec)
    ensemble, write_quorum, ack_quorum = spec.shape
    async with connect(world.cluster.uri, config=ClientConfig(wire_protocol=spec.our_wire)) as client:
        made = await java.call_until_ok("create", e=ensemble, qw=write_quorum, qa=ack_quorum)
        writer = await client.create(ensemble=spec.shape, password=PASSWORD)
        await java("startWriting", writer=made["writer"])
        ours = OurWriting(writer)
        try:
            try:
                async for kill in _progress(spec, java, made["writer"], ours):
                    await asyncio.to_thread(world.kill, kill)
            finally:
                for kill in spec.kills:
                    await asyncio.to_thread(world.bring_back, kill)
            java_acked = await _end_theirs(spec, client, java, made)
            our_acked = await _end_ours(spec, java, ours)
        finally:
            ours.task.cancel()
        stored = {
            "java_acked": java_acked + 1, "our_acked": our_acked + 1,
            "java_stored": await _read_by_both(client, java, made["ledger"], java_acked),
            "our_stored": await _read_by_both(client, java, writer.ledger_id, our_acked),
        }  # fmt: skip
    await java("abandon")
    return stored


async def _progress(spec: Round, java: JavaSteps, java_writer: int, ours: OurWriting) -> AsyncIterator[Kill]:
    """Carry out the kills when they are due, and wait for as much progress after the last one."""
    for after, kill in [*((kill.after, kill) for kill in spec.kills), (spec.kills[0].after, None)]:
        state = await java("state", writer=java_writer)
        java_target, our_target = state["acknowledged"] + after, ours.acknowledged + after
        state = await java("awaitAcknowledged", writer=java_writer, entry=java_target, seconds=int(STALL_S))

        async def ours_there(target: int = our_target) -> bool:
            return ours.acknowledged >= target or ours.error is not None

        await answered(ours_there)
        if kill is not None:
            yield kill


async def _end_ours(spec: Round, java: JavaSteps, ours: OurWriting) -> int:
    """End our ledger as the round says, or by recovery if our writer failed; the last acknowledged entry."""
    ours.stopping = spec.our_ending != "fenced"
    if spec.our_ending == "fenced":
        await java.call_until_ok("read", ledger=ours.writer.ledger_id, recover=True)
    async with asyncio.timeout(STALL_S):
        await ours.task
    assert ours.error is not None or ours.stopping, "our writer was not fenced"
    if spec.our_ending == "closed" and ours.error is None:
        await ours.writer.close()
    else:
        await ours.writer.abandon()
        await java.call_until_ok("read", ledger=ours.writer.ledger_id, recover=True)
    return ours.acknowledged


async def _end_theirs(spec: Round, client: Client, java: JavaSteps, made: Any) -> int:
    """End the ledger of Apache's writer in the same way; the last acknowledged entry."""

    async def recover() -> bool:
        with contextlib.suppress(BuckramError):
            async with client.recover(made["ledger"], password=PASSWORD):
                return True
        return False

    if spec.java_ending == "fenced":
        await answered(recover)
    state = await java("stopWriting", writer=made["writer"])
    assert state["failed"] or spec.java_ending != "fenced", "Apache's writer was not fenced"
    if spec.java_ending == "closed" and not state["failed"]:
        await java.call_until_ok("closeWriter", writer=made["writer"])
    else:
        await answered(recover)
    return int(state["acknowledged"])


async def _read_by_both(client: Client, java: JavaSteps, ledger: int, acknowledged: int) -> int:
    read = await java.call_until_ok("read", ledger=ledger)
    assert read["closed"], f"ledger {ledger} is not closed"
    assert read["last"] >= acknowledged, f"ledger {ledger} ends at {read['last']}, acknowledged was {acknowledged}"
    async with client.open(ledger, password=PASSWORD) as reader:
        assert reader.last_confirmed == read["last"]
        count = 0
        async for entry in reader.entries():
            assert (entry.entry_id, entry.payload) == (count, payload(count)), f"ledger {ledger}, entry {count}"
            count += 1
    assert count == read["last"] + 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="file that remembers the rounds already done")
    options = parser.parse_args()
    done = json.loads(options.resume.read_text()) if options.resume and options.resume.exists() else {}
    wanted = [seed for seed in range(options.seed, options.seed + options.rounds) if str(seed) not in done]
    failed, began = 0, time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="buckram-interop-"))
    with world(root) if wanted else contextlib.nullcontext() as shared:
        for seed in wanted:
            assert shared is not None
            spec = Round.choose(seed)
            try:
                done[str(seed)] = asyncio.run(play(spec, shared))
            except (AssertionError, BuckramError, TimeoutError) as error:
                failed += 1
                print(f"{spec}\nFAILED: {error!r}\nfiles: {root}", file=sys.stderr, flush=True)
                print(f"replay: python -m tests.interop.rounds --rounds 1 --seed {seed}", file=sys.stderr, flush=True)
                continue
            print(f"round {seed}: {done[str(seed)]}", file=sys.stderr, flush=True)
            if options.resume:
                options.resume.write_text(json.dumps(done))
    if not failed:
        shutil.rmtree(root)
    acknowledged = sum(result["java_acked"] + result["our_acked"] for result in done.values())
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"rounds": len(done), "failed": failed, "acked": acknowledged, "seconds": seconds}))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
