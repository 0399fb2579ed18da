"""A client of Hrana in JSON that says byte for byte what it sends, and servers of databases on a cluster."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.serve.http.kit import Answer, Raw

from buckram.cluster import Client
from buckram.serve.hrana.server import DatabaseServer
from buckram.serve.http.server import bind


@asynccontextmanager
async def serving(client: Client, *names: str, **settings: Any) -> AsyncIterator[DatabaseServer]:
    async with DatabaseServer(client, names, bind("127.0.0.1", 0), **settings) as server:
        yield server


def integer(value: int) -> dict[str, Any]:
    return {"type": "integer", "value": str(value)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "value": value}


def execute(sql: str, *args: Any, **more: Any) -> dict[str, Any]:
    return {"type": "execute", "stmt": {"sql": sql, "args": list(args), **more}}


CLOSE = {"type": "close"}
AUTOCOMMIT = {"type": "get_autocommit"}


def values(result: dict[str, Any]) -> list[list[Any]]:
    """The rows of a result without types."""
    return [[column.get("value", column.get("base64")) for column in row] for row in result["rows"]]


class Hrana:
    """One stream on one connection."""

    def __init__(self, raw: Raw, prefix: str) -> None:
        self.raw, self.prefix = raw, prefix
        self.baton: str | None = None
        self.last: Answer

    @classmethod
    async def to(cls, url: str, prefix: str = "/shop/main", tls: ssl.SSLContext | None = None) -> Hrana:
        return cls(await Raw.to(url, tls), prefix)

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        self.last = await self.raw.ask(f"POST {self.prefix}/{path}", json.dumps(body).encode(), **headers)
        return self.last

    async def pipeline(self, *requests: Any, version: str = "v3") -> list[Any]:
        """The results: the response of each request, or its error."""
        answer = await self.post(f"{version}/pipeline", {"baton": self.baton, "requests": list(requests)})
        assert answer.status == 200, answer.body
        self.baton = answer.value["baton"]
        results = answer.value["results"]
        return [one["response"] if one["type"] == "ok" else one["error"] for one in results]

    async def rows(self, sql: str, *args: Any) -> list[list[Any]]:
        (found,) = await self.pipeline(execute(sql, *args))
        assert "result" in found, found
        return values(found["result"])

    async def run(self, *statements: str) -> list[Any]:
        found = await self.pipeline(*map(execute, statements))
        assert all("code" not in one for one in found), found
        return found

    async def cursor(self, steps: Sequence[Any]) -> list[dict[str, Any]]:
        answer = await self.post("v3/cursor", {"baton": self.baton, "batch": {"steps": steps}})
        assert answer.status == 200, answer.body
        head, *entries = [json.loads(line) for line in answer.body.splitlines()]
        self.baton = head["baton"]
        return entries
