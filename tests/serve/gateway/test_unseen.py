"""What a principal may not see does not exist for him: each operation, lists and their pages, the cluster's status."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests.security.test_denials import deny
from tests.serve.gateway.kit import Api, serving
from tests.serve.gateway.shared.test_authentication import Guarded, guarded

from buckram.client.cluster.store_history import unguarded
from buckram.cluster import Client
from buckram.core.health.facts import Facts, Noted
from buckram.core.health.findings import findings
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import Fork, Head, Offloaded, Segment
from buckram.errors import AccessRefused, NoSuchStream
from buckram.health.gathering import Health
from buckram.metadata.records.foreign_references import ForeignNote, leave_foreign_note
from buckram.serve.gateway.shared.error_answers import problem_of
from buckram.serve.gateway.shared.operations import Operation
from buckram.serve.gateway.streams.stream_pages import segment_seen
from buckram.serve.json_views.status import status_seen

SPACE = "/v2/namespaces/payroll"
BODIES: Mapping[str, dict[str, Any]] = {
    "createStream": {"stream": "new"},
    "truncateStream": {"before": 0},
    "moveCursor": {"offset": 0},
    "copyObject": {"source": "{object}", "name": "elsewhere"},
    "renameObject": {"source": "{object}", "name": "elsewhere"},
    "completeUpload": {"upload": 1, "parts": 1},
    "setBookieReadonly": {"readonly": True},
}
QUERIES: Mapping[str, str] = {
    "putPart": "?upload={upload}&part=0",
    "listParts": "?upload={upload}",
    "abortUpload": "?upload={upload}",
    "deleteObjects": "?prefix=b",
    "appendRecords": "?create=false",
}
REFUSED = ("operator", "administrator")
STORE_PATH = re.compile(r"/(ledgers|buckram)/")


@dataclass
class Place:
    """Namespace `payroll` with one thing of each kind; eve has a namespace of her own, and nothing else."""

    place: Guarded
    api: Api
    eve: dict[str, str]
    root: dict[str, str]
    there: dict[str, str]
    """What is there, by the names that paths have for it."""
    of_namespace: int
    """A ledger that is no stream's."""

    @property
    def missing(self) -> dict[str, str]:
        """The same, of what is not there."""
        found = {name: f"absent-{name}" for name in self.there} | {"offset": "0", "upload": self.there["upload"]}
        return {**found, "ledger": "987654321", "job": "0" * 12}


