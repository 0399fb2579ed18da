"""The faults of a life, each a short story: begin, last a while, end. Which ones a life gets is its plan's choice.

Faults stay within the guarantee (plan.make_plan): unavailability of anything for any time is fair, damage of data is
limited to one bookie, and only where acknowledged entries have another copy.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from buckram.sim.damage import flip_some_byte
from buckram.sim.metadata import HOST
from buckram.sim.network import SimNetwork
from buckram.sim.workload.stage import Stage
from buckram.sim.world import Machine

Fault = Callable[[], Awaitable[None]]


class Faults:
    """Runs the plan's faults, each at a random time; `heal()` ends all of them."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.world, self.plan = stage, stage.world, stage.plan
        self.rng = random.Random(f"faults {stage.plan.seed}")
        self.recorded: list[tuple[str, str, int, bytes]] = []
        self._restarting: dict[str, bool] = {}
        self._stories: dict[str, Fault] = {
            "kill": self._kill, "pair": self._pair, "lag": self._lag, "power": self._power,
            "power all": self._power_all, "crash at op": self._crash_at_op,
            "crash at await": self._crash_at_await, "pause bookie": self._pause_bookie, "cut": self._cut,
            "isolate": self._isolate, "reset": self._reset, "slow": self._slow, "replay": self._replay,
            "pause client": self._pause_client, "crash client": self._crash_client,
            "metadata loss": self._metadata_loss, "metadata down": self._metadata_down, "expire": self._expire,
            "write error": self._write_error, "read error": self._read_error, "full": self._full,
            "flip": self._flip, "wipe": self._wipe, "metadata cut": self._metadata_cut,
        }  # fmt: skip

    async def run(self) -> None:
        await asyncio.gather(*[self._one(name) for name in self.plan.faults])

    async def _one(self, name: str) -> None:
        await asyncio.sleep(self.rng.random() * self.plan.busy_s * 1.2)
        if not self.stage.over:
            self.world.faults += 1
            self.world.trace.note("fault", name)
            await self._stories[name]()

    # choices

    def _machine(self) -> Machine:
        machines = list(self.world.machines.values())
        members = [m for m in machines if any(
            m.name in fragment.ensemble for ledger in self.world.judge.facts.ledgers.values()
            if ledger.metadata is not None for fragment in ledger.metadata.fragments)]
        return self.rng.choice(members or machines)

    def _clients(self) -> list[str]:
        return [host for host in self.world.processes if host not in self.world.machines]

    async def _last(self, most_s: float = 4.0) -> None:
        await asyncio.sleep(self.rng.choice((0.0, self.rng.random() * 0.1, self.rng.random() * most_s)))

    # bookies die and come back

    async def restart(self, machine: Machine) -> None:
        """Bring a dead bookie back after a while (at once, sometimes); again if it died on the way."""
        if self._restarting.get(machine.name):
            return
        self._restarting[machine.name] = True
        try:
            await self._last()
            for _ in range(5):
                if machine.running or await self.world.boot(machine):
                    return
                self.world.died(machine)
                if self.world.judge.facts.bookie(machine.name).wiped:
                    return
                await asyncio.sleep(0.5)
        finally:
            self._restarting[machine.name] = False

    async def watch(self, machine: Machine) -> None:
        """A supervisor per bookie: whatever it died of, start it again."""
        while not self.stage.over:
            process = machine.process
            if process is not None and not process.dead:
                dead = asyncio.Event()
                process.on_death(dead.set)
                await dead.wait()
                self.world.died(machine)
            if self.world.judge.facts.bookie(machine.name).wiped:
                return
            await self.restart(machine)
            await asyncio.sleep(0.05)

    async def _kill(self) -> None:
        self.world.crash(self._machine(), power=False)

    async def _pair(self) -> None:
        """Two members of one ensemble die at the same moment."""
        for ledger in self.world.judge.facts.ledgers.values():
            if ledger.metadata is not None and not ledger.metadata.closed:
                members = list(ledger.metadata.last_fragment.ensemble)
                self.rng.shuffle(members)
                power, together = self.rng.random() < 0.3, self.rng.random() < 0.7
                # A writer with adds at both that sleeps meanwhile hears of both in one turn.
                if together:
                    for name in members[:2]:
                        self.world.pause(name)
                    await asyncio.sleep(0.28)
                    self.world.pause(ledger.writer)
                for name in members[:2]:
                    self.world.crash(self.world.machines[name], power)
                if together:
                    await asyncio.sleep(0.05)
                    self.world.resume(ledger.writer)
                return

    async def _lag(self) -> None:
        """One member is slow to answer the writer, then another one dies: acknowledgements wait behind a hole."""
        open_ones = [ledger for ledger in self.world.judge.facts.ledgers.values()
                     if ledger.metadata is not None and not ledger.metadata.closed]
        if not open_ones:
            return
        ledger = self.rng.choice(open_ones)
        assert ledger.metadata is not None
        members = list(ledger.metadata.last_fragment.ensemble)
        self.rng.shuffle(members)
        slow, dying = members[:2]
        extra_s = 0.7 * self.plan.configs.net.request_timeout_s
        self.world.disturb(ledger.writer, 1)
        self.world.fabric.slow(slow, ledger.writer, extra_s)
        await asyncio.sleep(self.rng.random() * extra_s)
        self.world.crash(self.world.machines[dying], power=False)
        await asyncio.sleep(1.0)
        self.world.fabric.slow(slow, ledger.writer, 0.0)
        self.world.disturb(ledger.writer, -1)

    async def _power(self) -> None:
        self.world.crash(self._machine(), power=True)

    async def _power_all(self) -> None:
        for machine in self.world.machines.values():
            self.world.crash(machine, power=True)

    async def _crash_at_op(self) -> None:
        machine, power = self._machine(), self.rng.random() < 0.6
        process = machine.process
        if process is None or process.dead:
            return
        machine.device.crash_at_op = machine.device.ops + 1 + int(self.rng.random() ** 2 * 30)
        process.on_death(lambda: self._died_in_op(machine, power))

    async def _crash_at_await(self) -> None:
        machine, power = self._machine(), self.rng.random() < 0.5
        process = machine.process
        if process is None or process.dead:
            return
        process.crash_after(int(self.rng.random() ** 2 * 300))
        process.on_death(lambda: self._died_in_op(machine, power))

    def _died_in_op(self, machine: Machine, power: bool) -> None:
        machine.device.crash_at_op = None
        if power:
            machine.device.power_loss()
        self.world.crashes += 1
        self.world.died(machine)

    async def _pause_bookie(self) -> None:
        machine = self._machine()
        self.world.pause(machine.name)
        await self._last(8.0)
        self.world.resume(machine.name)

    # the network

    async def _block(self, pairs: list[tuple[str, str]], most_s: float = 5.0) -> None:
        for source, target in pairs:
            self.world.disturb(source, 1)
            self.world.disturb(target, 1)
            self.world.fabric.block(source, target)
        await self._last(most_s)
        for source, target in pairs:
            self.world.fabric.unblock(source, target)
            self.world.disturb(source, -1)
            self.world.disturb(target, -1)

    async def _cut(self) -> None:
        clients = self._clients() or ["w1"]
        pairs = []
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            ends = [self._machine().name, self.rng.choice(clients)]
            self.rng.shuffle(ends)
            pairs.append((ends[0], ends[1]))
            if self.rng.random() < 0.3:
                pairs.append((ends[1], ends[0]))
        await self._block(pairs)

    async def _isolate(self) -> None:
        victim = self.rng.choice([self._machine().name, *self._clients()])
        others = [host for host in [*self.world.processes, HOST] if host != victim]
        pairs = [(victim, other) for other in others]
        if self.rng.random() < 0.7:
            pairs += [(other, victim) for other in others]
        await self._block(pairs)

    async def _metadata_cut(self) -> None:
        victim = self.rng.choice([self._machine().name, *self._clients()])
        pairs = [(victim, HOST), (HOST, victim)]
        await self._block(pairs if self.rng.random() < 0.5 else [self.rng.choice(pairs)], 8.0)

    async def _reset(self) -> None:
        for _ in range(self.rng.choice((1, 2, 5))):
            if self.world.fabric.connections:
                self.world.fabric.reset(self.rng.choice(self.world.fabric.connections))
            await asyncio.sleep(self.rng.random() * 0.2)

    async def _slow(self) -> None:
        links = [(self._machine().name, host) for host in self._clients()]
        self.rng.shuffle(links)
        chosen = [link if self.rng.random() < 0.5 else (link[1], link[0]) for link in links[:2]]
        for source, target in chosen:
            self.world.disturb(source, 1)
            self.world.disturb(target, 1)
            self.world.fabric.slow(source, target, self.rng.choice((0.02, 0.2, 1.5, 4.0)))
        await self._last(5.0)
        for source, target in chosen:
            self.world.fabric.slow(source, target, 0.0)
            self.world.disturb(source, -1)
            self.world.disturb(target, -1)

    def record(self, client: str, bookie: str, port: int, frame: bytes) -> None:
        """Requests that went over the wire, for replay()."""
        if len(self.recorded) < 400:
            self.recorded.append((client, bookie, port, frame))

    async def _replay(self) -> None:
        """Old requests arrive again, on connections of their own; what is answered reaches nobody."""
        await self._last(2.0)
        if not self.recorded:
            return
        client, bookie, port, _ = self.rng.choice(self.recorded)
        frames = [frame for c, b, _, frame in self.recorded if (c, b) == (client, bookie)]
        v2 = frames[0][4] <= 2
        start = self.rng.randrange(len(frames))
        chosen = [frame for frame in frames[start:start + self.rng.choice((1, 3, 20))] if (frame[4] <= 2) == v2]
        network = SimNetwork(self.world.fabric, self.world.loop.world, client, ghost=True)
        try:
            async with asyncio.timeout(3.0):
                transport, _ = await network.connect(bookie, port, asyncio.Protocol)
        except (OSError, TimeoutError):
            return
        transport.write(b"".join(chosen))
        await asyncio.sleep(1.0)
        transport.abort()

    # clients

    async def _pause_client(self) -> None:
        clients = self._clients()
        if not clients:
            return
        host = self.rng.choice(clients)
        self.world.pause(host)
        if self.plan.late_wake and host.startswith("w"):
            return  # sim/ending wakes it when its ledger is closed
        await self._last(8.0)
        self.world.resume(host)

    async def _crash_client(self) -> None:
        clients = self._clients()
        if clients:
            host = self.rng.choice(clients)
            self.world.processes[host].crash_after(int(self.rng.random() ** 2 * 200))
            self.world.disturb(host, 1)

    # the metadata store

    async def _metadata_loss(self) -> None:
        server = self.world.metadata
        if self.rng.random() < 0.6:
            for host in self._clients():
                server.lose_next(self.rng.choice(("before", "after", "after")), host, self.world.stores.ledger_keys)
        server.lose_before, server.lose_after = self.rng.choice(((0.3, 0.0), (0.0, 0.3), (0.2, 0.3), (0.0, 0.6)))
        self.world.disturb(HOST, 1)
        await asyncio.sleep(self.rng.random() * 3.0 + 0.2)
        server.lose_before = server.lose_after = 0.0
        self.world.disturb(HOST, -1)

    async def _metadata_down(self) -> None:
        self.world.metadata.down = True
        self.world.disturb(HOST, 1)
        await self._last(6.0)
        self.world.metadata.down = False
        self.world.disturb(HOST, -1)

    async def _expire(self) -> None:
        hosts = [host for host, process in self.world.processes.items() if not process.dead]
        host = self.rng.choice(hosts or ["b1"])
        keys = self.world.sessions.get(host)
        if keys is not None and not self.world.processes[host].dead:
            self.world.report.situation("session expired")
            keys.expire()

    # disks

    async def _write_error(self) -> None:
        self._machine().device.fail_writes = 1

    async def _read_error(self) -> None:
        self._machine().device.fail_reads = self.rng.choice((1, 3))

    async def _full(self) -> None:
        model = self._machine().device.model
        before = model.total_bytes
        model.total_bytes = model.used_bytes() + self.rng.choice((0, 1024, 70_000, 300_000))
        await self._last(5.0)
        model.total_bytes = before

    async def _flip(self) -> None:
        machine = self._machine()
        if flip_some_byte(machine.device, self.rng):
            self.world.judge.facts.bookie(machine.name).damaged = True
            if self.rng.random() < 0.6:
                self.world.crash(machine, power=False)

    async def _wipe(self) -> None:
        """The disk is replaced by an empty one: the bookie must refuse to serve under its old name (M8)."""
        machine = self._machine()
        facts = self.world.judge.facts.bookie(machine.name)
        facts.wiped = True
        self.world.crash(machine, power=True)
        machine.device.wipe()
        self.world.disturb(machine.name, 1)
        await self._last()
        started = await self.world.boot(machine)
        self.world.report.check("M8", not started, "{} serves although its disk was replaced", machine.name)

    def heal(self) -> None:
        """End everything that can be undone at once."""
        world = self.world
        world.fabric.heal()
        world.metadata.down = False
        world.metadata.lose_before = world.metadata.lose_after = 0.0
        for machine in world.machines.values():
            machine.device.fail_writes = machine.device.fail_reads = 0
            machine.device.crash_at_op = None
            machine.device.model.total_bytes = 1 << 40
