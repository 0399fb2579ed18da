"""Grants: default is no, patterns, roles, and the form in which they are kept."""

from __future__ import annotations

import pytest

from buckram.core.security.acl import PERMISSIONS, Acl
from buckram.core.security.principal import ANONYMOUS, Principal

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


def test_a_grant_on_a_database_says_nothing_of_its_namespace() -> None:
    alice = Principal("token:alice")
    acl = Acl().granting("token:alice", "shop/main", ["read"]).granting("token:alice", "shop-*", ["append"])
    assert acl.allowed_on(alice, "shop/main") == {"read"}
    assert acl.allowed_on(alice, "shop/other") == frozenset()
    assert acl.allowed(alice, "shop") == frozenset()
    assert acl.allowed_on(alice, "shop-1/main") == {"append"}
