"""Clients that read pages of a stream, and single records that were acknowledged before."""

from __future__ import annotations

import asyncio
import base64
import json
import random

from simulator.gateways.appending import records_of
from simulator.gateways.asking import Answer, Asker, Lost
from simulator.gateways.rules import ACKED, Seen
from simulator.gateways.stage import Stage


class PagerActor:
    """One client that reads."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.rules, self.host = stage, stage.world, stage.rules, host
        self.rng = random.Random(f"{stage.plan.seed} gateways {host}")
        self.asker = Asker(stage, host, self.rng)
        self._next: dict[str, int] = {}

    async def run(self) -> None:
        while not self.stage.over:
            try:
                await (self._page() if self.rng.random() < 0.7 else self._one())
            except Lost as lost:
                self.world.trace.note(self.host, f"reads nothing: {lost}")
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.1, 1.0)))

    async def _page(self) -> None:
        """Read one page: the next one, or one from anywhere before."""
        stream = self.rng.choice(self.stage.gateways.stream_names)
        start = self._next.get(stream, 0)
        if self.rng.random() < 0.3:
            start = self.rng.randrange(start + 1)
        limit = self.rng.choice((1, 2, 3, 100))
        answer = await self.asker.ask(self.asker.choose(), "GET", f"{records_of(stream)}?start={start}&limit={limit}")
        if answer.status != 200:
            # Where a page told it to go on, there is the end at least.
            self.rules.report.check(
                "page", answer.status not in (400, 404, 410), "{} from {}: {}", stream, start, answer
            )
            return
        rows = [json.loads(line) for line in answer.body.splitlines()]
        found = [(row["offset"], base64.b64decode(row["value_base64"])) for row in rows]
        following = int(answer.headers["buckram-next-offset"])
        self.rules.report.check("page", len(found) <= limit, "{} records, and {} were asked for", len(found), limit)
        if len(found) == limit:
            self.world.report.situation("a page ended within the stream")
        self.rules.pages[stream].append(Seen(self.host, start, found, following))
        self._next[stream] = following

    async def _one(self) -> None:
        """Read a record that was acknowledged before."""
        acked = [one for one in self.rules.sent if one.outcome == ACKED and one.first is not None]
        if not acked:
            return
        sent = self.rng.choice(acked[-4:])
        assert sent.first is not None
        assert sent.last is not None
        told = sent.last - sent.first + 1
        at = self.rng.randrange(told)
        offset, value = sent.first + at, sent.values[-told:][at]
        answer = await self.asker.ask(self.asker.choose(), "GET", f"{records_of(sent.stream)}/{offset}")
        self._check_one(sent.stream, offset, value, answer)

    def _check_one(self, stream: str, offset: int, value: bytes, answer: Answer) -> None:
        if answer.status == 200:
            found = base64.b64decode(answer.json["value_base64"])
            self.rules.report.check("found", found == value, "{} at {} is {}, not {}", stream, offset, found, value)
        elif answer.status < 500:
            self.rules.report.check("found", False, "{} at {} was acknowledged, and is {}", stream, offset, answer)


__all__ = ["PagerActor"]
