"""Who may use files: tokens by header, by OAuth2 and as delegation tokens; grants; gateways without tokens."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from tests.gateway.test_access import guarded
from tests.http.kit import Raw
from tests.webhdfs.kit import Remote, Web

from buckram.client.client import Client
from buckram.gateway.server import Gateway
from buckram.http.limits import LOGIN_BYTES
from buckram.http.origins import Origins
from buckram.webhdfs import java_tokens
from buckram.webhdfs.access import Door
from buckram.webhdfs.limits import TOKEN_PATH
from buckram.webhdfs.problems import RemoteProblem

FORM = {"Content_Type": "application/x-www-form-urlencoded; charset=utf-8"}


async def test_grants_decide(client: Client) -> None:
    async with guarded(client) as place:
        url, alice = place.gateway.url, await place.bearer("alice")
        nobody, web = await Web.to(url), await Web.to(url, **alice)
        with pytest.raises(Remote, match=r"403 .*AccessControlException: this gateway asks for a token"):
            await nobody.list("/shop")
        with pytest.raises(Remote, match=r"403 .*InvalidToken: the token does not count"):
            await (await Web.to(url, Authorization="Bearer x.y.z")).list("/shop")
        with pytest.raises(Remote, match="no permission `read` on namespace shop"):
            await web.list("/shop")
        assert await web.list("/") == []
        await place.grant("token:alice", "shop", "read")
        assert (await web.list("/"), await web.list("/shop")) == (["shop"], [])
        with pytest.raises(Remote, match="no permission `append`"):
            await web.create("/shop/file", b"x")
        await place.grant("token:alice", "shop", "append")
        await web.create("/shop/file", b"x")
        for refused in (
            web.delete("/shop/file"),
            web.create("/shop/file", b"y", overwrite=True),
            web.rename("/shop/file", "/shop/other"),
            web.rename2("/shop/file", "/shop/other", "OVERWRITE"),
        ):
            with pytest.raises(Remote, match=r"403 .*no permission `delete` on namespace shop"):
                await refused
        with pytest.raises(Remote, match="is there already"):
            await web.create("/shop/file", b"y", overwrite=True)
        await web.create("/shop/new", b"x", overwrite=True)
        assert await web.open("/shop/file") == b"x"
        await place.grant("token:alice", "shop", "delete")
        await web.create("/shop/file", b"y", overwrite=True)
        assert await web.open("/shop/file") == b"y"
        with pytest.raises(Remote, match="no permission `append` on namespace default"):
            await web.rename("/shop/file", "/default/file")
        assert await web.delete("/shop/file")
        for one in (nobody, web):
            await one.close()


async def test_oauth2_gives_a_token_for_a_token(client: Client) -> None:
    async with guarded(client) as place:
        token = await place.token("alice", "admin", lasts_s=1000)
        raw = await Raw.to(place.gateway.url)
        form = {"grant_type": "client_credentials", "client_id": "spark", "client_secret": token}
        given = (await raw.ask(f"POST {TOKEN_PATH}", urlencode(form).encode(), **FORM)).value
        assert given["token_type"] == "bearer"
        assert 900 < given["expires_in"] <= 1000
        web = await Web.to(place.gateway.url, Authorization=f"Bearer {given['access_token']}")
        await web.create("/shop/file", b"x")
        form["client_secret"] = token[:-1]
        refused = await raw.ask(f"POST {TOKEN_PATH}", urlencode(form).encode(), **FORM)
        assert (refused.status, refused.value["error"]) == (401, "invalid_client")
        refused = await raw.ask(f"POST {TOKEN_PATH}", b"grant_type=password", **FORM)
        assert (refused.status, refused.value["error"]) == (400, "unsupported_grant_type")
        refused = await raw.ask(f"POST {TOKEN_PATH}", b"x" * (LOGIN_BYTES + 1), **FORM)
        assert (refused.status, refused.value["limit"]) == (413, LOGIN_BYTES)
        await web.close()


async def test_a_delegation_token_is_a_token_of_the_cluster(client: Client) -> None:
    async with guarded(client) as place:
        web = await Web.to(place.gateway.url, **await place.bearer("alice", "admin"))
        given = (await web.ask("GET", "/", "GETDELEGATIONTOKEN", renewer="x"))["Token"]["urlString"]
        assert (await web.ask("PUT", "/", "RENEWDELEGATIONTOKEN", token=given))["long"] > 0
        bare = await Web.to(place.gateway.url)
        await bare.ask("PUT", "/shop/a", "MKDIRS", delegation=given)
        # A file's second step has the token in its address.
        answer = await bare.answer(f"PUT {bare.place('/shop/a/f', 'CREATE', delegation=given)}")
        assert given in answer.headers["location"]
        with pytest.raises(Remote, match="InvalidToken: delegation token: it is no token"):
            await bare.ask("PUT", "/shop/a", "MKDIRS", delegation=given[:40])
        for one in (web, bare):
            await one.close()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 70_000])
def test_delegation_tokens_keep_what_is_in_them(size: int) -> None:
    token = "t" * size
    text = java_tokens.encode(token, "alice" * 40, "10.0.0.7:8080")
    if size < 12_000:
        assert java_tokens.decode(text) == token
    else:
        with pytest.raises(ValueError, match="the limit is 16384"):
            java_tokens.decode(text)


@pytest.mark.parametrize("text", ["", "?", "AA", "gAA", "_w", "j_8"])
def test_noise_is_no_delegation_token(text: str) -> None:
    with pytest.raises(ValueError, match="no token that this gateway gave"):
        java_tokens.decode(text)


def visitor(door: Door, address: str = "10.0.0.9", host: str = "") -> frozenset[str]:
    headers = [(b"host", host.encode())] if host else []
    request = Request({"type": "http", "client": (address, 1), "headers": headers})
    return door.enter(request, {}).allowed("shop")


def test_without_tokens_others_may_only_read() -> None:
    from buckram.gateway.access import is_local

    door = Door(None, Origins(), is_local=is_local)
    assert "append" in visitor(door, "127.0.0.1")
    assert visitor(door) == {"read"}
    assert "append" in visitor(Door(None, Origins(), is_local=is_local, open_to_all=True))


async def test_a_page_of_another_site_is_refused(gateway: Gateway) -> None:
    web = await Web.to(gateway.url, Origin="https://evil.example.org")
    with pytest.raises(Remote, match="AccessControlException: pages of"):
        await web.mkdirs("/shop/a")
    await web.close()
    with pytest.raises(RemoteProblem, match="nobody said that this server is called"):
        visitor(Door(None, Origins(), is_local=lambda request: True), "127.0.0.1", host="evil.example.org")


async def test_the_root_is_changed_by_nobody(gateway: Gateway) -> None:
    web = await Web.to(gateway.url)
    for method, op in (("DELETE", "DELETE"), ("PUT", "SETPERMISSION"), ("PUT", "CREATE")):
        with pytest.raises(Remote, match="AccessControlException: the root has namespaces only"):
            await web.ask(method, "/", op)
    await web.close()
