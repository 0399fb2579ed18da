"""Errors of an application in JSON, and what the clients of Spark's checkpoints need of a stack."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.serve.http.kit import Raw, served

from buckram.serve.http.application import ANYBODY, anybody
from buckram.serve.http.body import body_pieces
from buckram.serve.http.problems import HttpProblem, json_answer, redirect


async def echo(request: Request) -> Response:
    return json_answer(request, {"path": request.url.path, "raw": request.scope["raw_path"].decode()})


async def refuse(request: Request) -> Response:
    raise HttpProblem(401, "WHO_ARE_YOU", "no token: send one", headers={"WWW-Authenticate": "Bearer"}, do="send one")


async def broken(request: Request) -> Response:
    raise RuntimeError("a bug")


async def put(request: Request) -> Response:
    """As a gateway answers CREATE: first a redirect to itself, and the body to that address."""
    if "data" not in request.query_params:
        return redirect(f"{request.url}?data=true")
    size = 0
    async for piece in body_pieces(request):
        size += len(piece)
    return json_answer(request, {"size": size}, 201)


ROUTES = [
    Route("/refuse", refuse),
    Route("/broken", broken),
    Route("/files/{path:path}", put, methods=["PUT"]),
    Route("/{path:path}", echo),
]


async def test_every_error_is_json_with_a_message_and_a_code(caplog: pytest.LogCaptureFixture) -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        refused = await raw.ask("GET /refuse")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.value == {"message": "no token: send one", "code": "WHO_ARE_YOU", "do": "send one"}
        wrong = await raw.ask("DELETE /refuse")
        assert (wrong.status, wrong.value["code"]) == (405, "METHOD_NOT_ALLOWED")
        bug = await raw.ask("GET /broken")
        assert (bug.status, bug.value["code"]) == (500, "INTERNAL_ERROR")
        assert "RuntimeError" in bug.value["message"]
        assert any("a bug" in str(record.exc_info) for record in caplog.records)


async def test_json_for_java_has_no_content_type() -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        assert (await raw.ask("GET /x")).headers["content-type"] == "application/json"
        java = await raw.ask("GET /x", User_Agent="Java/17.0.13")
        assert "content-type" not in java.headers
        assert java.value["path"] == "/x"
        assert "content-type" not in (await raw.ask("GET /refuse", User_Agent="Java/17.0.13")).headers


async def test_a_redirect_to_the_server_itself_before_the_body_is_sent() -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        first = await raw.ask("PUT /files/a")
        assert (first.status, first.body) == (307, b"")
        path = first.headers["location"].removeprefix("http://localhost")
        assert path == "/files/a?data=true"
        assert (await raw.ask(f"PUT {path}", b"y" * 200_000)).value == {"size": 200_000}


async def test_paths_come_raw_or_encoded() -> None:
    async with served(ROUTES) as server:
        raw = await Raw.to(server.url)
        encoded = await raw.ask("GET /caf%C3%A9/%20x")
        assert encoded.value == {"path": "/café/ x", "raw": "/caf%C3%A9/%20x"}
        plain = await raw.ask("GET /café/%20x?q=é")
        assert plain.value == {"path": "/café/ x", "raw": "/caf%C3%A9/%20x"}


async def test_without_authentication_everybody_is_anybody() -> None:
    assert await anybody(Request({"type": "http", "headers": []})) is ANYBODY
