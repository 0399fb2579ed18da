"""Single changes of a stream's data that are judged without a look at the store: which these are, and that they are
refused as all others are."""

from __future__ import annotations

import pytest
from tests.support.gate_kit import INTENT, Stream, World

from buckram.bookie.service.metadata.immediate_changes import AtOnce
from buckram.core.security.acl import Acl
from buckram.core.security.namespace_rules import ClusterKeys, Known, NamespaceRules
from buckram.core.security.principal import Principal
from buckram.core.security.write_limits import NAMESPACE, OF_STREAM
from buckram.core.streams.metadata.head import Page, encode_page
from buckram.errors import AccessRefused, KeyExists, LedgerIdRefused, NamespaceExists, NoSuchKey, VersionConflict
from buckram.metadata.tree.layout import Layout
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces
from buckram.types import CheckVersion, Create, Delete, KeyOp, SetValue

UID, THEIRS = "a" * 16, "b" * 16
DATA = "/buckram/streams/data"
MINE = f"{DATA}/{UID}"
GIVEN, FOREIGN = 7, 8


def intent(ledger: int) -> str:
    return f"{MINE}/intents/{ledger:019d}"


def at_once(*permissions: str, room: int = 10) -> AtOnce:
    layout = Layout()
    places = ClusterKeys(layout.root, layout.own, lambda key: layout.ledger_of(key) is not None)
    acl = Acl().granting("token:me", "mall", permissions)
    known = Known({UID: "mall/bait", THEIRS: "shop/orders"})
    rules = NamespaceRules(places, lambda: acl, Principal("token:me"), known)
    counted = {f"{MINE}/{folder}": room for folder in ("cursors", "intents", "pages", "exports", "shared", "writers")}
    return AtOnce(places, rules, lambda ledger: ledger == GIVEN, counted)


