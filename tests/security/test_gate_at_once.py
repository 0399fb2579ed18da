"""Single changes of a stream's data that are judged without a look at the store: which these are, and that they are
refused as all others are."""

from __future__ import annotations

import pytest
from tests.support.gate_kit import INTENT, Stream, World

from buckram.bookie.service.metadata.immediate_changes import AtOnce
from buckram.core.security.acl import Acl
from buckram.core.security.namespace_rules import ClusterKeys, Known, NamespaceRules
from buckram.core.security.principal import Principal
from buckram.core.security.write_limits import OF_STREAM
from buckram.core.streams.metadata.head import Page, encode_page
from buckram.errors import AccessRefused, KeyExists, LedgerIdRefused, NoSuchKey, VersionConflict
from buckram.metadata.tree.layout import Layout
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
