"""Logins by OIDC at each door: a bookie, a gateway with its files and sessions, and a server of databases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bookie.service.security.test_login import closed, principals
from tests.serve.gateway.kit import Api, serving
from tests.serve.hrana.kit import Hrana
from tests.serve.hrana.kit import serving as serving_databases
from tests.serve.hrana.test_database_access import code
from tests.serve.webhdfs.kit import Remote, Web
from tests.support.bookie_kit import Wire
from tests.support.issuer_kit import AUDIENCE, FakeIssuer, Key, issuing
from tests.support.polling import eventually, until
from tests.support.secure_kit import Guarded, guarded

from buckram import connect
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.cluster import Client
from buckram.config import AuthConfig, ClientConfig, TlsConfig
from buckram.core.security.oidc import issuer_of
from buckram.core.wire.messages import Auth, Read
from buckram.errors import AccessRefused, Code, ConfigError
from buckram.metadata.records.security import SecurityStore
from buckram.runtime.net.security.issuer_keys import IssuerKeys
from buckram.runtime.net.security.logins import TOKEN_PLUGIN, TokenLogin, login_of
from buckram.runtime.net.security.secure_network import LoginRefused
from buckram.serve.hrana.database_access import TokenAccess
from buckram.serve.http.origins import Origins
from buckram.serve.http.tokens import ClusterTokens

QUIET = ClientConfig(local_read_bytes=0, idle_lac_ms=0)


@pytest.fixture
def there() -> Iterator[FakeIssuer]:
    with issuing() as found:
        yield found


@pytest.fixture
async def client(client: Client) -> Client:
    await client.namespaces.create("shop", ensemble="1/1/1")
    return client


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


def settings(there: FakeIssuer) -> AuthConfig:
    return AuthConfig(
        logins="token", authorisation="on", oidc_issuer=there.url, oidc_audience=AUDIENCE,
        oidc_admin_groups="operators",
    )  # fmt: skip


async def refused(running: Guarded, token: str) -> bool:
    try:
        transport, _ = await running.network(token=token).connect("127.0.0.1", running.port, asyncio.Protocol)
    except LoginRefused:
        return True
    transport.abort()
    return False


async def test_a_bookie_lets_in_who_has_a_token_of_the_issuer_and_grants_decide(
    tmp_path: Path, there: FakeIssuer
) -> None:
    async with guarded(tmp_path, auth=settings(there)) as running:
        guard = running.bookie._guard
        assert guard is not None
        root = there.token("root", groups=["operators"])
        async with connect(running.service, token=root, config=QUIET) as admin:
            await admin.namespaces.create("shop", ensemble="1/1/1")
            async with admin.namespace("shop").writer("orders") as writer:
                await writer.append(b"x")
            assert principals(running)[0] == "oidc:root"
        text = there.token("alice", groups=["staff"])
        async with connect(running.service, token=text, config=QUIET) as alice:
            with pytest.raises(AccessRefused, match=r"oidc:alice|no permission"):
                await alice.namespace("shop").get("orders", 0)
            acl = await running.security.change_acl(lambda acl: acl.granting("role:oidc-group:staff", "shop", ["read"]))
            await until(lambda: guard.state.acl == acl)
            assert (await alice.namespace("shop").get("orders", 0)).value == b"x"
        # A token of the cluster for the same name is somebody else, and counts as before.
        async with connect(running.service, token=await running.token("alice"), config=QUIET) as own:
            with pytest.raises(AccessRefused):
                await own.namespace("shop").get("orders", 0)


async def test_wrong_tokens_are_refused_at_a_bookie_which_says_why(
    tmp_path: Path, there: FakeIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    now = int(time.time())
    wrong = {
        "not for audience": there.token(aud="others"),
        "has expired": there.token(exp=now - 1),
        "from the future": there.token(nbf=now + 400),
        "no good token": there.token(key=Key("first")),
        "a key that this cluster does not know": there.token(iss="https://evil.example.com"),
    }
    async with guarded(tmp_path, auth=settings(there)) as running:
        for said, token in wrong.items():
            assert await refused(running, token), said
            assert said in caplog.text
        assert not await refused(running, there.token())
    async with guarded(tmp_path, auth=AuthConfig(logins="token")) as running:
        assert await refused(running, there.token())


def fetched_at_once(running: Guarded) -> IssuerKeys:
    guard = running.bookie._guard
    assert guard is not None
    keys = guard._security._issuer
    assert keys is not None
    keys._again_s = 0.0
    return keys


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_login_with_a_new_key_waits_for_it_and_what_comes_behind_waits_too(
    tmp_path: Path, there: FakeIssuer, protocol: int
) -> None:
    async with guarded(tmp_path, auth=settings(there)) as running:
        fetched_at_once(running)
        there.rotate(Key("second", "RS256"))
        assert not await refused(running, there.token())
        there.rotate(Key("third"))
        wire = Wire(*await asyncio.open_connection("127.0.0.1", running.port), protocol)
        wire.send(Auth(TOKEN_PLUGIN, there.token(groups=["operators"]).encode()))
        wire.send(Read(7, 0))
        wire.send(Read(8, 0))
        assert (await wire.reply()).code is Code.OK
        assert [((await wire.reply()).code) for _ in range(2)] == [Code.NO_LEDGER, Code.NO_LEDGER]
        await wire.close()


async def test_an_issuer_that_does_not_answer_holds_up_nobody_else(
    tmp_path: Path, there: FakeIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buckram.runtime.net.security.issuer_keys.FETCH_S", 1.0)
    async with guarded(tmp_path, auth=settings(there), login_s=20.0) as running:
        fetched_at_once(running)
        there.rotate(Key("second"))
        there.how = "slow"
        waits = [asyncio.ensure_future(refused(running, there.token(f"a{number}"))) for number in range(20)]
        await until(lambda: len(running.bookie.server.sessions) == 20)
        assert not await refused(running, await running.token("bob"))
        assert not any(one.done() for one in waits)
        assert await asyncio.gather(*waits) == [True] * 20
        assert there.asked < 10
        # Behind a login that waits no more comes than before any other one.
        wire = Wire(*await asyncio.open_connection("127.0.0.1", running.port), 3)
        wire.send(Auth(TOKEN_PLUGIN, there.token().encode()))
        wire.writer.write(bytes(70_000))
        assert await wire.drained(0.9)
        # Whoever goes meanwhile leaves nothing behind.
        wire = Wire(*await asyncio.open_connection("127.0.0.1", running.port), 3)
        wire.send(Auth(TOKEN_PLUGIN, there.token().encode()))
        await until(lambda: len(running.bookie.server.sessions) == 1)
        await wire.close()
        await until(lambda: not running.bookie.server.sessions)
        there.how = "ok"

        async def lets_in() -> bool:  # when the fetches that hang have ended
            return not await refused(running, there.token())

        await eventually(lets_in)


async def test_a_connection_ends_with_its_token_and_when_its_subject_is_revoked(
    tmp_path: Path, there: FakeIssuer
) -> None:
    async with guarded(tmp_path, auth=settings(there)) as running:
        network = running.network(token=there.token("alice", exp=int(time.time()) + 3))
        transport, _ = await network.connect("127.0.0.1", running.port, asyncio.Protocol)
        assert await closed(transport, 20)
        assert running.bookie._guard is not None
        assert [one.subject for one in running.bookie._guard.expired_tokens()] == ["oidc:alice"]
        network = running.network(token=there.token("b" * 255))
        transport, _ = await network.connect("127.0.0.1", running.port, asyncio.Protocol)
        await running.security.revoke_subject("oidc:" + "b" * 255, time.time())
        assert await closed(transport, 20)
        assert await refused(running, there.token("b" * 255))
        assert not await refused(running, there.token("alice"))


def test_an_issuer_whose_tokens_cannot_come_is_refused(there: FakeIssuer) -> None:
    with pytest.raises(ConfigError, match="add it to"):
        ConnectionGate(TlsConfig(), replace(settings(there), logins="sasl"))
    assert ConnectionGate(TlsConfig(), replace(settings(there), logins="", authorisation="off")).issuer is None


def test_a_client_logs_in_with_what_is_in_its_file_now(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    file.chmod(0o600)
    login = login_of(AuthConfig(token_file=str(file)), "", {})
    assert login is not None
    shown = []
    for text in ("one", "two", "", "three"):
        file.write_text(text)
        made = login()
        assert isinstance(made, TokenLogin)
        shown.append(made.first())
    assert shown == [b"one", b"two", b"one", b"three"]


@asynccontextmanager
async def gateway(client: Client, there: FakeIssuer) -> AsyncIterator[tuple[Api, ClusterTokens, SecurityStore, str]]:
    store = client.services.store
    async with (
        ClusterTokens(store, client.services.clocks, issuer_of(settings(there))) as tokens,
        serving(client, tokens=tokens) as served,
    ):
        assert tokens._security._issuer is not None
        tokens._security._issuer._again_s = 0.0
        yield await Api.to(served.url), tokens, SecurityStore(store), served.url


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_gateway_takes_tokens_of_the_issuer_for_pages_files_and_sessions(
    client: Client, there: FakeIssuer
) -> None:
    async with gateway(client, there) as (api, tokens, security, url):
        root, ann = (
            bearer(there.token("root", groups=["operators"])),
            bearer(there.token("ann", groups=["staff"])),
        )
        await api.value("POST /v2/namespaces/shop/streams", {"stream": "orders"}, status=201, **root)
        assert await api.code("GET /v2/namespaces/shop/streams/orders", **ann) == (404, "NO_SUCH_STREAM")
        acl = await security.change_acl(lambda acl: acl.granting("role:oidc-group:staff", "shop", ["read", "append"]))
        await until(lambda: tokens.acl == acl)
        await api.value("GET /v2/namespaces/shop/streams/orders", **ann)
        assert (await api.value("GET /v2/session", **ann))["principal"] == "oidc:ann"
        assert await api.code("GET /v2/status", **bearer(there.token(aud="others"))) == (401, "UNAUTHORIZED")
        assert "not for audience" in str(api.last)
        # A key that was published just now is asked for, and nobody is sent away.
        for number, way in enumerate(("pages", "files", "session", "oauth2")):
            there.rotate(Key(f"new {number}", "ES256"))
            fresh = there.token("ann", groups=["staff"])
            if way == "pages":
                await api.value("GET /v2/namespaces/shop/streams/orders", **bearer(fresh))
            elif way == "files":
                web = await Web.to(url, **bearer(fresh))
                await web.create("/shop/a", b"x")
                assert await web.open("/shop/a") == b"x"
                await web.close()
            elif way == "session":
                shown = await api.value("POST /v2/session", {"token": fresh}, status=201)
                assert shown["principal"] == "oidc:ann"
            else:
                form = f"grant_type=client_credentials&client_secret={fresh}".encode()
                answer = await api.ask("POST /webhdfs/oauth2/token", form)
                assert answer.status == 200, answer
        there.rotate(Key("last"))
        mallory = await Web.to(url, **bearer(there.token("mallory")))
        with pytest.raises(Remote, match="shop: does not exist"):
            await mallory.list("/shop")
        await mallory.close()


async def test_a_database_is_used_by_grants_of_groups_and_a_pass_says_the_same_principal(
    client: Client, there: FakeIssuer
) -> None:
    store = client.services.store
    async with (
        TokenAccess(store, client.services.clocks, issuer_of(settings(there))) as access,
        serving_databases(client, "shop/main", access=access, origins=Origins()) as server,
    ):
        hrana, security = await Hrana.to(server.url), SecurityStore(store)
        ann = bearer(there.token("ann", groups=["staff"]))
        assert await code(hrana, "SELECT 1", ann) == 404
        acl = await security.change_acl(lambda acl: acl.granting("oidc:ann", "shop/main", ["read"]))
        await until(lambda: access.acl == acl)
        assert await code(hrana, "SELECT 1", ann) == 200
        assert await code(hrana, "CREATE TABLE t (x)", ann) == "SQLITE_READONLY"
        passed = await access.vouch(access.verified(there.token("ann", groups=["staff"])).principal, "/shop/main")
        found = access._security.verify(passed.partition(" ")[2], "forwarded /shop/main")
        assert (found.principal.name, found.principal.roles) == ("oidc:ann", ("oidc-group:staff",))