ALLOWED: dict[str, KeyOp] = {
    "a new cursor": Create(f"{MINE}/cursors/c", b"{}"),
    "a cursor": SetValue(f"{MINE}/cursors/c", b"{}", 0),
    "no cursor any more": Delete(f"{MINE}/cursors/c", 0),
    "the intent of an id of its own": Create(intent(GIVEN), INTENT),
    "no intent any more": Delete(intent(FOREIGN), 0),
    "progress": Create(f"{MINE}/progress", b"{}"),
}
NOT: dict[str, KeyOp] = {
    "a check": CheckVersion(f"{MINE}/cursors/c", 0),
    "a session key": Create(f"{MINE}/lease", b"me", True),
    "the uid's own key": Create(MINE, b""),
    "the uid's own key goes": Delete(MINE, 0),
    "the uid's own key, in another way": Delete(f"{MINE}/", 0),
    "a page": Create(f"{MINE}/pages/000000000000", encode_page(Page(0, ()))),
    "a page goes": Delete(f"{MINE}/pages/000000000000", 0),
    "an export": Create(f"{MINE}/exports/e", b"{}"),
    "a mark": Create(f"{MINE}/shared/{GIVEN:019d}", b""),
    "a mark goes": Delete(f"{MINE}/shared/{GIVEN:019d}", 0),
    "the intent of an id of others": Create(intent(FOREIGN), INTENT),
    "an intent that is none": Create(intent(GIVEN), b"{}"),
    "an intent with another name": Create(f"{MINE}/intents/7", INTENT),
    "too large": Create(f"{MINE}/cursors/c", bytes(OF_STREAM["cursors/"].most_bytes + 1)),
    "set too large": SetValue(f"{MINE}/cursors/c", bytes(OF_STREAM["cursors/"].most_bytes + 1), 0),
    "a kind that is not known": Create(f"{MINE}/something", b""),
    "too deep": Create(f"{MINE}/cursors/c/d", b""),
    "a long name": Create(f"{MINE}/cursors/{'c' * 300}", b""),
    "no key": Create(f"{MINE}/cursors/..", b""),
    "a character that no store keeps": Delete(f"{MINE}/cursors/\x7f", 0),
    "no version": Delete(f"{MINE}/cursors/c", -1),
    "another's cursor": Create(f"{DATA}/{THEIRS}/cursors/c", b"{}"),
    "another's cursor goes": Delete(f"{DATA}/{THEIRS}/cursors/c", 0),
    "a stream that nobody knows": Create(f"{DATA}/{'c' * 16}/cursors/c", b"{}"),
    "a head": Create("/buckram/streams/heads/mall/s", b"{}"),
    "a namespace": Create("/buckram/streams/namespaces/mall", b"{}"),
    "a namespace's link": Create("/buckram/streams/replication/mall", b"{}"),
    "nothing of a stream": Create("/buckram/streams/data-of-others", b"{}"),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_a_change_that_depends_on_nothing_is_allowed_at_once(what: str) -> None:
    assert at_once("read", "append").allows([ALLOWED[what]])
    assert not at_once("read", "append").allows([ALLOWED[what], Delete(f"{MINE}/cursors/d", 0)])
    assert not at_once("create", "delete").allows([ALLOWED[what]])


@pytest.mark.parametrize("what", NOT)
def test_any_other_change_is_judged_as_a_whole(what: str) -> None:
    assert not at_once("read", "append", "create", "delete").allows([NOT[what]])


def test_permissions_are_those_of_the_key() -> None:
    reader = at_once("read")
    assert [what for what, op in ALLOWED.items() if reader.allows([op])] == list(ALLOWED)[:3]


RECORDS = "/buckram/streams/namespaces"
SPACE, SAME = Create(f"{RECORDS}/mall", b"{}"), CheckVersion(f"{RECORDS}/mall2", 0)
NO_SPACE: dict[str, list[KeyOp]] = {
    "too large": [Create(SPACE.key, bytes(NAMESPACE.most_bytes + 1))],
    "of a session": [Create(SPACE.key, b"{}", True)],
    "below another": [Create(f"{SPACE.key}/x", b"{}")],
    "a name that is none": [Create(f"{RECORDS}/.hidden", b"{}")],
    "a long name": [Create(f"{RECORDS}/{'m' * 300}", b"{}")],
    "no key": [Create(f"{RECORDS}/mall\x7f", b"{}")],
    "another's": [Create(f"{RECORDS}/shop", b"{}")],
    "another's on a condition": [Create(f"{RECORDS}/shop", b"{}"), SAME],
    "on condition of another's": [SPACE, CheckVersion(f"{RECORDS}/shop", 0)],
    "on condition of nothing": [SPACE, CheckVersion(SAME.key, -1)],
    "on condition of another key": [SPACE, CheckVersion(f"{MINE}/cursors/c", 0)],
    "on two conditions": [SPACE, SAME, SAME],
    "two": [SPACE, Create(f"{RECORDS}/mall2", b"{}")],
    "one that goes": [Delete(SPACE.key, 0)],
    "one that changes": [SetValue(SPACE.key, b"{}", 0)],
    "one that changes along with it": [SPACE, SetValue(SAME.key, b"{}", 0)],
}


def of_malls() -> AtOnce:
    """What is judged at once for an administrator of all namespaces that begin with "mall"."""
    layout = Layout()
    places = ClusterKeys(layout.root, layout.own, lambda key: layout.ledger_of(key) is not None)
    acl = Acl().granting("token:me", "mall*", ("admin",))
    rules = NamespaceRules(places, lambda: acl, Principal("token:me"), Known({UID: "mall/bait"}))
    return AtOnce(places, rules, lambda ledger: False, {})


def test_a_new_namespace_is_allowed_at_once() -> None:
    assert of_malls().allows([SPACE])
    assert of_malls().allows([SPACE, SAME])
    assert not at_once("read", "append", "create", "delete").allows([SPACE])


@pytest.mark.parametrize("what", NO_SPACE)
def test_any_other_change_of_namespaces_is_judged_as_a_whole(what: str) -> None:
    assert not of_malls().allows(NO_SPACE[what])
    assert not of_malls().allows([])


def test_as_many_are_made_as_were_counted() -> None:
    judge = at_once("read", room=2)
    assert [judge.allows([Create(f"{MINE}/cursors/{number}", b"")]) for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert judge.allows([Delete(f"{MINE}/cursors/1", 0)])


async def stream(world: World) -> Stream:
    return await (await world.tenant("mallory")).stream("mall/bait")


async def test_cursors_and_intents_come_and_go(world: World) -> None:
    mine = await stream(world)
    keys, cursor = mine.tenant.keys, f"{mine.data}/cursors/c"
    for _ in range(2):
        assert await keys.create(cursor, b"{}") == 0
        with pytest.raises(KeyExists):
            await keys.create(cursor, b"{}")
        with pytest.raises(VersionConflict):
            await keys.delete(cursor, 3)
        assert await world.held([cursor]) == {cursor: (b"{}", 0)}
        await keys.delete(cursor, 0)
        with pytest.raises(NoSuchKey):
            await keys.delete(cursor, 0)
        ledger = await mine.tenant.store.allocate_ledger_id()
        name = mine.layout.intent(mine.uid, ledger)
        assert await keys.create(name, INTENT) == 0
        await keys.delete(name, 0)
        assert await world.held([cursor, name]) == {cursor: None, name: None}


@pytest.mark.parametrize("kind", ["cursors/c", "intents"])
async def test_what_is_made_and_deleted_is_judged_each_time(world: World, kind: str) -> None:
    """Of another tenant, and of one's own once the grant is gone."""
    hers = await (await world.tenant("alice")).stream("shop/orders")
    mallory = await world.tenant("mallory")
    key, second = f"{hers.data}/{kind}", f"{hers.data}/{kind}2"
    if kind == "intents":
        key = hers.layout.intent(hers.uid, await hers.tenant.store.allocate_ledger_id())
        second = hers.layout.intent(hers.uid, await mallory.store.allocate_ledger_id())
    await hers.tenant.keys.create(key, INTENT)
    with pytest.raises(AccessRefused):
        await mallory.keys.create(second, INTENT)
    with pytest.raises(AccessRefused):
        await mallory.keys.delete(key, 0)
    world.acl = Acl()
    world.grant("alice", "other", "read")
    with pytest.raises(AccessRefused):
        await hers.tenant.keys.create(second, INTENT)
    with pytest.raises(AccessRefused):
        await hers.tenant.keys.delete(key, 0)
    assert await world.held([key, second]) == {key: (INTENT, 0), second: None}


async def test_the_key_of_a_uid_stays_and_no_intent_is_of_an_id_of_others(world: World) -> None:
    mine = await stream(world)
    with pytest.raises(AccessRefused):
        await mine.tenant.keys.delete(mine.data, 0)
    own = mine.layout.intent(mine.uid, await mine.tenant.store.allocate_ledger_id())
    await mine.tenant.keys.create(own, INTENT)  # they are counted from now on
    other = await world.tenant("mallory")
    ledger = await other.store.allocate_ledger_id()
    name = mine.layout.intent(mine.uid, ledger)
    with pytest.raises(LedgerIdRefused):
        await mine.tenant.keys.create(name, INTENT)
    assert await world.held([mine.data, name]) == {mine.data: (b"", 0), name: None}


async def test_new_namespaces_are_those_of_the_grants_whatever_may_be_known_of_default(world: World) -> None:
    records = f"{world.direct.own}/streams/namespaces"
    default, made = f"{records}/default", [f"{records}/mall{number}" for number in range(4)]
    await world.direct.keys.create(default, b'{"format": 1, "policy": {"ensemble": "1/1/1"}, "fitted": true}')
    world.grant("mallory", "mall*", "admin")
    world.grant("mallory", "default", "read")
    keys = (await world.tenant("mallory")).keys
    namespaces = Namespaces(StreamStore((await world.tenant("mallory")).store))
    assert [(await namespaces.create(f"mall{number}")).fitted for number in range(2)] == [True, True]
    with pytest.raises(NamespaceExists):
        await namespaces.create("mall0")
    for ops in ([Create(f"{records}/other", b"{}")], [Create(f"{records}/other", b"{}"), CheckVersion(default, 0)]):
        with pytest.raises(AccessRefused):
            await keys.multi(ops)
    with pytest.raises(AccessRefused):
        await namespaces.create("other")
    with pytest.raises(VersionConflict):
        await keys.multi([Create(made[2], b"{}"), CheckVersion(default, 1)])
    world.acl = Acl()
    world.grant("mallory", "mall*", "admin")
    with pytest.raises(AccessRefused):
        await keys.multi([Create(made[2], b"{}"), CheckVersion(default, 0)])
    assert not (await namespaces.create("mall3")).fitted
    held = await world.held([*made, f"{records}/other"])
    assert [name for name, found in held.items() if found is not None] == [made[0], made[1], made[3]]
