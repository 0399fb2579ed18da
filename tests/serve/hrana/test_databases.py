"""Which database a request means, and databases of namespaces, which are open only while somebody uses them."""

from __future__ import annotations

import pytest
from tests.serve.hrana.kit import CLOSE, Hrana, serving
from tests.serve.http.kit import Raw
from tests.support.clock import pass_time
from tests.support.polling import until

from buckram.cluster import Client
from buckram.errors import InvalidArgument
from buckram.serve.hrana.databases import Databases
from buckram.serve.http.problems import HttpProblem


async def test_a_database_is_found_by_path_header_and_host(client: Client) -> None:
    databases = Databases(client, ["shop/main", "orders", "shop/main"], ["tenants"], announce="")
    assert databases.names == ("shop/main", "default/orders")
    for wanted, host, found in (
        ("shop/main", "x", "shop/main"),
        ("orders", "x", "default/orders"),
        ("tenants/a b", "x", "tenants/a b"),
        ("", "main.shop.example:8080", "shop/main"),
        ("", "orders.default.localhost", "default/orders"),
        ("", "acme.tenants.localhost", "tenants/acme"),
        ("shop/main", "acme.tenants.localhost", "shop/main"),
    ):
        assert databases.find(wanted, host) == found
    for wanted, host, code in (
        ("", "127.0.0.1:80", "NO_DATABASE"),
        ("", "main.shop", "NO_DATABASE"),
        ("shop/other", "x", "NO_SUCH_DATABASE"),
        ("a/b/c", "x", "NO_DATABASE"),
    ):
        with pytest.raises(HttpProblem) as refused:
            databases.find(wanted, host)
        assert (refused.value.status, refused.value.code) == (404, code)
    assert Databases(client, ["shop/main"], [], announce="").find("", "127.0.0.1") == "shop/main"
    with pytest.raises(InvalidArgument, match="name some, or a namespace"):
        Databases(client, [], [], announce="")


async def test_header_and_path_over_http(client: Client) -> None:
    async with serving(client, "shop/main", "shop/other") as server:
        hrana = await Hrana.to(server.url, "//shop//main/")
        await hrana.run("CREATE TABLE only_main (x)")
        hrana = await Hrana.to(server.url, "")
        body = {"stmt": {"sql": "SELECT name FROM sqlite_schema"}}
        assert (await hrana.post("v1/execute", body)).status == 404
        for header, rows in (("shop/main", 1), ("shop/other", 0), ("shop/main@stale=60", 1)):
            answer = await hrana.post("v1/execute", body, Buckram_Database=header)
            assert len(answer.value["result"]["rows"]) == rows
        raw = await Raw.to(server.url)
        assert (await raw.ask("GET /")).value["databases"]["shop/other"]["role"] in ("leader", "follower")
        assert [(await raw.ask(f"GET {path}")).status for path in ("/v2", "/shop/main/v3", "/v3-protobuf", "/x")] == [
            *(200, 200, 404, 404)
        ]


async def test_databases_of_a_namespace_are_opened_when_asked_for_and_closed_when_idle(client: Client) -> None:
    for name in ("a", "b"):
        async with client.namespace("shop").database(name):
            pass
    async with serving(client, namespaces=["shop"], idle_s=1.0) as server:
        hrana = await Hrana.to(server.url, "/shop/a")
        await hrana.run("CREATE TABLE t (x)")
        assert set(server.databases.opened()) == {"shop/a"}
        missing = await (await Hrana.to(server.url, "/shop/missing")).post("v3/pipeline", {"requests": []})
        assert (missing.status, missing.value["code"]) == (404, "NO_SUCH_DATABASE")
        assert "shop/missing" not in server.databases._shelf.names
        assert set(server.databases.opened()) == {"shop/a"}
        await hrana.pipeline(CLOSE)
        await pass_time(1.3)
        await until(lambda: not server.databases.opened())
        assert await hrana_rows(server.url) == []
        assert set(server.databases.opened()) == {"shop/a"}


async def hrana_rows(url: str) -> list[list[str]]:
    return await (await Hrana.to(url, "/shop/a")).rows("SELECT x FROM t")


async def test_a_database_that_stopped_is_opened_again(client: Client) -> None:
    async with serving(client, "shop/main") as server:
        hrana = await Hrana.to(server.url)
        await hrana.run("CREATE TABLE t (x)")
        first = await server.databases.get("shop/main")
        await first.aclose()
        assert first.role == "stopped"
        await (await Hrana.to(server.url)).run("INSERT INTO t VALUES (1)")
        assert await server.databases.get("shop/main") is not first
