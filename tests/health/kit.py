"""All the doors at which the health of a cluster is shown, and what each of them says."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.serve.gateway.kit import Api, serving

from buckram.cli.app import run
from buckram.cli.shared.exits import Exit
from buckram.cluster import Client
from buckram.core.health.state_table import TABLE
from buckram.core.health.states import RUNBOOK, Severity
from buckram.health.gathering import Gatherer
from buckram.runtime.net.http_server import Request
from buckram.serve.cluster_exporter import Exporter, health

DEADLINE_S = 30.0
COMMANDS = (("status",), ("doctor",), ("cluster", "check"))
_FOUND = re.compile(r'^buckram_cluster_findings{severity="(\w+)",state="([a-z-]+)"} ([0-9]+)', re.MULTILINE)


@dataclass(frozen=True)
class Seen:
    """What one door says: the findings, by state, and whether it calls the cluster healthy."""

    door: str
    found: dict[str, list[dict[str, str]]]
    healthy: bool


@dataclass
class Doors:
    """The doors of one cluster: its commands, a gateway and an exporter."""

    uri: str
    api: Api
    exporter: Exporter

    async def look(self, *, commands: bool = True) -> list[Seen]:
        """Open all of them, one after another."""
        seen = [await asyncio.to_thread(by_command, self.uri, *words) for words in COMMANDS] if commands else []
        answer = await self.api.value("GET /v2/status")
        seen.append(Seen("gateway", _by_state(answer["problems"]), answer["healthy"]))
        await self.exporter.look()
        text = (await self.exporter.answer(Request("GET", "/metrics"))).content.decode()
        counts = {state: int(count) for _, state, count in _FOUND.findall(text)}
        assert counts.keys() == TABLE.keys(), "the exporter knows other states"
        rows = {state: [{}] * count for state, count in counts.items() if count}
        return [*seen, Seen("exporter", rows, "\nbuckram_cluster_healthy 1" in text)]

    async def expect(
        self, state: str, where: str, *, also: tuple[str, ...] = (), at: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """Wait until the gateway shows something in this state at this place; then every door does, in the same words.
        `also`: errors that may be there beside it. `at`: the commands that show it, where only these look for so long.
        Returns the finding."""
        limit = asyncio.get_running_loop().time() + DEADLINE_S
        while not at:
            answer = await self.api.value("GET /v2/status")
            if state in _by_state(answer["problems"]):
                break
            assert asyncio.get_running_loop().time() < limit, (state, answer["problems"])
            await asyncio.sleep(0.05)
        said = list[dict[str, str]]()
        for seen in await self.look():
            if at and seen.door not in at:
                assert state not in seen.found, f"{seen.door} does not look for so long"
                continue
            assert state in seen.found, f"{seen.door} does not show {state}: {seen.found}"
            errors = [name for name in seen.found if TABLE[name].severity is Severity.ERROR]
            assert set(errors) <= {*also, state}, f"{seen.door} shows more: {seen.found}"
            assert seen.healthy is (not errors), seen.door
            if seen.door != "exporter":
                said += [row for row in seen.found[state] if where in row["where"]]
                assert said, f"{seen.door} shows {state} elsewhere: {seen.found[state]}"
        assert len(said) >= len(at or (*COMMANDS, "gateway"))
        first = said[0]
        assert all(row["do"] == first["do"] for row in said), "the advice differs"
        assert first["severity"] == TABLE[state].severity.value
        assert first["runbook"] == f"{RUNBOOK}#{state}"
        return first

    async def gone(self, state: str) -> None:
        """Wait until nothing is in this state any more."""
        limit = asyncio.get_running_loop().time() + DEADLINE_S
        while state in _by_state((await self.api.value("GET /v2/status"))["problems"]):
            assert asyncio.get_running_loop().time() < limit, f"{state} stays"
            await asyncio.sleep(0.05)


def by_command(uri: str, *words: str) -> Seen:
    """What a command says; its exit code is 1 where it says that the cluster is unhealthy, and 0 where it is not."""
    with _output() as out:
        code = run([*words, "--json", "--metadata", uri])
    said = json.loads(out.getvalue().splitlines()[-1])
    assert code == (Exit.OK if said["healthy"] else Exit.FAILED), (words, said)
    return Seen(" ".join(words), _by_state(said["problems"]), said["healthy"])


@contextmanager
def _output() -> Iterator[io.StringIO]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        yield out


def _by_state(problems: list[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for one in problems:
        found.setdefault(one["what"], []).append(one)
    return found


@asynccontextmanager
async def doors(uri: str, client: Client) -> AsyncIterator[Doors]:
    """The doors of a client's cluster."""
    gatherer = Gatherer.of(client)
    try:
        async with serving(client) as gateway:
            api = await Api.to(gateway.url)
            try:
                yield Doors(uri, api, Exporter(_nothing, 60.0, health(gatherer)))
            finally:
                await api.raw.close()
    finally:
        await gatherer.close()


async def _nothing(stats: object) -> None:
    """Streams and the like are of no interest here."""
