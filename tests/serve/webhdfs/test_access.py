"""Who may use files: tokens by header, by OAuth2 and as delegation tokens; grants; gateways without tokens."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from tests.serve.gateway.shared.test_authentication import guarded
from tests.serve.http.kit import Raw
from tests.serve.webhdfs.kit import Remote, Web

from buckram.cluster import Client
from buckram.errors import AccessRefused
from buckram.serve.gateway.server import Gateway
from buckram.serve.http.limits import LOGIN_BYTES
from buckram.serve.http.origins import Origins
from buckram.serve.webhdfs import access
from buckram.serve.webhdfs.access import RequestAuthenticator
from buckram.serve.webhdfs.limits import TOKEN_PATH
from buckram.serve.webhdfs.problems import RemoteProblem, problem_of

FORM = {"Content_Type": "application/x-www-form-urlencoded; charset=utf-8"}


async def test_grants_decide(client: Client) -> None:
    async with guarded(client) as place:
        url, alice = place.gateway.url, await place.bearer("alice")
        nobody, web = await Web.to(url), await Web.to(url, **alice)
        with pytest.raises(Remote, match=r"403 .*AccessControlException: this gateway asks for a token"):
            await nobody.list("/shop")
        with pytest.raises(Remote, match=r"403 .*InvalidToken: the token is not valid"):
            await (await Web.to(url, Authorization="Bearer x.y.z")).list("/shop")
        with pytest.raises(Remote, match=r"404 .*FileNotFoundException: namespace shop: does not exist"):
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


async def test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not(client: Client) -> None:
    """For each operation, in a namespace of others and in none; what makes something is refused in both."""
    await client.namespaces.create("mine")
    async with guarded(client) as place:
        root = await Web.to(place.gateway.url, **await place.bearer("root", "admin"))
        await root.create("/shop/folder/there", b"x")
        await place.grant("token:eve", "mine", "read", "append", "delete")
        eve = await Web.to(place.gateway.url, **await place.bearer("eve"))
        assert await eve.list("/") == ["mine"]
        assert (await eve.status("/"))["childrenNum"] == 1
        for (method, name), (effect, _) in place.gateway.files._operations.items():
            if effect is None:
                continue
            told: set[str] = set()
            for path in (
                "/shop/folder/there",
                "/shop/folder/gone",
                "/shop/folder",
                "/gone/folder/there",
                "/shop",
                "/gone",
            ):
                with pytest.raises(Remote) as refused:
                    await eve.answer(f"{method} {eve.place(path, name, destination='/mine/other')}")
                made = name in ("CREATE", "MKDIRS")
                assert refused.value.status == (403 if made else 404), (name, path)
                told.add(str(refused.value).replace("shop", "~").replace("gone", "~"))
            assert len(told) == 1, (name, told)
        # Where one may do something there, one is told what is missing.
        await place.grant("token:eve", "shop/orders", "read")
        with pytest.raises(Remote, match=r"403 .*no permission `read` on namespace shop"):
            await eve.list("/shop")
        for one in (root, eve):
            await one.close()


async def test_what_is_renamed_to_a_namespace_of_others_says_nothing_of_it(client: Client) -> None:
    await client.namespaces.create("mine")
    async with guarded(client) as place:
        await place.grant("token:eve", "mine", "read", "append", "delete")
        eve = await Web.to(place.gateway.url, **await place.bearer("eve"))
        await eve.create("/mine/file", b"x")
        for target in ("shop", "gone"):
            with pytest.raises(Remote, match=f"403 .*no permission `append` on namespace {target}"):
                await eve.rename("/mine/file", f"/{target}/file")
        await eve.close()


def test_a_refusal_of_the_store_says_no_place_in_it() -> None:
    told = problem_of(AccessRefused("/ledgers/00/0000/L0007", "the access list does not allow it"))
    assert told.status == 403
    assert "/ledgers" not in told.message
    assert "the access list does not allow it" in told.message


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
    text = access.encode(token, "alice" * 40, "10.0.0.7:8080")
    if size < 12_000:
        assert access.decode(text) == token
    else:
        with pytest.raises(ValueError, match="the limit is 16384"):
            access.decode(text)


@pytest.mark.parametrize("text", ["", "?", "AA", "gAA", "_w", "j_8"])
def test_noise_is_no_delegation_token(text: str) -> None:
    with pytest.raises(ValueError, match="no token that this gateway gave"):
        access.decode(text)


def visitor(door: RequestAuthenticator, address: str = "10.0.0.9", host: str = "") -> frozenset[str]:
    headers = [(b"host", host.encode())] if host else []
    request = Request({"type": "http", "client": (address, 1), "headers": headers})
    return door.enter(request, {}).allowed("shop")


def test_without_tokens_others_may_only_read() -> None:
    from buckram.serve.gateway.shared.authentication import is_local

    door = RequestAuthenticator(None, Origins(), is_local=is_local)
    assert "append" in visitor(door, "127.0.0.1")
    assert visitor(door) == {"read"}
    assert "append" in visitor(RequestAuthenticator(None, Origins(), is_local=is_local, open_to_all=True))


async def test_a_page_of_another_site_is_refused(gateway: Gateway) -> None:
    web = await Web.to(gateway.url, Origin="https://evil.example.org")
    with pytest.raises(Remote, match="AccessControlException: pages of"):
        await web.mkdirs("/shop/a")
    await web.close()
    with pytest.raises(RemoteProblem, match="this server does not know the host name"):
        visitor(
            RequestAuthenticator(None, Origins(), is_local=lambda request: True), "127.0.0.1", host="evil.example.org"
        )


async def test_the_root_is_changed_by_nobody(gateway: Gateway) -> None:
    web = await Web.to(gateway.url)
    for method, op in (("DELETE", "DELETE"), ("PUT", "SETPERMISSION"), ("PUT", "CREATE")):
        with pytest.raises(Remote, match="AccessControlException: the root has namespaces only"):
            await web.ask(method, "/", op)
    await web.close()
