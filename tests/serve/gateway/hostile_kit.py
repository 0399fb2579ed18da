"""Two tenants at one gateway: what one of them does, judged by what the other has and sees afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.serve.gateway.kit import Api
from tests.serve.gateway.shared.test_authentication import Guarded, guarded
from tests.serve.hrana.kit import execute
from tests.serve.http.kit import Answer, Raw

from buckram.cluster import Client

SHOP, MALL = "/v2/namespaces/shop", "/v2/namespaces/mall"
SQL = "/v2/databases/shop/books/v3/pipeline"
ALL = ("read", "append", "create", "delete")
SECRET = b"s3cret"


@dataclass
class Game:
    """`alice` has namespace `shop`, with one thing of each kind; `mallory` has `mall`."""

    place: Guarded
    api: Api
    alice: dict[str, str]
    mallory: dict[str, str]
    upload: int = 0
    ledger: int = 0
    cookie: str = ""
    before: Any = None

    @property
    def url(self) -> str:
        return self.place.gateway.url

    async def begin(self) -> None:
        api, alice = self.api, self.alice
        await api.value(f"POST {SHOP}/streams", {"stream": "orders"}, status=201, **alice)
        await api.value(
            f"POST {SHOP}/streams/orders/records?producer=p1&sequence=0",
            b'{"value": "s3cret"}',
            Idempotency_Key="k",
            **alice,
        )
        await api.value(f"PUT {SHOP}/streams/orders/cursors/c", {"offset": 1}, **alice)
        await api.value(f"PUT {SHOP}/objects/a/plan", SECRET, status=201, **alice)
        self.upload = (await api.value(f"POST {SHOP}/uploads/a/part", status=201, **alice))["upload"]
        await api.value(f"PUT {SHOP}/uploads/a/part?upload={self.upload}&part=0", SECRET, status=201, **alice)
        self.ledger = (
            await api.value("POST /v2/ledgers", {"namespace": "shop", "ensemble": "1/1/1"}, status=201, **alice)
        )["ledger"]
        await api.value(f"POST /v2/ledgers/{self.ledger}/entries", SECRET, Content_Type="text/plain", **alice)
        answer = await api.ask("POST /v2/session", {"token": alice["Authorization"].split()[1]})
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        self.before = await self.seen()

    async def seen(self) -> Any:
        """Everything that alice has, as she is told it."""
        api, alice = self.api, self.alice
        statements = {
            "requests": [execute("SELECT name FROM sqlite_schema"), execute("SELECT x FROM t"), {"type": "close"}]
        }
        results = (await api.value(f"POST {SQL}", statements, **alice))["results"]
        return {
            "streams": await api.value(f"GET {SHOP}/streams", **alice),
            "orders": {
                k: v for k, v in (await api.value(f"GET {SHOP}/streams/orders", **alice)).items() if k != "writer"
            },
            "records": await api.lines(f"GET {SHOP}/streams/orders/records", **alice),
            "objects": await api.value(f"GET {SHOP}/objects", **alice),
            "plan": (await api.ask(f"GET {SHOP}/objects/a/plan", **alice)).body,
            "uploads": await api.value(f"GET {SHOP}/uploads", **alice),
            "parts": await api.value(f"GET {SHOP}/uploads/a/part?upload={self.upload}", **alice),
            "ledger": await api.value(f"GET /v2/ledgers/{self.ledger}", **alice),
            "entries": await api.lines(f"GET /v2/ledgers/{self.ledger}/entries", **alice),
            "rows": [one["response"]["result"]["rows"] for one in results[:2]],
            "session": (await api.value("GET /v2/session", Cookie=self.cookie))["principal"],
            "namespace": await api.value(f"GET {SHOP}", **alice),
        }

    async def unharmed(self, case: object) -> None:
        assert await self.seen() == self.before, case

    async def attack(self, head: str, body: bytes = b"", **headers: str) -> Answer:
        """What mallory is answered; on a connection of its own, because some requests end theirs."""
        raw = await Raw.to(self.url)
        try:
            given = {**self.mallory, **headers}
            if not head.startswith(("GET", "HEAD")) and not body:
                given.setdefault("Content_Length", "0")
            found = await raw.ask(head, body, **given)
        except (asyncio.IncompleteReadError, ConnectionError):
            return Answer(0, {}, b"")
        finally:
            await raw.close()
        assert SECRET not in found.body, (head, found)
        return found

    async def refused(self, head: str, body: bytes = b"", **headers: str) -> None:
        answer = await self.attack(head, body, **headers)
        assert answer.status == 0 or 400 <= answer.status < 500, (head, answer)


@asynccontextmanager
async def playing(client: Client) -> AsyncIterator[Game]:
    await client.namespaces.create("mall")
    async with guarded(client) as place:
        for name, space in (("alice", "shop"), ("mallory", "mall")):
            await place.grant(f"token:{name}", space, *ALL)
        made = Game(place, await Api.to(place.gateway.url), await place.bearer("alice"), await place.bearer("mallory"))
        await client.namespace("shop").create_database("books")
        await made.api.value(
            f"POST {SQL}",
            {
                "requests": [
                    execute("CREATE TABLE t (x)"),
                    execute("INSERT INTO t VALUES ('s3cret')"),
                    {"type": "close"},
                ]
            },
            **made.alice,
        )
        await made.begin()
        yield made
        await made.api.raw.close()
