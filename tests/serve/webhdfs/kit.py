"""A client of WebHDFS that does what Hadoop's does: it follows redirects, and raises the Java class that it is told."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import quote, urlencode

from tests.serve.http.kit import Answer, Raw

JAVA = "Java/17.0.1"
"""How Java's own HTTP client calls itself."""


class Remote(Exception):
    """What the server says went wrong."""

    def __init__(self, status: int, told: dict[str, Any]) -> None:
        super().__init__(f"{status} {told['javaClassName']}: {told['message']}")
        self.status, self.message = status, str(told["message"])
        self.kind = str(told["javaClassName"]).rpartition(".")[2]
        assert told["exception"] == self.kind.rpartition("$")[2]


class Web:
    """One connection."""

    def __init__(self, raw: Raw, url: str, headers: dict[str, str]) -> None:
        self._raw, self.url, self.headers = raw, url, headers

    @classmethod
    async def to(cls, url: str, tls: ssl.SSLContext | None = None, **headers: str) -> Web:
        return cls(await Raw.to(url, tls), url, {"User_Agent": JAVA, **headers})

    async def close(self) -> None:
        await self._raw.close()

    def place(self, path: str, op: str, **parameters: object) -> str:
        query = urlencode({"op": op, **{name: str(value) for name, value in parameters.items()}})
        return f"/webhdfs/v1{quote(path)}?{query}"

    async def answer(self, head: str, body: bytes = b"", **headers: str) -> Answer:
        """One answer as it comes. Raises Remote."""
        if not head.startswith("GET") and not body and "Transfer_Encoding" not in headers:
            headers["Content_Length"] = "0"
        answer = await self._raw.ask(head, body, **{**self.headers, **headers})
        if answer.status >= 400:
            assert "content-type" not in answer.headers
            raise Remote(answer.status, answer.value["RemoteException"])
        return answer

    async def ask(self, method: str, path: str, op: str, **parameters: object) -> Any:
        """The JSON of an answer, or None. Raises Remote."""
        answer = await self.answer(f"{method} {self.place(path, op, **parameters)}")
        assert answer.status == 200
        assert answer.body == b"" or "content-type" not in answer.headers
        return answer.value if answer.body else None

    async def redirected(self, head: str) -> str:
        """Where a request is sent on to: a path of the same server."""
        answer = await self.answer(head)
        assert answer.status == 307, answer
        where = answer.headers["location"]
        here = f"{self.url.partition(':')[0]}://localhost"
        assert where.startswith(f"{here}/"), where
        return where.removeprefix(here)

    async def create(self, path: str, data: bytes, *, overwrite: bool = True, pieces: int = 1) -> None:
        """A file, sent in chunks."""
        place = self.place(path, "CREATE", overwrite=str(overwrite).lower(), permission=644)
        data_place = await self.redirected(f"PUT {place}")
        size = max(-(-len(data) // pieces), 1)
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        lines = [f"PUT {data_place} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in self.headers.items()]
        await self._raw.send("\r\n".join([*lines, "", ""]).encode() + body)
        answer = await self._raw.answer()
        if answer.status != 201:
            raise Remote(answer.status, answer.value["RemoteException"])

    async def open(self, path: str, **parameters: object) -> bytes:
        place = await self.redirected(f"GET {self.place(path, 'OPEN', **parameters)}")
        answer = await self.answer(f"GET {place}")
        assert int(answer.headers["content-length"]) == len(answer.body)
        return answer.body

    async def status(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.ask("GET", path, "GETFILESTATUS"))["FileStatus"]
        return found

    async def exists(self, path: str) -> bool:
        try:
            await self.status(path)
        except Remote as error:
            if (error.kind, error.status) != ("FileNotFoundException", 404):
                raise
            return False
        return True

    async def list(self, path: str) -> list[str]:
        found = (await self.ask("GET", path, "LISTSTATUS"))["FileStatuses"]["FileStatus"]
        return [one["pathSuffix"] for one in found]

    async def mkdirs(self, path: str) -> bool:
        return bool((await self.ask("PUT", path, "MKDIRS", permission=755))["boolean"])

    async def delete(self, path: str, recursive: bool = False) -> bool:
        return bool((await self.ask("DELETE", path, "DELETE", recursive=str(recursive).lower()))["boolean"])

    async def rename(self, source: str, target: str) -> bool:
        return bool((await self.ask("PUT", source, "RENAME", destination=target))["boolean"])

    async def rename2(self, source: str, target: str, options: str = "NONE") -> None:
        assert await self.ask("PUT", source, "RENAME", destination=target, renameoptions=options) is None
