"""The end of a life of gateways: faults are healed, every call ends, tails catch up, the streams are read in full."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from buckram.cluster import Client
from simulator.engine.faults import FaultRunner
from simulator.engine.finish import Finish
from simulator.gateways.appending import WriterActor
from simulator.gateways.filing import FilerActor
from simulator.gateways.following import FollowerActor
from simulator.gateways.histories import FILE_GROUPS
from simulator.gateways.putting import NAMES, PutterActor
from simulator.gateways.serving import NAMESPACE
from simulator.gateways.stage import Stage

_NAMES = ("d0", "d1", "x0", "x1")
FINAL = "f1"
"""The host that reads everything at the end."""


class Ending(Finish):
    """Ends one life of gateways."""

    def __init__(self, stage: Stage, faults: FaultRunner) -> None:
        super().__init__(stage, faults)
        self.stage, self.rules = stage, stage.rules
        self._streams: dict[str, list[bytes]] = {}

    async def run(
        self, clients: list[asyncio.Task[None]], followers: Sequence[FollowerActor], tasks: list[asyncio.Task[None]]
    ) -> None:
        """End it. `clients` end by themselves, `tasks` when the stage is finished."""
        self.stage.over = True
        await self.heal()
        self.stage.healed = True
        await self.within(self.done(clients), "the clients")
        for gateway in self.stage.gateways.gateway_hosts:
            await self.within(WriterActor(self.stage, f"{gateway}-last").append_at(gateway), f"an append at {gateway}")
        await self.within(self._read(), "reading")
        if not self.report.violations:
            await self.within(self._caught_up(followers), "the tails")
        if not self.report.violations:
            await self.within(self._look(), "looking at files and objects")
        self.rules.histories.judge()
        for stream, final in self._streams.items():
            self.rules.judge(stream, final)
        self.stage.finished = True
        await self.within(self.done(tasks), "closing")

    async def _read(self) -> None:
        """Read all streams, whose writers may still be open, up to what is acknowledged now."""
        client = await self.world.client(FINAL)
        await self.world.join(self.world.processes[FINAL], self._read_with(client), "read")

    async def _read_with(self, client: Client) -> None:
        ns = client.namespace(NAMESPACE)
        for stream in self.stage.gateways.stream_names:
            async with ns.writer(stream, create=False, takeover=True) as writer:
                end = writer.next_offset
            found: list[bytes] = []
            async with ns.read(stream, start=0, stop=end) as reader:
                async for record in reader:
                    self.report.check("found", record.offset == len(found), "record {} is missing", len(found))
                    found.append(bytes(record.value or b""))
            self._streams[stream], self.stage.lengths[stream] = found, len(found)
        await client.close()

    async def _look(self) -> None:
        """Look at every path, so that the histories end with all that is there."""
        plan = self.stage.gateways
        for name in NAMES if plan.putters else ():
            await PutterActor(self.stage, "o9").look(name)
        last = FilerActor(self.stage, "h9")
        for group in FILE_GROUPS if plan.filers else ():
            for path in (*_NAMES, *(f"{above}/{name}" for above in _NAMES[:2] for name in _NAMES)):
                await last.look(f"{group}/{path}")

    async def _caught_up(self, followers: Sequence[FollowerActor]) -> None:
        for follower in followers:
            while follower.tail.position < len(self._streams[follower.stream]):  # noqa: ASYNC110 - a client has no event
                await asyncio.sleep(0.05)


__all__ = ["FINAL", "Ending"]
