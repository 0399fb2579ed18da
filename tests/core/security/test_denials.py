"""Denials: they take from what grants give exactly what they cover, and from administrators nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.objects.rows import LOG
from buckram.core.security.acl import PERMISSIONS, Acl, Denial
from buckram.core.security.object_names import NameRange, without
from buckram.core.security.principal import Principal

ALICE = Principal("token:alice", ("ops",))
ROOT = Principal("token:alice", ("admin",), admin=True)
PATTERNS = st.sampled_from(
    ["shop", "shop*", "*", "s*", "system", "shop/orders", "shop/o*", "*/orders", "*/*", "shop/b*", f"shop/{LOG}",
     "shop/objects/*", "shop/objects/a", "shop/objects/a*", "shop/objects/a/*", "*/objects/a/b*", "system/audit"]
)  # fmt: skip
NAMES = st.sampled_from(
    ["shop", "shop2", "system", "system/audit", "shop/orders", "shop/old", "shop2/orders", f"shop/{LOG}",
     f"shop2/{LOG}", "shop/objects/a", "shop/objects/a/b", "shop/objects/a/bc", "shop/objects/b", "shop2/objects/a/b"]
)  # fmt: skip
RULES = st.tuples(
    st.sampled_from(["token:alice", "role:ops", "token:bob", "role:dev"]), PATTERNS,
    st.sets(st.sampled_from(PERMISSIONS), min_size=1),
)  # fmt: skip


def made(grants: list[tuple[str, str, set[str]]], denials: list[tuple[str, str, set[str]]]) -> Acl:
    acl = Acl()
    for rule in grants:
        acl = acl.granting(*rule)
    for rule in denials:
        acl = acl.denying(*rule)
    return acl


def covered(denial: Denial, name: str) -> bool:
    """By the words of the page: a namespace with all in it, streams, objects; and the log of objects for each of them,
    since bookies know no more than that."""
    namespace, _, stream = name.partition("/")
    return denial.covers(name) or (stream == LOG and denial.range_in(namespace) is not None)


@given(st.lists(RULES, max_size=4), st.lists(RULES, max_size=4), NAMES)
def test_what_is_allowed_is_what_is_granted_less_what_is_denied(
    grants: list[tuple[str, str, set[str]]], denials: list[tuple[str, str, set[str]]], name: str
) -> None:
    acl = made(grants, denials)
    taken = [one.permissions for one in acl.denials if one.names(ALICE) and covered(one, name)]
    denied = set(PERMISSIONS) if any("admin" in one for one in taken) else set().union(*taken)
    assert acl.allowed(ALICE, name) == Acl(acl.grants).allowed(ALICE, name) - denied
    assert acl.allowed(ROOT, name) == set(PERMISSIONS)
    for permission in PERMISSIONS:
        decision = acl.decision(ALICE, name, permission)
        assert decision.allowed == (permission in acl.allowed(ALICE, name))
        assert isinstance(decision.rule, Denial) == (permission in denied)
        assert (decision.rule is None) == (not decision.allowed and permission not in denied)


@given(st.lists(RULES, max_size=4), st.lists(RULES, max_size=4), st.sampled_from(["shop", "shop2"]))
def test_ranges_of_objects_have_the_names_that_are_allowed(
    grants: list[tuple[str, str, set[str]]], denials: list[tuple[str, str, set[str]]], namespace: str
) -> None:
    acl = made(grants, denials)
    for permission in ("read", "delete"):
        ranges = acl.objects(ALICE, namespace, permission)
        for name in ("a", "ab", "a/", "a/b", "a/bc", "a/c", "b"):
            allowed = permission in acl.allowed(ALICE, f"{namespace}/objects/{name}")
            assert [one.has(name) for one in ranges].count(True) == allowed, name
        if acl.objects(ALICE, namespace, permission):
            assert acl.sees(ALICE, namespace)


@given(st.lists(RULES, max_size=4), st.lists(RULES, max_size=4), NAMES)
def test_whoever_may_use_something_in_a_namespace_knows_that_it_is_there(
    grants: list[tuple[str, str, set[str]]], denials: list[tuple[str, str, set[str]]], name: str
) -> None:
    acl = made(grants, denials)
    namespace = name.partition("/")[0]
    if "/objects/" not in name and name != "system/audit":
        assert acl.allowed(ALICE, name) <= acl.within(ALICE, namespace)
        assert acl.concern(ALICE) or not acl.allowed(ALICE, name)
    assert acl.within(ALICE, namespace) <= Acl(acl.grants).within(ALICE, namespace)


SHORT = st.text("ab/", max_size=4)
RANGES = st.builds(NameRange, SHORT, st.booleans())


@given(st.lists(RANGES, max_size=3), st.lists(RANGES, max_size=3), SHORT, SHORT)
def test_a_range_with_holes_says_the_truth_of_names_and_prefixes(
    ranges: list[NameRange], holes: list[NameRange], prefix: str, rest: str
) -> None:
    name = prefix + rest
    for one in without(ranges, holes):
        assert one.has(name) == (one._replace(holes=()).has(name) and not any(hole.has(name) for hole in holes))
        if one.has_all(prefix):
            assert one.has(name)
        if one.has(name):
            assert one.reaches(prefix)
        part = one.from_prefix(prefix)
        assert one.has(name) == (part is not None and part.has(name))
        behind = one.behind(name)
        assert behind >= name
        if one.has(name + "c"):
            assert behind < name + "c"


def test_a_denial_of_one_stream_takes_that_one_and_of_a_namespace_everything() -> None:
    acl = Acl().granting("token:alice", "shop", ["admin"]).denying("role:ops", "shop/salaries", ["admin"])
    assert acl.allowed(ALICE, "shop/salaries") == frozenset()
    assert acl.allowed(ALICE, "shop/orders") == acl.allowed(ALICE, "shop") == set(PERMISSIONS)
    nothing = acl.denying("token:alice", "sh*", ["admin"])
    for name in ("shop", "shop/orders", "shop/objects/a", f"shop/{LOG}"):
        assert nothing.allowed(ALICE, name) == frozenset()
    assert not nothing.sees(ALICE, "shop")
    assert not nothing.concern(ALICE)
    assert nothing.undenying("token:alice", "sh*", PERMISSIONS) == acl


def test_denied_objects_are_holes_and_close_the_log_of_all_names_to_bookies() -> None:
    acl = Acl().granting("token:alice", "shop", ["read"]).denying("token:alice", "shop/objects/secret/*", ["read"])
    (found,) = acl.objects(ALICE, "shop", "read")
    assert found == NameRange("", holes=(NameRange("secret/"),))
    assert found.has("public")
    assert not found.has("secret/a")
    assert not found.has_all("s")
    assert acl.allowed(ALICE, f"shop/{LOG}") == frozenset()
    assert acl.allowed(ALICE, "shop/orders") == {"read"}


def test_a_record_with_denials_is_none_that_an_older_release_reads() -> None:
    granted = Acl().granting("token:alice", "shop", ["read"])
    assert json.loads(granted.encode())["version"] == 1
    denied = granted.denying("token:alice", "shop/x", ["read"])
    assert json.loads(denied.encode())["version"] == 2
    assert Acl.parse(denied.encode()) == denied
    assert json.loads(denied.undenying("token:alice", "shop/x", ["read"]).encode()) == json.loads(granted.encode())
    for broken in ('{"version": 2, "grants": []}', '{"version": 2, "grants": [], "denials": [{"who": "x"}]}'):
        with pytest.raises(ValueError, match="no grants"):
            Acl.parse(broken.encode())


def test_rules_of_one_namespace_are_taken_over_with_their_denials() -> None:
    source = Acl().granting("token:a", "shop", ["read"]).denying("token:b", "shop/x", ["read"])
    source = source.denying("token:c", "*", ["admin"])
    target = Acl().denying("token:d", "shop", ["read"]).denying("token:d", "other", ["read"])
    assert target.with_namespace("shop", source.of_namespace("shop")) == (
        Acl().granting("token:a", "shop", ["read"]).denying("token:b", "shop/x", ["read"])
        .denying("token:d", "other", ["read"])
    )  # fmt: skip
