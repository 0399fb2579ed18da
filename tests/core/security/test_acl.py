"""Grants: default is no, patterns, roles, and the form in which they are kept."""

from __future__ import annotations

import pytest

from buckram.core.security.acl import PERMISSIONS, Acl, check_granted
from buckram.core.security.object_names import NameRange
from buckram.core.security.principal import ANONYMOUS, Principal
from buckram.errors import InvalidArgument

ALICE = Principal("token:alice", ("ops",))


def test_nothing_is_allowed_that_was_not_granted() -> None:
    assert Acl().allowed(ALICE, "shop") == frozenset()
    assert Acl().allowed(ANONYMOUS, "shop") == frozenset()
    assert Acl().allowed(Principal("token:root", admin=True), "shop") == set(PERMISSIONS)


def test_grants_by_name_by_role_and_by_pattern_add_up() -> None:
    acl = Acl().granting("token:alice", "shop", ["read"]).granting("role:ops", "shop*", ["append"])
    assert acl.allowed(ALICE, "shop") == {"read", "append"}
    assert acl.allowed(ALICE, "shop-2") == {"append"}
    assert acl.allowed(ALICE, "other") == frozenset()
    assert acl.allowed(Principal("cert:alice"), "shop") == frozenset()
    assert acl.granting("role:ops", "other", ["admin"]).allowed(ALICE, "other") == set(PERMISSIONS)


def test_what_is_revoked_is_gone_and_the_rest_stays() -> None:
    acl = Acl().granting("token:alice", "shop", ["read", "append"]).granting("token:bob", "shop", ["read"])
    less = acl.revoking("token:alice", "shop", ["append"])
    assert less.allowed(ALICE, "shop") == {"read"}
    assert less.revoking("token:alice", "shop", ["read"]).grants == Acl().granting("token:bob", "shop", ["read"]).grants


def test_it_is_kept_as_it_was() -> None:
    acl = Acl().granting("token:alice", "shop*", ["read"]).granting("role:x", "ü", ["admin", "create"])
    assert Acl.parse(acl.encode()) == acl


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"version": 2, "grants": []}', b'{"version": 1, "grants": [{"who": "x"}]}',
              b'{"version": 1, "grants": [{"who": "x", "namespaces": "y", "permissions": ["fly"]}]}']
)  # fmt: skip
def test_what_nobody_wrote_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Acl.parse(value)


def test_the_namespace_of_servers_is_granted_by_its_name_and_for_reading() -> None:
    everything = Acl().granting("token:alice", "*", PERMISSIONS)
    assert everything.allowed(ALICE, "shop") == set(PERMISSIONS)
    assert everything.allowed(ALICE, "system") == frozenset()
    assert everything.granting("token:alice", "system", PERMISSIONS).allowed(ALICE, "system") == {"read"}
    assert everything.allowed(Principal("token:root", admin=True), "system") == set(PERMISSIONS)


@pytest.mark.parametrize(
    ("pattern", "covered", "not_covered"),
    [
        ("shop", ["shop", "shop/orders", "shop/buckram.objects"], ["shop2", "shop2/orders", "a/shop"]),
        ("shop/orders", ["shop/orders"], ["shop", "shop/orders2", "other/orders"]),
        ("shop/o*", ["shop/orders", "shop/old"], ["shop", "shop/", "shop/bills", "shop2/orders"]),
        ("s*/orders", ["shop/orders", "s/orders"], ["shop/old", "s/a/orders", "x/orders"]),
        # A pattern of namespaces ends at the slash, and does not reach into the names behind it.
        ("s*s", ["ships", "ships/any"], ["shop/orders", "shop/s"]),
        ("*", ["shop", "shop/orders"], []),
        ("*/*", ["shop/orders", "shop/objects/a"], ["shop"]),
        # Objects have names of their own: a pattern of streams is for them only if it is for the log of their names.
        (
            "shop/objects/logs/*",
            ["shop/objects/logs/a", "shop/objects/logs/2026/b"],
            ["shop", "shop/objects", "shop/objects/log", "shop/logs", "shop/buckram.objects", "s/objects/logs/a"],
        ),
        ("shop/objects/a", ["shop/objects/a"], ["shop/objects/ab", "shop/objects/a/b", "shop/a"]),
        ("s*/objects/*", ["shop/objects/a", "s/objects/a/b"], ["shop/a", "x/objects/a"]),
        ("shop/o*", ["shop/objects"], ["shop/objects/a"]),
        ("shop/b*", ["shop/buckram.objects", "shop/objects/a"], ["shop/objects"]),
        ("shop", ["shop/objects/a"], []),
    ],
)
def test_a_grant_covers_a_namespace_with_all_in_it_or_streams(
    pattern: str, covered: list[str], not_covered: list[str]
) -> None:
    acl = Acl().granting("token:alice", pattern, ["read"])
    assert [name for name in covered if not acl.allowed(ALICE, name)] == []
    assert [name for name in not_covered if acl.allowed(ALICE, name)] == []


