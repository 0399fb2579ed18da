"""Clients that append by /v2 with sequences, keys, conditions or nothing, and repeat what was not answered.

Each repeats only what the documentation lets it repeat: with a sequence anything, at any gateway; with a key at the
process that has seen the key; otherwise only what was refused, or surely did not arrive.
"""

from __future__ import annotations

import asyncio
import random
import re
from urllib.parse import urlencode

from simulator.gateways.asking import GATEWAY, KEY, REDIRECTS, Answer, Asker, Lost, place_of
from simulator.gateways.rules import ACKED, REFUSED, UNKNOWN, Sent
from simulator.gateways.serving import NAMESPACE
from simulator.gateways.stage import Stage

_TRIES = 60
LINES = "text/plain"


def records_of(stream: str) -> str:
    """Return the path of a stream's records."""
    return f"/v2/namespaces/{NAMESPACE}/streams/{stream}/records"


class WriterActor:
    """One client that appends."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.rules, self.host = stage, stage.world, stage.rules, host
        self.rng = random.Random(f"{stage.plan.seed} gateways {host}")
        self.asker = Asker(stage, host, self.rng)
        self._producer, self._sequence, self._producers = "", 0, 0
        self._serial = 0
        self._last = ""
        """The gateway to ask first."""
        self._ids: dict[str, str] = {}
        """The ids of the gateways' processes, by host, as answers told them."""
        self._ends: dict[str, int] = {}
        """The offset after the last record of each stream that this client knows of."""

    async def run(self) -> None:
        for _ in range(self.stage.gateways.appends):
            if self.stage.over:
                return
            await self._append()
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.01, 0.3, 1.0)))

    async def append_at(self, gateway: str) -> None:
        """Append at this gateway, or wherever it sends this client, until that is acknowledged."""
        self.asker.only, self._last = gateway, ""
        await self._append("sequences")

    def _draw(self, kind: str) -> Sent:
        rng, kind = self.rng, kind or self.rng.choice(self.stage.gateways.kinds)
        stream = rng.choice(self.stage.gateways.stream_names)
        values = []
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            values.append(f"{self.host}.{self._serial}{'.' * rng.choice((0, 0, 40, 200))}".encode())
            self._serial += 1
        expected = self._ends.get(stream, 0) if kind == "conditions" else None
        return Sent(self.host, stream, kind, values, expected, rng.random() < 0.2)

    async def _append(self, kind: str = "") -> None:
        """Append some records, until the outcome is known or can not be found out."""
        sent = self._draw(kind)
        self.rules.sent.append(sent)
        query: dict[str, str] = {"atomic": "true"} if sent.atomic else {}
        headers = {"content-type": LINES}
        if sent.kind == "sequences":
            if not self._producer or self.rng.random() < 0.1:
                self._new_producer()
            query |= {"producer": f"{self._producer}.{sent.stream}", "sequence": str(self._sequences(sent))}
        if sent.expected is not None:
            query["expect_offset"] = str(sent.expected)
        body = b"".join(value + b"\n" for value in sent.values)
        target = f"{records_of(sent.stream)}{f'?{urlencode(query)}' if query else ''}"
        if sent.kind == "keys":
            sent.outcome = await self._with_key(sent, target, headers, body)
        else:
            sent.outcome = await self._until_known(sent, target, headers, body)
        if sent.outcome != ACKED:
            self._producer = ""  # It is never sent again, so no later sequence may follow it.

    def _new_producer(self) -> None:
        self._producers += 1
        self._producer, self._next = f"{self.host}-{self._producers}", dict[str, int]()

    def _sequences(self, sent: Sent) -> int:
        first = self._next.get(sent.stream, 0)
        self._next[sent.stream] = first + len(sent.values)
        return first

    # -- asking -------------------------------------------------------------------------------------------

    def _fate(self) -> str:
        if self.stage.over or self.rng.random() >= self.stage.gateways.impatience:
            return ""
        return self.rng.choice(("cut", "leave", "leave"))

    async def _ask(self, gateway: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """Ask a gateway, without following redirects."""
        within_s = self.rng.choice((2.0, 40.0))
        answer = await self.asker.ask(
            gateway, "POST", target, headers=headers, body=body, within_s=within_s, fate=self._fate()
        )
        self._ids[gateway] = answer.headers.get(GATEWAY, self._ids.get(gateway, ""))
        if answer.unknown:
            self.world.report.situation("an outcome was told as unknown")
        return answer

    def _tries(self) -> int:
        return _TRIES if self.rng.random() < 0.8 else 2

    async def _until_known(self, sent: Sent, target: str, headers: dict[str, str], body: bytes) -> str:
        """Send it until it is acknowledged, refused for good, or in doubt where a repetition may do it twice."""
        gateway, doubt, left, redirects = self._last or self.asker.choose(), False, self._tries(), 0
        repeatable, asked = sent.kind in ("sequences", "conditions"), ""
        while left or self.stage.healed:
            left -= 1
            if asked and doubt:
                where = "the same gateway" if asked == gateway else "another gateway"
                self.world.report.situation(f"a request was repeated at {where}")
            asked = gateway
            try:
                answer = await self._ask(gateway, target, headers, body)
            except Lost as lost:
                self.world.trace.note(self.host, f"{target}: {lost}")
                doubt = doubt or lost.sent
            else:
                if answer.status == 307 and redirects < REDIRECTS:
                    redirects += 1
                    self.world.report.situation("a request was redirected")
                    gateway, target = place_of(answer.headers["location"])
                    continue
                known = self._known(sent, answer, doubt)
                if known:
                    self._last = gateway
                    return known
                doubt = doubt or answer.unknown
            if doubt and not repeatable:
                return UNKNOWN
            gateway, redirects = self.asker.choose(), 0
            await asyncio.sleep(self.rng.random() * 0.4)
        return UNKNOWN if doubt else REFUSED

    def _known(self, sent: Sent, answer: Answer, doubt: bool) -> str:
        """Return the outcome of an append by an answer, "" if it is to be sent again."""
        if answer.status == 200:
            self._acknowledged(sent, answer)
            return ACKED
        self.world.trace.note(self.host, f"{sent}: {answer}")
        if answer.code == "OFFSET_MISMATCH":
            self.world.report.situation("a condition of an append was refused")
            found = re.search(r"the next offset is ([0-9]+)", answer.json["message"])
            self._ends[sent.stream] = int(found[1]) if found is not None else 0
            return UNKNOWN if doubt else REFUSED
        if answer.code in ("OUT_OF_ORDER_SEQUENCE", "PRODUCER_FORGOTTEN"):
            # All sequences before were acknowledged, or this is one of a new producer.
            self.world.report.check("once", False, "{} is answered {}", sent, answer)
        if answer.status in (400, 413, 416, 422):
            self.world.report.check("answers", False, "{} is answered {}", sent, answer)
        return ""

    def _acknowledged(self, sent: Sent, answer: Answer) -> None:
        told = answer.json
        sent.first, sent.last = told["first_offset"], told["last_offset"]
        if sent.first is None or sent.first < 0:
            self.world.report.situation("a sequence was stored already")
            sent.first = sent.last = None
        else:
            self._ends[sent.stream] = int(told["last_offset"]) + 1

    # -- with a key ---------------------------------------------------------------------------------------

    async def _with_key(self, sent: Sent, target: str, headers: dict[str, str], body: bytes) -> str:
        """Send it with a key to one process, and go to another one only while it surely was not carried out."""
        key, gateway, doubt = f"{self.host}-{self._serial}", self._last or self.asker.choose(), ""
        told = ""
        """The process that has said that the outcome is unknown."""
        left = self._tries()
        while left or self.stage.healed:
            left -= 1
            meant = doubt or self._ids.get(gateway, "")
            if not meant and not await self._meet(gateway):
                gateway = self.asker.choose()
                await asyncio.sleep(self.rng.random() * 0.3)
                continue
            meant = doubt or self._ids[gateway]
            if doubt:
                self.world.report.situation("a request was repeated at the same gateway")
            try:
                answer = await self._ask(gateway, target, headers | {KEY: key, GATEWAY: meant}, body)
            except Lost as lost:
                doubt = meant if lost.sent else doubt
            else:
                if answer.status == 421:
                    self.world.report.situation("a request met another process than it meant")
                    if doubt:
                        return UNKNOWN
                    continue
                if answer.headers.get("idempotency-repeated"):
                    self.world.report.situation("an answer came again for its key")
                if answer.status == 200:
                    await self._misuse(gateway, meant, key, target, headers)
                if answer.unknown:
                    if told or self.rng.random() < 0.3:
                        return UNKNOWN
                    doubt = told = meant  # Whoever asks again is told the same.
                    continue
                if known := self._known(sent, answer, False):
                    self._last = gateway
                    return known
                doubt = ""  # That process has carried nothing out, whichever attempt this answers.
                if answer.status == 307:
                    self.world.report.situation("a request was redirected")
                    gateway, target = place_of(answer.headers["location"])
                    continue
            if not doubt:
                gateway = self.asker.choose()
            await asyncio.sleep(self.rng.random() * 0.4)
        return UNKNOWN if doubt else REFUSED

    async def _meet(self, gateway: str) -> bool:
        """Ask a gateway for the id of its process."""
        try:
            answer = await self.asker.ask(gateway, "GET", f"/v2/namespaces/{NAMESPACE}", within_s=5.0)
        except Lost:
            return False
        self._ids[gateway] = answer.headers.get(GATEWAY, "")
        return bool(self._ids[gateway])

    async def _misuse(self, gateway: str, meant: str, key: str, target: str, headers: dict[str, str]) -> None:
        """Now and then send another request with a key that was used: it must be refused."""
        if self.rng.random() >= 0.2:
            return
        values = [f"{self.host}.misused.{self._serial}".encode()]
        sent = Sent(self.host, target.split("/")[-2], "misused", values)
        self.rules.sent.append(sent)
        try:
            answer = await self._ask(gateway, target, headers | {KEY: key, GATEWAY: meant}, values[0])
        except Lost:
            return
        self.world.report.check("key", answer.status in (421, 422, 503), "key {} again is answered {}", key, answer)
        sent.outcome = REFUSED


__all__ = ["LINES", "WriterActor", "records_of"]
