"""A gateway on a cluster, and a client of it that compares each answer with the gateway's own OpenAPI document."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.serve.http.kit import Answer, Raw

from buckram.cluster import Client
from buckram.serve.gateway.openapi import PROBLEM
from buckram.serve.gateway.server import Gateway
from buckram.serve.gateway.shared.schema import fault
from buckram.serve.http.server import bind


@asynccontextmanager
async def serving(client: Client, **settings: Any) -> AsyncIterator[Gateway]:
    async with Gateway(client, bind("127.0.0.1", 0), **settings) as gateway:
        yield gateway


class Api:
    """One connection to a gateway. Every answer is as its document says, or the call fails."""

    def __init__(self, raw: Raw, document: dict[str, Any]) -> None:
        self.raw, self.document = raw, document
        self.last: Answer

    @classmethod
    async def to(cls, url: str, tls: ssl.SSLContext | None = None) -> Api:
        raw = await Raw.to(url, tls)
        return cls(raw, (await raw.ask("GET /v2/openapi.json")).value)

    async def ask(self, head: str, body: bytes | dict[str, Any] = b"", **headers: str) -> Answer:
        if isinstance(body, dict):
            body, headers = json.dumps(body).encode(), {"Content_Type": "application/json", **headers}
        method, path = head.split(" ", 1)
        if method not in ("GET", "HEAD") and not body:
            headers.setdefault("Content_Length", "0")
        self.last = await self.raw.ask(head, body, **headers)
        self.check(method, path.partition("?")[0], self.last)
        return self.last

    async def value(self, head: str, body: bytes | dict[str, Any] = b"", *, status: int = 200, **headers: str) -> Any:
        """The JSON of an answer with this status."""
        answer = await self.ask(head, body, **headers)
        assert answer.status == status, (head, answer.status, answer.body)
        return answer.value

    async def code(self, head: str, body: bytes | dict[str, Any] = b"", **headers: str) -> tuple[int, str]:
        """Status and code of an answer that is an error."""
        answer = await self.ask(head, body, **headers)
        assert answer.status >= 300, (head, answer.status, answer.body)
        return answer.status, answer.value["code"]

    async def lines(self, head: str, **headers: str) -> list[Any]:
        """The JSON of each line of an answer."""
        answer = await self.ask(head, **headers)
        assert answer.status == 200, answer.body
        return [json.loads(line) for line in answer.body.splitlines()]

    def check(self, method: str, path: str, answer: Answer) -> None:
        operation = self.operation(method, path)
        media = answer.headers.get("content-type", "").partition(";")[0]
        if method == "HEAD" and answer.status >= 400:
            return
        if answer.status >= 400:
            assert not fault(answer.value, PROBLEM), (answer.status, answer.body)
            assert operation is None or "default" in operation["responses"]
            return
        if operation is None or answer.status == 307:
            return
        said = operation["responses"].get(str(answer.status))
        assert said is not None, f"{method} {path}: status {answer.status} is not in the document"
        if method == "HEAD" or answer.status == 304:
            return
        assert media in said["content"], f"{method} {path}: {media} is not in the document"
        if media == "application/json":
            assert not (trouble := fault(answer.value, said["content"][media]["schema"])), f"{method} {path}: {trouble}"
        if media == "application/x-ndjson":
            for line in answer.body.splitlines():
                assert not (trouble := fault(json.loads(line), said["content"][media]["schema"])), trouble

    def operation(self, method: str, path: str) -> Any:
        for template, methods in self.document["paths"].items():
            pattern = re.sub(r"{\w+}", "[^/]+", template.replace("{object}", ".+"))
            if re.fullmatch(pattern, path) and method.lower() in methods:
                return methods[method.lower()]
        return None


class Events:
    """The events of a tail, one after another."""

    def __init__(self, raw: Raw) -> None:
        self._raw, self._rest = raw, b""

    @classmethod
    async def of(cls, url: str, path: str, **headers: str) -> Events:
        raw = await Raw.to(url)
        lines = [
            f"GET {path} HTTP/1.1",
            "Host: localhost",
            *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
        ]
        await raw.send("\r\n".join([*lines, "", ""]).encode())
        head = (await raw.reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 200"), head
        assert "text/event-stream" in head
        return cls(raw)

    async def next(self) -> dict[str, str]:
        """The next event that is none of the connection's own: its fields."""
        while True:
            while b"\n\n" not in self._rest:
                size = int(await self._raw.reader.readuntil(b"\r\n"), 16)
                assert size, "the stream of events ended"
                self._rest += (await self._raw.reader.readexactly(size + 2))[:-2]
            found, _, self._rest = self._rest.partition(b"\n\n")
            fields = dict(line.split(": ", 1) for line in found.decode().splitlines() if not line.startswith(":"))
            if fields and "retry" not in fields:
                return fields

    async def offsets(self, count: int) -> list[int]:
        found = []
        for _ in range(count):
            event = await self.next()
            assert json.loads(event["data"])["offset"] == int(event["id"])
            found.append(int(event["id"]))
        return found

    async def close(self) -> None:
        await self._raw.close()
