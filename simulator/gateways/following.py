"""Clients that follow a stream by server-sent events, and go on elsewhere with Last-Event-ID when that ends."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys

from simulator.gateways.asking import Asker, Lost
from simulator.gateways.rules import Tail
from simulator.gateways.serving import NAMESPACE
from simulator.gateways.stage import Stage


class FollowerActor:
    """One client that follows one stream from its beginning, until the life is over."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.rules, self.host = stage, stage.world, stage.rules, host
        self.rng = random.Random(f"{stage.plan.seed} gateways {host}")
        self.asker = Asker(stage, host, self.rng)
        self.stream = self.rng.choice(stage.gateways.stream_names)
        self.tail = Tail(host)
        self._rest = b""
        self._at = ""
        """The gateway that it follows at, or did last."""
        self.rules.tails[self.stream].append(self.tail)

    async def run(self) -> None:
        while not self.stage.finished:
            if self._has_all():
                await asyncio.sleep(0.2)
                continue
            gateway = self.asker.choose()
            if self._at not in ("", gateway) and self.tail.rows:
                self.world.report.situation("a tail went on at another gateway")
            self._at = gateway
            try:
                await self._follow(gateway)
            except Lost as lost:
                self.world.trace.note(self.host, f"follows no more: {lost}")
            await asyncio.sleep(self.rng.random() * 0.5)

    def _has_all(self) -> bool:
        """Return whether the stream grows no more, and all of it is here: others may want the place."""
        return self.tail.position >= self.stage.lengths.get(self.stream, sys.maxsize)

    async def _follow(self, gateway: str) -> None:
        """Follow at a gateway until that ends, or this client has enough of it."""
        target = f"/v2/namespaces/{NAMESPACE}/streams/{self.stream}/tail?start=earliest"
        headers = {"last-event-id": str(self.tail.position - 1)} if self.tail.rows else {}
        loop = self.world.loop
        until = loop.time() + self.rng.choice((0.3, 2.0, 2.0 if self.stage.over else 20.0))
        self._rest = b""
        async with self.asker.following(gateway, target, headers) as incoming:
            if incoming.status != 200:
                await self._refused(gateway, incoming.status)
                return
            open_here = self.stage.following[gateway] = self.stage.following[gateway] + 1
            try:
                self.stage.follows(gateway, open_here)
                while loop.time() < until and not self._has_all():
                    data = await self.asker.more(incoming, 5.0)
                    if not data or self._take(data):
                        return
            finally:
                self.stage.following[gateway] -= 1

    async def _refused(self, gateway: str, status: int) -> None:
        if status == 503:
            self.world.report.situation("a tail was refused by the limit")
        # What it has was readable: no gateway may say that there is no such offset.
        self.world.report.check("tail", status not in (400, 404, 409, 410, 416), "{} is answered {}", self.host, status)
        await asyncio.sleep(self.rng.random())

    def _take(self, data: bytes) -> bool:
        """Take what came; return whether the gateway has said that nothing follows."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            lines = dict(line.partition(b": ")[::2] for line in event.split(b"\n"))
            if b"event" in lines:
                self.world.report.situation("a tail was ended by its gateway")
                self.rules.report.check(
                    "tail", lines[b"event"] != b"end", "{} is told that the stream ended", self.host
                )
                return True
            if b"id" in lines:
                row = json.loads(lines[b"data"])
                value = base64.b64decode(row["value_base64"])
                self.rules.report.check("tail", int(lines[b"id"]) == row["offset"], "{} has id {}", row, lines[b"id"])
                self.rules.followed(self.tail, row["offset"], value)
        return False


__all__ = ["FollowerActor"]
