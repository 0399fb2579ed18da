"""Deleting many objects over HTTP: directories in one step, and names that begin alike as a job of its owner."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.gateway.kit import Api
from tests.serve.gateway.shared.test_authentication import guarded
from tests.support.polling import eventually

from buckram.cluster import Client
from buckram.serve.gateway.objects.removal_pages import Removal
from buckram.serve.http.problems import HttpProblem
from buckram.serve.operations.jobs import Job

SPACE = "/v2/namespaces/shop"
OBJECTS = f"{SPACE}/objects"


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateway and test both lead the index."""
    monkeypatch.setattr("buckram.state.objects.index_client.TURN_S", 0.1)


async def fill(api: Api, *names: str, **headers: str) -> None:
    for name in names:
        await api.value(f"PUT {OBJECTS}/{name}", b"x", status=201, **headers)


async def names(api: Api, **headers: str) -> list[str]:
    found = await api.value(f"GET {OBJECTS}", **headers)
    return [one["object"].removeprefix("shop/") for one in found["objects"]]


async def ended(api: Api, job: dict[str, Any], **headers: str) -> dict[str, Any]:
    """A job when it has ended."""
    found: dict[str, Any] = {}

    async def over() -> bool:
        found.update(await api.value(f"GET /v2/jobs/{job['id']}", **headers))
        return bool(found["state"] != "running")

    await eventually(over)
    return found


async def test_a_directory_goes_in_one_step(api: Api) -> None:
    await fill(api, "logs/1", "logs/2/x", "logs2", "other")
    assert await api.code(f"DELETE {OBJECTS}/logs") == (404, "NO_SUCH_OBJECT")
    said = await api.value(f"DELETE {OBJECTS}/logs?recursive=true")
    assert said == {"object": "shop/logs", "deleted": True}
    assert await names(api) == ["logs2", "other"]
    await api.value(f"DELETE {OBJECTS}/logs2?recursive=true")
    assert await names(api) == ["other"]
    assert await api.code(f"DELETE {OBJECTS}/logs?recursive=true") == (404, "NO_SUCH_OBJECT")
    assert await api.code(f"DELETE {OBJECTS}/other?recursive=true", If_Match='"1"') == (400, "INVALID_ARGUMENT")
    assert await api.code(f"DELETE {OBJECTS}/other?recursive=perhaps") == (400, "INVALID_ARGUMENT")


EVERYTHING = ["a/b.txt", "a/b/1", "a/b/2", "a/b1", "a/b2/x", "b", "c/1", "z/a/b"]


@pytest.mark.parametrize(
    ("prefix", "steps"),
    [
        ("a/b", 4),
        ("a/b/", 1),
        ("a/b.txt", 1),
        ("a", 1),
        ("b", 1),
        ("c", 1),
        ("c/2", 0),
        ("none", 0),
        ("none/at/all", 0),
    ],
)
async def test_names_that_begin_alike_go(api: Api, monkeypatch: pytest.MonkeyPatch, prefix: str, steps: int) -> None:
    monkeypatch.setattr("buckram.serve.gateway.objects.removal_pages._PAGE", 1)
    await fill(api, *EVERYTHING)
    job = await api.value(f"DELETE {OBJECTS}?prefix={prefix}", status=202)
    found = await ended(api, job)
    assert (found["state"], found["error"]) == ("done", None)
    assert await names(api) == [name for name in EVERYTHING if not name.startswith(prefix)]
    assert found["result"]["deleted"] == found["progress"]["done"] == steps


@pytest.mark.parametrize("query", ["", "?prefix=", "?prefix=../x", "?prefix=a//b", "?prefix=/", "?recursive=true"])
async def test_a_prefix_that_cannot_be_meant_is_refused(api: Api, query: str) -> None:
    await fill(api, "a")
    assert await api.code(f"DELETE {OBJECTS}{query}") == (400, "INVALID_ARGUMENT")
    assert await names(api) == ["a"]


async def test_nothing_is_made_where_there_is_nothing_to_delete(api: Api, client: Client) -> None:
    job = await api.value(f"DELETE {OBJECTS}?prefix=a", status=202)
    assert (await ended(api, job))["result"] == {"namespace": "shop", "prefix": "a", "deleted": 0}
    assert await client.namespace("shop").list() == []


async def test_a_request_with_a_key_begins_one_job(api: Api) -> None:
    key = {"Idempotency_Key": "a"}
    first = await api.value(f"DELETE {OBJECTS}?prefix=a", status=202, **key)
    again = await api.value(f"DELETE {OBJECTS}?prefix=a", status=202, **key)
    assert again["id"] == first["id"]


async def test_it_takes_delete_on_all_such_names_and_shows_its_owner_how_far_it_is(client: Client) -> None:
    async with guarded(client) as place:
        api, root = await Api.to(place.gateway.url), await place.bearer("root", "admin")
        alice, bob = await place.bearer("alice"), await place.bearer("bob")
        await fill(api, "logs/1", "logs/2", "logs.txt", "other", **root)
        for granted in ("shop/objects/logs", "shop/objects/logs/1", "shop/objects/logs/1*"):
            await place.grant("token:alice", granted, "delete")
        await place.grant("token:alice", "shop/objects/*", "read", "append")
        for prefix in ("logs", "logs/", "o"):
            assert await api.code(f"DELETE {OBJECTS}?prefix={prefix}", **alice) == (403, "FORBIDDEN")
        assert await api.code(f"DELETE {OBJECTS}/logs?recursive=true", **alice) == (403, "FORBIDDEN")
        await place.grant("token:alice", "shop/objects/logs/*", "delete")
        assert await api.code(f"DELETE {OBJECTS}?prefix=logs", **alice) == (403, "FORBIDDEN")
        job = await api.value(f"DELETE {OBJECTS}?prefix=logs/", status=202, **alice)
        assert (await ended(api, job, **alice))["state"] == "done"
        assert await names(api, **root) == ["logs.txt", "other"]
        for method in ("GET", "DELETE"):
            assert await api.code(f"{method} /v2/jobs/{job['id']}", **bob) == (404, "NO_SUCH_JOB")
        assert (await api.value(f"DELETE /v2/jobs/{job['id']}", **alice))["state"] == "done"
        assert (await api.value(f"GET /v2/jobs/{job['id']}", **root))["state"] == "done"
        drain = await api.value("POST /v2/placement/check", status=202, **root)
        assert await api.code(f"GET /v2/jobs/{drain['id']}", **alice) == (404, "NO_SUCH_JOB")


async def test_a_job_ends_with_the_grant_of_who_began_it(api: Api, client: Client) -> None:
    await fill(api, "a1", "a2", "a3")
    answers = iter(["", "", "the token is over"])
    job = Job("1", "delete")
    async with client.objects("shop") as objects:
        with pytest.raises(HttpProblem, match="the token is over: the job ends"):
            await Removal(job, lambda: next(answers, "the token is over")).run(objects, "a")
        left = [one.name for one in await objects.list()]
    assert left == ["a1", "a2", "a3"]
