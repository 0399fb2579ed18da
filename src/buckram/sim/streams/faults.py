"""The ledger simulator's faults, and some that aim at streams: leases that expire, heads whose replies are lost."""

from __future__ import annotations

import asyncio

from buckram.sim.faults import Faults
from buckram.sim.streams.stage import Stage


class StreamFaults(Faults):
    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)  # type: ignore[arg-type]  # of a ledger's stage it uses world, plan and over: they are here
        self._stories |= {
            "expire a writer": self._expire_writer, "crash a writer": self._crash_writer,
            "crash a tender": self._crash_tender, "lose a head": self._lose_head, "pause a writer": self._pause_writer,
        }  # fmt: skip

    def _hosts(self, first: str) -> list[str]:
        return [host for host in self._clients() if host[0] in first and not self.world.processes[host].dead]

    async def _expire_writer(self) -> None:
        """Its session ends while it goes on; another one may take the lease at once."""
        for _ in range(self.rng.choice((1, 1, 2))):
            hosts = self._hosts("w")
            if hosts:
                host = self.rng.choice(hosts)
                self.world.report.situation("lease expired under a writer")
                self.world.sessions[host].expire()
            await asyncio.sleep(self.rng.random())

    async def _crash_writer(self) -> None:
        hosts = self._hosts("w")
        if hosts:
            host = self.rng.choice(hosts)
            self.world.processes[host].crash_after(int(self.rng.random() ** 2 * 150))
            self.world.disturb(host, 1)

    async def _crash_tender(self) -> None:
        hosts = self._hosts("jtdp")
        if hosts:
            host = self.rng.choice(hosts)
            self.world.processes[host].crash_after(int(self.rng.random() ** 2 * 100))
            self.world.disturb(host, 1)

    async def _lose_head(self) -> None:
        for _ in range(3):
            hosts = self._hosts("wjtdp")
            if hosts:
                what = self.rng.choice(("/streams/heads/", "/streams/heads/", "/intents/", "/lease"))
                when = self.rng.choice(("before", "after", "after"))
                self.world.metadata.lose_next(when, self.rng.choice(hosts), what)
            await asyncio.sleep(self.rng.random() * 0.5)

    async def _pause_writer(self) -> None:
        """Long enough for others to take over; it wakes as an old writer."""
        hosts = self._hosts("w")
        if hosts:
            host = self.rng.choice(hosts)
            self.world.pause(host)
            await asyncio.sleep(self.rng.random() * 5)
            self.world.resume(host)


__all__ = ["StreamFaults"]