def test_who_may_use_one_stream_is_known_in_its_namespace_and_in_no_other() -> None:
    acl = Acl().granting("token:alice", "shop/orders", ["append"]).granting("role:ops", "s*/x", ["read"])
    assert acl.within(ALICE, "shop") == {"append", "read"}
    assert acl.within(ALICE, "s2") == {"read"}
    assert acl.within(ALICE, "other") == frozenset()
    assert acl.within(Principal("token:bob"), "shop") == frozenset()
    assert acl.within(ALICE, "system") == frozenset()
    assert acl.granting("token:alice", "system/audit", ["read"]).within(ALICE, "system") == {"read"}


def test_patterns_of_streams_do_not_reach_what_servers_write() -> None:
    acl = Acl().granting("token:alice", "*/*", PERMISSIONS).granting("token:alice", "sys*/audit", PERMISSIONS)
    assert acl.allowed(ALICE, "system/audit") == frozenset()
    assert acl.granting("token:alice", "system/audit", PERMISSIONS).allowed(ALICE, "system/audit") == {"read"}
    assert acl.granting("token:alice", "system", ["read"]).allowed(ALICE, "system/audit") == {"read"}


def test_a_grant_on_a_database_says_nothing_of_its_namespace() -> None:
    alice = Principal("token:alice")
    acl = Acl().granting("token:alice", "shop/main", ["read"]).granting("token:alice", "shop-*", ["append"])
    assert acl.allowed(alice, "shop/main") == {"read"}
    assert acl.allowed(alice, "shop/other") == frozenset()
    assert acl.allowed(alice, "shop") == frozenset()
    assert acl.allowed(alice, "shop-1/main") == {"append"}


def test_grants_on_objects_count_where_names_of_objects_are_known_and_nowhere_else() -> None:
    acl = Acl().granting("token:alice", "shop/objects/logs/*", ["read"]).granting("role:ops", "*/objects/x", ["read"])
    assert acl.objects(ALICE, "shop", "read") == (NameRange("logs/"), NameRange("x", exact=True))
    assert acl.objects(ALICE, "shop", "append") == ()
    assert acl.objects(ALICE, "system", "read") == ()
    assert acl.objects(Principal("token:bob"), "shop", "read") == ()
    assert acl.sees(ALICE, "shop")
    assert not acl.sees(Principal("token:bob"), "shop")
    assert acl.within(ALICE, "shop") == frozenset()
    assert not acl.concern(ALICE)
    whole = acl.granting("token:alice", "shop/buckram.objects", ["admin"])
    assert whole.objects(ALICE, "shop", "delete") == (NameRange(""),)
    assert whole.objects(ALICE, "shop2", "read") == (NameRange("x", exact=True),)
    assert Acl().granting("token:alice", "shop", ["read"]).objects(ALICE, "shop", "read") == (NameRange(""),)
    assert Acl().granting("token:alice", "shop/objects/a*", ["admin"]).objects(ALICE, "shop", "append")


@pytest.mark.parametrize("name", ["", "/x", "shop/", "shop/a/b", "shop/objects/", "shop/objects/a*b", "/objects/a"])
def test_what_no_grant_can_be_for_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        check_granted(name)
    for good in ("shop", "shop-*", "shop/orders", "shop/o*", "shop/objects/a", "shop/objects/logs/*", "*/objects/*"):
        assert check_granted(good) == good