@pytest.fixture
async def payroll(client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr("buckram.state.objects.index_client.TURN_S", 0.1)
    for name in ("payroll", "mine"):
        await client.namespaces.create(name)
    space = client.namespace("payroll")
    async with space.writer("q3-salaries") as writer:
        await writer.append(b"secret")
    await space.move_cursor("q3-salaries", "reader-c", 1)
    (segment,) = [one async for one in space.segments("q3-salaries")]
    async with client.create(custom_metadata={LEDGER_NAMESPACE: b"payroll"}) as free:
        await free.append(b"secret")
    await space.create_database("books")
    async with guarded(client) as place:
        api, eve, root = (
            await Api.to(place.gateway.url),
            await place.bearer("eve"),
            await place.bearer("root", "admin"),
        )
        await place.grant("token:eve", "mine", "read", "append", "create", "delete")
        await api.value(f"PUT {SPACE}/objects/bonus", b"secret", status=201, **root)
        upload = (await api.value(f"POST {SPACE}/uploads/bonus", status=201, **root))["upload"]
        job = (await api.value("POST /v2/placement/check", status=202, **root))["id"]
        there = {
            "namespace": "payroll",
            "stream": "q3-salaries",
            "cursor": "reader-c",
            "object": "bonus",
            "database": "books",
            "offset": "0",
            "ledger": str(segment.ledger),
            "job": job,
            "bookie": "bookie-0",
            "token": "no-such-token",
            "upload": str(upload),
        }
        yield Place(place, api, eve, root, there, free.ledger_id)
        await api.raw.close()


def operations(place: Guarded) -> list[Operation]:
    """Those whose paths name a thing, and that are for those only who are known."""
    every = [one for part in place.gateway.parts for one in part.operations()]
    return [one for one in every if "{" in one.path and one.needs != "nothing"]


def filled(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def named(text: str, *names: Mapping[str, str]) -> str:
    """The text of an answer with a thing's kind in the place of its name."""
    pairs = [
        (value, kind) for one in names for kind, value in one.items() if kind not in ("offset", "upload", "ledger")
    ]
    for value, kind in sorted(pairs, key=lambda pair: -len(pair[0])):
        text = text.replace(value, f"<{kind}>")
    return re.sub(r"ledger \d+", "<ledger>", text)


async def asked(api: Api, one: Operation, names: Mapping[str, str], who: Mapping[str, str]) -> tuple[int, str]:
    body: bytes | dict[str, Any] = b""
    headers = dict(who)
    if one.statements and not one.streamed and one.method == "POST":
        body = {"requests": [], "stmt": {"sql": "SELECT 1"}, "batch": {"steps": []}}
    elif one.takes:
        body, headers["Content_Type"] = b"x", next(iter(one.takes))
    elif one.body is not None:
        body = json.loads(filled(json.dumps(BODIES.get(one.name, {})), names))
    path = filled(one.path, names) + filled(QUERIES.get(one.name, ""), names)
    answer = await api.ask(f"{one.method} {path}", body, **headers)
    return answer.status, answer.body.decode()


async def test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not(payroll: Place) -> None:
    missing = payroll.missing
    for one in operations(payroll.place):
        parts = {*re.findall(r"{(\w+)}", one.path), *re.findall(r"{(\w+)}", json.dumps(BODIES.get(one.name, {})))}
        present = await asked(payroll.api, one, payroll.there, payroll.eve)
        wanted = 403 if one.makes or one.needs in REFUSED else 404
        assert present[0] == wanted, (one.name, present)
        assert not STORE_PATH.search(present[1]), (one.name, present)
        for absent in (*({part} for part in parts), parts):
            names = payroll.there | {part: missing[part] for part in absent}
            status, body = await asked(payroll.api, one, names, payroll.eve)
            told = named(present[1], payroll.there), named(body, payroll.there, missing)
            assert (status, told[1]) == (wanted, told[0]), (one.name, absent)


async def test_a_ledger_of_another_is_as_one_that_is_not_there(payroll: Place) -> None:
    ledgers = [one for one in operations(payroll.place) if "{ledger}" in one.path and one.needs == "login"]
    assert len(ledgers) == 6
    for grant in ("", "payroll/another-stream"):
        if grant:
            await payroll.place.grant("token:eve", grant, "read", "append", "create", "delete")
        for one in ledgers:
            none = await asked(payroll.api, one, payroll.missing, payroll.eve)
            assert none[0] == 404
            for ledger in (payroll.there["ledger"], str(payroll.of_namespace)):
                found = await asked(payroll.api, one, {"ledger": ledger}, payroll.eve)
                assert (found[0], named(found[1])) == (404, named(none[1])), one.name
                assert "payroll" not in found[1]
    # With the thing itself in sight it is named, with what is missing.
    await payroll.place.grant("token:eve", "payroll/q3-salaries", "append")
    answer = await payroll.api.ask(f"GET /v2/ledgers/{payroll.there['ledger']}", **payroll.eve)
    assert answer.status == 403
    assert "no permission `read` on payroll/q3-salaries" in answer.value["message"]
    assert await payroll.api.code(f"GET /v2/ledgers/{payroll.of_namespace}", **payroll.eve) == (404, "NO_SUCH_LEDGER")


async def test_a_ledger_whose_record_nobody_can_read_is_nobodys(payroll: Place, client: Client) -> None:
    store = client.services.store
    key = await store.ledgers.key(payroll.of_namespace)
    await store.keys.set(key, b"nonsense", (await store.keys.get(key)).version)
    path = f"GET /v2/ledgers/{payroll.of_namespace}"
    assert await payroll.api.code(path, **payroll.eve) == (404, "NO_SUCH_LEDGER")
    assert (await payroll.api.code(path, **payroll.root))[0] == 500
    listed = [one["ledger"] for one in (await payroll.api.value("GET /v2/ledgers", **payroll.root))["ledgers"]]
    assert payroll.of_namespace in listed
    assert (await payroll.api.value("GET /v2/ledgers", **payroll.eve))["ledgers"] == []


async def test_making_is_refused_and_says_nothing_of_what_is_there(payroll: Place) -> None:
    """Also to whoever may make, and not read: he gets useful answers."""
    api, eve = payroll.api, payroll.eve
    for namespace in ("payroll", "absent"):
        path = f"/v2/namespaces/{namespace}"
        for stream in ("q3-salaries", "absent"):
            body = {"stream": stream}
            assert await api.code(f"POST {path}/streams", body, **eve) == (403, "FORBIDDEN")
            append = f"POST {path}/streams/{stream}/records"
            assert await api.code(f"{append}?create=true", b"x", **eve) == (403, "FORBIDDEN")
            assert await api.code(append, b"x", **eve) == (404, "NO_SUCH_STREAM")
        for name in ("bonus", "absent"):
            assert await api.code(f"PUT {path}/objects/{name}", b"x", **eve) == (403, "FORBIDDEN")
        assert await api.code("POST /v2/ledgers", {"namespace": namespace}, **eve) == (403, "FORBIDDEN")
    await payroll.place.grant("token:eve", "payroll", "create")
    assert (await api.value(f"POST {SPACE}/streams", {"stream": "new"}, status=201, **eve))["stream"] == "payroll/new"
    assert await api.code(f"POST {SPACE}/streams", {"stream": "new"}, **eve) == (409, "STREAM_EXISTS")
    for path in (f"GET {SPACE}/streams/new", f"GET {SPACE}/streams/absent", f"GET {SPACE}", f"GET {SPACE}/streams"):
        assert await api.code(path, **eve) == (403, "FORBIDDEN"), path
        assert "no permission `read` on payroll" in api.last.value["message"]


async def test_where_it_may_be_seen_the_permission_is_named(payroll: Place) -> None:
    """And neither a place in the store nor anybody else."""
    await payroll.place.grant("token:eve", "payroll", "create")
    for one in operations(payroll.place):
        if one.needs in REFUSED or one.needs == "create" or "{job}" in one.path:
            continue
        status, body = await asked(payroll.api, one, payroll.there, payroll.eve)
        assert status == 403, (one.name, body)
        assert one.method == "HEAD" or re.search(r"no permission `\w+` on (all names .* )?payroll", body), one.name
        assert not STORE_PATH.search(body), (one.name, body)


async def test_the_permission_is_asked_for_before_anything_is_looked_up(
    payroll: Place, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So both take the same way, and as long. Whose a ledger is says its record, which is read in both cases."""
    read: list[str] = []
    keys = unguarded(client.services.store).keys

    def noted(name: str) -> Any:
        real = getattr(keys, name)

        async def call(key: str, *args: Any, **kwargs: Any) -> Any:
            read.append(key)
            return await real(key, *args, **kwargs)

        return call

    for name in ("get", "children", "children_with_values"):
        monkeypatch.setattr(keys, name, noted(name))
    missing = payroll.missing
    records = {await client.services.store.ledgers.key(int(one["ledger"])) for one in (payroll.there, missing)}
    for one in operations(payroll.place):
        for names in (payroll.there, missing):
            read.clear()
            await asked(payroll.api, one, names, payroll.eve)
            about = [key for key in read if "payroll" in key or "absent-" in key or key in records]
            looks = int("{ledger}" in one.path and one.needs not in REFUSED)
            assert len(about) == looks, (one.name, about)
    await payroll.api.value(f"GET {SPACE}/streams/q3-salaries", **payroll.root)
    assert any("payroll" in key for key in read)


# -- lists ------------------------------------------------------------------------------------------------


async def pages(api: Api, path: str, of: str, who: dict[str, str]) -> list[Any]:
    """What a list has, one after the other; where a page goes on is nothing that is not in it."""
    found: list[Any] = []
    after = ""
    while True:
        page = await api.value(f"GET {path}{'&' if '?' in path else '?'}limit=1{after}", **who)
        found += page[of]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"
        last = json.dumps(page[of][-1:])
        assert str(page["next"]).rstrip("/") in last, (path, page)


async def test_lists_have_what_may_be_seen_and_go_on_behind_nothing_else(
    payroll: Place, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buckram.serve.gateway.administration.namespace_pages._PAGE", 1)
    api, eve, root = payroll.api, payroll.eve, payroll.root
    for name in ("zz-hidden", "aa-hidden"):
        await client.namespaces.create(name)
    assert await pages(api, "/v2/namespaces", "namespaces", eve) == ["mine"]
    assert await pages(api, "/v2/namespaces?partly=true", "namespaces", eve) == ["mine"]
    async with client.create(custom_metadata={LEDGER_NAMESPACE: b"mine"}) as writer:
        pass
    async with client.create(custom_metadata={LEDGER_NAMESPACE: b"payroll"}):
        pass
    assert [one["ledger"] for one in await pages(api, "/v2/ledgers", "ledgers", eve)] == [writer.ledger_id]
    assert (await api.value("GET /v2/ledgers", **eve))["next"] is None
    listed = [one["ledger"] for one in await pages(api, "/v2/ledgers", "ledgers", root)]
    assert listed == sorted(listed)
    assert len(listed) > 2
    usage = await api.value("GET /v2/usage", **eve)
    assert set(usage["namespaces"]) <= {"mine"}
    for path in ("/v2/jobs", "/v2/audit", "/v2/tokens", "/v2/grants"):
        assert await api.code(f"GET {path}", **eve) == (403, "FORBIDDEN")


async def test_many_ledgers_of_others_are_gone_through_without_telling_their_ids(
    payroll: Place, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buckram.serve.gateway.streams.ledger_pages._PAGE", 3)
    monkeypatch.setattr("buckram.serve.gateway.streams.ledger_pages._LOOKED_AT", 9)
    monkeypatch.setattr("buckram.serve.gateway.streams.ledger_pages._ROUND", 4)
    own: list[int] = []
    for number in range(24):
        space = b"mine" if number % 5 else b"payroll"
        async with client.create(custom_metadata={LEDGER_NAMESPACE: space}) as writer:
            if space == b"mine":
                own.append(writer.ledger_id)
    found, after, rounds = [], "", 0
    while after is not None:
        page = await payroll.api.value(f"GET /v2/ledgers?{after}", **payroll.eve)
        found += [one["ledger"] for one in page["ledgers"]]
        assert page["next"] is None or page["next"] % 4 == 3
        after = None if page["next"] is None else f"after={page['next']}"
        rounds += 1
    assert found == own
    assert rounds > 2


async def test_streams_and_databases_are_listed_without_the_names_of_those_that_are_denied(payroll: Place) -> None:
    """Nor does a page go on behind the name of one."""
    api, eve, root, place = payroll.api, payroll.eve, payroll.root, payroll.place
    for name in ("aa-hidden", "bb-mine", "cc-hidden", "dd-mine", "zz-hidden"):
        await api.value(f"POST {SPACE}/streams", {"stream": name}, status=201, **root)
    await place.grant("token:eve", "payroll", "read")
    denied = ("aa-hidden", "cc-hidden", "zz-hidden", "q3-salaries")
    for name in denied:
        await deny(place, "token:eve", f"payroll/{name}", "read")
    seen = ["bb-mine", "books", "buckram.objects", "dd-mine"]
    assert await pages(api, f"{SPACE}/streams", "streams", eve) == seen
    listed = await pages(api, f"{SPACE}/streams?long=true", "streams", eve)
    assert [one["stream"] for one in listed] == [f"payroll/{name}" for name in seen]
    after: str | None = ""
    while after is not None:
        page = await api.value(f"GET {SPACE}/databases?limit=1{after and f'&after={after}'}", **eve)
        assert "hidden" not in json.dumps(page)
        assert "q3" not in json.dumps(page)
        after = page["next"]


async def test_a_fork_names_its_source_to_who_may_see_it(payroll: Place, client: Client) -> None:
    api, eve, root, place = payroll.api, payroll.eve, payroll.root, payroll.place
    space = client.namespace("payroll")
    await space.fork_stream("q3-salaries", "copy")
    source, shown = "payroll/q3-salaries", f"GET {SPACE}/streams/copy"
    await place.grant("token:eve", "payroll/copy", "read", "append")
    for head, body in (
        (shown, b""),
        (f"GET {SPACE}/streams/copy/segments", b""),
        (f"PATCH {SPACE}/streams/copy", {"properties": {"a": "b"}}),
    ):
        told = await api.ask(head, body, **eve)
        assert told.status == 200, (head, told.body)
        assert b"q3-salaries" not in told.body, head
    assert (await api.value(shown, **eve))["fork"] == {"source": None, "offset": 1}
    assert (await api.value(shown, **root))["fork"] == {"source": source, "offset": 1}
    await place.grant("token:eve", source, "append")
    assert (await api.value(shown, **eve))["fork"]["source"] == source


def test_a_fork_that_is_being_made_does_not_name_its_source() -> None:
    head = Head("u" * 32, 1, fork=Fork("payroll/q3-salaries", "v" * 32, 1, False))
    with pytest.raises(NoSuchStream) as error:
        check_usable("payroll/copy", head)
    assert "q3-salaries" not in str(error.value)


@pytest.mark.parametrize("location", ["file:///history/payroll/q3-salaries/u", "s3://b/payroll/copy/v", ""])
def test_files_of_history_that_have_the_name_of_another_stream(location: str) -> None:
    offloaded = Offloaded(location, "d") if location else None
    row = Segment(1, 7, 0, 1, offloaded=offloaded)
    ask: Any = SimpleNamespace(sees=lambda name: name == "payroll/copy")
    shown = segment_seen(ask, row)
    assert shown["tier"] == ("history" if location else "bookies")
    assert shown.get("location", "") == (location if "copy" in location else "")
    assert segment_seen(SimpleNamespace(sees=lambda name: True), row).get("location", "") == location  # type: ignore


async def test_directories_and_uploads_of_others_are_in_no_list_and_no_page(payroll: Place) -> None:
    api, eve, root, place = payroll.api, payroll.eve, payroll.root, payroll.place
    objects, uploads = f"{SPACE}/objects", f"{SPACE}/uploads"
    for name in ("a/hidden", "a/mine/x", "b/hidden", "c/hidden", "mine/y", "z"):
        await api.value(f"PUT {objects}/{name}", b"x", status=201, **root)
    hidden = (await api.value(f"POST {uploads}/hidden", status=201, **root))["upload"]
    mine = (await api.value(f"POST {uploads}/mine/u", status=201, **root))["upload"]
    await api.value(f"POST {uploads}/zz", status=201, **root)
    for granted in ("a/mine/*", "mine/*", "c/mine/*"):
        await place.grant("token:eve", f"payroll/objects/{granted}", "read", "append")
    assert await pages(api, f"{objects}?directory=", "directories", eve) == ["a", "mine"]
    assert await pages(api, f"{objects}?directory=a", "directories", eve) == ["a/mine"]
    assert [one["object"] for one in await pages(api, objects, "objects", eve)] == [
        "payroll/a/mine/x",
        "payroll/mine/y",
    ]
    told = [await api.ask(f"GET {objects}?directory={name}", **eve) for name in ("b", "c", "d", "b/d")]
    assert {one.status for one in told} == {404}
    assert len({re.sub(rb"payroll/[a-z/]+", b"~", one.body) for one in told}) == 1
    assert [one["upload"] for one in await pages(api, uploads, "uploads", eve)] == [mine]
    for number in (hidden, 999_999):
        ended = await api.value(f"DELETE {uploads}/mine/u?upload={number}", **eve)
        assert ended["aborted"] is False, number
    assert (await api.value(f"DELETE {uploads}/hidden?upload={hidden}", **root))["aborted"] is True


# -- the cluster ------------------------------------------------------------------------------------------


async def test_the_whole_cluster_is_for_who_may_see_it(payroll: Place, client: Client) -> None:
    api, eve, root = payroll.api, payroll.eve, payroll.root
    for path in ("/v2/history", "/v2/bookies/bookie-0", "/v2/bookies/none", "/v2/replication"):
        assert await api.code(f"GET {path}", **eve) == (403, "FORBIDDEN"), path
        assert (await api.ask(f"GET {path}", **root)).status in (200, 404)
    assert len((await api.value("GET /v2/bookies", **eve))["bookies"]) == 3
    assert len((await api.value("GET /v2/gateways", **eve))["gateways"]) == 1
    now = client.services.clocks.now()
    for stream in ("payroll/q3-salaries", "mine/own"):
        await leave_foreign_note(client.services.store, ForeignNote(stream, stream.replace("/", "-"), 7, round(now)))
    seen, whole = await api.value("GET /v2/status", **eve), await api.value("GET /v2/status", **root)
    assert set(seen) == {"healthy", "problems"}
    assert {"bookies", "queue", "free_bytes"} < set(whole)
    foreign = "foreign-ledger"
    assert [one["where"] for one in seen["problems"] if one["what"] == foreign] == ["mine/own 7"]
    assert len([one for one in whole["problems"] if one["what"] == foreign]) == 2
    assert seen["healthy"] is False
    assert "payroll" not in json.dumps(seen)
    assert "bookie-" not in json.dumps([one["where"] for one in seen["problems"]])


async def test_without_tokens_everybody_sees_the_cluster(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(client) as gateway:
        api = await Api.to(gateway.url)
        monkeypatch.setattr("buckram.serve.gateway.shared.authentication.is_local", lambda request: False)
        for path in ("/v2/history", "/v2/bookies/bookie-0", "/v2/replication"):
            await api.value(f"GET {path}")
        assert "queue" in await api.value("GET /v2/status")
        assert await api.code("GET /v2/audit") == (403, "FORBIDDEN")


def test_a_refusal_of_the_store_says_no_place_in_it() -> None:
    told = problem_of(AccessRefused("/ledgers/00/0000/L0007", "the access list does not allow it"))
    assert told.status == 403
    assert "/ledgers" not in told.message
    assert "the access list does not allow it" in told.message


def test_a_status_of_what_one_may_see_names_nothing_else() -> None:
    noted = (
        Noted("foreign-ledger", "payroll/q3 7", "why", {"stream": "payroll/q3"}),
        Noted("namespace-over-quota", "mine", "90 of 80", {"namespace": "mine", "quota": "streams"}),
        Noted("bookie-down", "bookie-1", "it is away", bookie="bookie-1"),
        Noted("bookie-down", "bookie-2", "it is away", bookie="bookie-2"),
    )
    facts = Facts(noted=noted)
    health = Health(facts, tuple(one for one in findings(facts) if one.state.name in {one.state for one in noted}))
    seen = status_seen(health, lambda name: name.partition("/")[0] == "mine")
    assert [(one["what"], one["where"]) for one in seen["problems"]] == [
        ("bookie-down", "the cluster"),
        ("namespace-over-quota", "mine"),
    ]
    assert seen["healthy"] is False
    assert "bookie-1" not in json.dumps(seen)
    assert "payroll" not in json.dumps(seen)
    others = Health(facts, tuple(one for one in health.findings if one.state.name == "foreign-ledger"))
    assert status_seen(others, lambda name: False) == {"healthy": True, "problems": []}
