"""A client of Hrana on a WebSocket that says byte for byte what it sends."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

from tests.serve.http.kit import Answer, Raw

TEXT, BYTES, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(kind: int, data: bytes, *, last: bool = True) -> bytes:
    """A frame of a client; its mask is of zeros, so the bytes stay as they are."""
    size = len(data)
    if size < 126:
        head = bytes((0x80 | size,))
    else:
        head = b"\xfe" + struct.pack("!H", size) if size < 65536 else b"\xff" + struct.pack("!Q", size)
    return bytes(((0x80 if last else 0) | kind,)) + head + bytes(4) + data


class Socket:
    """One WebSocket."""

    def __init__(self, raw: Raw, answer: Answer) -> None:
        self.raw, self.answer = raw, answer
        self._last_id = 0
        self.reason = ""
        """Which the server gave when it closed."""

    @classmethod
    async def to(
        cls,
        url: str,
        path: str = "/shop/main/",
        *,
        hello: bool = True,
        jwt: str | None = None,
        protocol: str = "hrana3",
        **headers: str,
    ) -> Socket:
        """`hello`: also say who this is."""
        given = {"Sec-WebSocket-Protocol": protocol} if protocol else {}
        raw = await Raw.to(url)
        answer = await _shaken(raw, path, {**given, **headers})
        found = cls(raw, answer)
        if answer.status == 101 and hello:
            await found.send({"type": "hello", "jwt": jwt})
            assert await found.receive() == {"type": "hello_ok"}
        return found

    async def send(self, *messages: Any) -> None:
        await self.raw.send(b"".join(frame(TEXT, json.dumps(one).encode()) for one in messages))

    async def receive(self) -> Any:
        """The next message in JSON; the code with which the server closes, or 0 where it cuts the connection."""
        async with asyncio.timeout(20):
            try:
                while True:
                    kind, data = await self._frame()
                    if kind == CLOSE:
                        self.reason = data[2:].decode()
                        return struct.unpack("!H", data[:2])[0]
                    if kind == PING:
                        await self.raw.send(frame(PONG, data))
                        continue
                    return json.loads(data)
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0

    async def _frame(self) -> tuple[int, bytes]:
        first, size = await self.raw.reader.readexactly(2)
        if size == 126:
            (size,) = struct.unpack("!H", await self.raw.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.raw.reader.readexactly(8))
        data = await self.raw.reader.readexactly(size)
        return first & 0x0F, data

    def request(self, kind: str, **more: Any) -> dict[str, Any]:
        self._last_id += 1
        return {"type": "request", "request_id": self._last_id, "request": {"type": kind, **more}}

    async def ask(self, kind: str, **more: Any) -> Any:
        """The response to one request, or its error."""
        await self.send(self.request(kind, **more))
        found = await self.receive()
        if isinstance(found, int):
            return found
        assert found["request_id"] == self._last_id
        return found["response"] if found["type"] == "response_ok" else found["error"]

    async def rows(self, sql: str, stream: int = 1) -> Any:
        """The values of the rows; an error where there is one."""
        found = await self.ask("execute", stream_id=stream, stmt={"sql": sql})
        if "result" not in found:
            return found
        return [[column.get("value") for column in row] for row in found["result"]["rows"]]


async def _shaken(raw: Raw, path: str, headers: dict[str, str]) -> Answer:
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {headers.pop('Host', 'localhost')}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    await raw.send("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(20):
        head = (await raw.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *rest = head.split("\r\n")
    found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
    size = int(found.get("content-length", 0))
    body = await raw.reader.readexactly(size)
    return Answer(int(first.split()[1]), found, body)
