"""Which permission an operation on a key needs: a table, and default is no."""

from __future__ import annotations

import itertools

import pytest

from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.metadata_codec import serialise
from buckram.core.security.acl import PERMISSIONS, Acl
from buckram.core.security.key_access import KeyUse, OpenAccess
from buckram.core.security.namespace_rules import (
    ClusterKeys,
    Known,
    NamespaceRules,
    granted_name_of_ledger,
    namespace_of_ledger,
)
from buckram.core.security.principal import Principal

PLACES = ClusterKeys("/ledgers", "/buckram", lambda key: key.rpartition("/")[0] == "/ledgers/all")
ALICE = Principal("token:alice")
UID = "u" * 32
READ, LIST, CREATE, SET, DELETE = KeyUse
LEDGER = "/ledgers/all/0000000000000000007"
RECORDS = {
    name: serialise(created(1, 1, 1, ("b",), custom_metadata={"buckram.namespace": name.encode()}))
    for name in ("shop", "other")
}
DATA = f"/buckram/streams/data/{UID}"
# Key, use, what it is to hold, and the one permission on namespace `shop` that decides; None: administrators only.
TABLE: list[tuple[str, KeyUse, bytes | None, str | None]] = [
    ("/buckram/streams/namespaces/shop", READ, None, "read"),
    ("/buckram/streams/namespaces/shop", CREATE, b"", "admin"),
    ("/buckram/streams/namespaces/shop", SET, b"", "admin"),
    ("/buckram/streams/namespaces/shop", DELETE, None, "admin"),
    ("/buckram/streams/heads/shop", LIST, None, "read"),
    ("/buckram/streams/heads/shop/s", READ, None, "read"),
    ("/buckram/streams/heads/shop/s", CREATE, b"", "create"),
    ("/buckram/streams/heads/shop/s", SET, b"", "append"),
    ("/buckram/streams/heads/shop/s", DELETE, None, "delete"),
    (DATA, CREATE, b"", "create"),
    (DATA, DELETE, None, "append"),
    (f"{DATA}/lease", CREATE, b"", "append"),
    (f"{DATA}/pages/1", SET, b"", "append"),
    (f"{DATA}/intents", LIST, None, "read"),
    (f"{DATA}/cursors/c", CREATE, b"", "read"),
    (f"{DATA}/cursors/c", SET, b"", "read"),
    (LEDGER, READ, RECORDS["shop"], "read"),
    (LEDGER, CREATE, RECORDS["shop"], "append"),
    (LEDGER, SET, RECORDS["shop"], "append"),
    (LEDGER, DELETE, None, "delete"),
    (LEDGER, SET, RECORDS["other"], None),
    (LEDGER, CREATE, RECORDS["other"], None),
    (LEDGER, CREATE, b"nonsense", None),
    ("/buckram/security/acl", READ, None, None),
    ("/buckram/security/signing", LIST, None, None),
    ("/buckram/history", SET, b"", None),
    ("/ledgers/cookies/b", DELETE, None, None),
    ("/ledgers/available/b", CREATE, b"", None),
    ("/buckram/wishes/b", READ, None, None),
    ("/", LIST, None, None),
    ("/ledgers", LIST, None, None),
    ("/ledgers", SET, None, None),
    ("/buckram/streams/data", LIST, None, None),
    ("/buckram/streams/headstrong/shop", READ, None, None),
]


def rules(*permissions: str, namespace: str = "shop", known: Known | None = None) -> NamespaceRules:
    acl = Acl().granting(ALICE.name, namespace, permissions)
    return NamespaceRules(PLACES, lambda: acl, ALICE, known or Known({UID: "shop/s"}, {LEDGER: "shop"}))


@pytest.mark.parametrize(("key", "use", "value", "needed"), TABLE)
def test_each_operation_needs_its_permission(key: str, use: KeyUse, value: bytes | None, needed: str | None) -> None:
    for size in range(len(PERMISSIONS)):
        for given in itertools.combinations(PERMISSIONS, size):
            allowed = rules(*given).refusal(key, use, value) == ""
            assert allowed == (needed is not None and (needed in given or "admin" in given)), given
    assert rules(*PERMISSIONS, namespace="elsewhere").refusal(key, use, value) != ""


@pytest.mark.parametrize(
    ("use", "name", "given", "allowed"),
    [
        (CREATE, "shop/s", ("read", "append"), True),
        (CREATE, "shop/s", ("read",), False),
        (CREATE, "shop/s", ("append", "delete", "create"), False),
        (CREATE, "shop/t", ("read",), True),  # the source itself holds it, too
        (CREATE, "other/s", ("read", "append"), False),
        (READ, "shop/s", ("read",), True),
        (DELETE, "shop/s", ("append",), True),
        (DELETE, "shop/s", ("read", "delete", "create"), False),
    ],
)
def test_who_holds_a_ledger_for_a_fork_reads_it_and_writes_the_fork(
    use: KeyUse, name: str, given: tuple[str, ...], allowed: bool
) -> None:
    known = Known({UID: name}, {LEDGER: "shop/t"})
    acl = Acl().granting(ALICE.name, "shop", given).granting(ALICE.name, "other", given)
    judge = NamespaceRules(PLACES, lambda: acl, ALICE, known)
    assert (judge.refusal(f"{LEDGER}/{UID}", use, b"" if use is CREATE else None) == "") == allowed
    assert NamespaceRules(PLACES, lambda: acl, ALICE, Known()).refusal(f"{LEDGER}/{UID}", use) is None


OF_STREAM = "/ledgers/all/0000000000000000008"
STREAM_RECORDS = {
    name: serialise(
        created(1, 1, 1, ("b",), custom_metadata={"buckram.stream": name.encode(), "buckram.stream.uid": b"u"})
    )
    for name in ("shop/s", "shop/t")
}
# What a grant on stream `shop/s` decides: key, use, value and permission; None: it decides nothing of that.
STREAMS: list[tuple[str, KeyUse, bytes | None, str | None]] = [
    ("/buckram/streams/namespaces/shop", READ, None, "read"),
    ("/buckram/streams/namespaces/shop", SET, b"", None),
    ("/buckram/tenants/quotas/shop", READ, None, "read"),
    ("/buckram/streams/heads/shop", LIST, None, "read"),
    ("/buckram/streams/heads/shop", CREATE, b"", None),
    ("/buckram/streams/heads/shop/s", READ, None, "read"),
    ("/buckram/streams/heads/shop/s", CREATE, b"", "create"),
    ("/buckram/streams/heads/shop/s", SET, b"", "append"),
    ("/buckram/streams/heads/shop/s", DELETE, None, "delete"),
    ("/buckram/streams/heads/shop/t", READ, None, None),
    ("/buckram/streams/heads/shop/t", CREATE, b"", None),
    ("/buckram/streams/heads/shop/t", SET, b"", None),
    ("/buckram/streams/heads/shop/t", DELETE, None, None),
    (DATA, CREATE, b"", "create"),
    (f"{DATA}/lease", CREATE, b"", "append"),
    (f"{DATA}/pages/1", SET, b"", "append"),
    (f"{DATA}/intents", LIST, None, "read"),
    (f"{DATA}/cursors/c", SET, b"", "read"),
    ("/buckram/streams/data/" + "t" * 32 + "/lease", READ, None, None),
    ("/buckram/streams/data/" + "t" * 32 + "/cursors/c", SET, b"", None),
    (OF_STREAM, READ, STREAM_RECORDS["shop/s"], "read"),
    (OF_STREAM, READ, STREAM_RECORDS["shop/t"], None),
    (OF_STREAM, CREATE, STREAM_RECORDS["shop/s"], "append"),
    (OF_STREAM, CREATE, STREAM_RECORDS["shop/t"], None),
    (OF_STREAM, SET, STREAM_RECORDS["shop/s"], "append"),
    (OF_STREAM, SET, STREAM_RECORDS["shop/t"], None),
    (OF_STREAM, DELETE, None, "delete"),
    (LEDGER, READ, RECORDS["shop"], None),
    (LEDGER, CREATE, RECORDS["shop"], None),
    (LEDGER, DELETE, None, None),
]


@pytest.mark.parametrize(("key", "use", "value", "needed"), STREAMS)
@pytest.mark.parametrize("name", ["shop/s", "s*/s"])
def test_a_grant_on_a_stream_is_for_that_stream_only(
    key: str, use: KeyUse, value: bytes | None, needed: str | None, name: str
) -> None:
    known = Known({UID: "shop/s", "t" * 32: "shop/t"}, {LEDGER: "shop", OF_STREAM: "shop/s"})
    for size in range(len(PERMISSIONS)):
        for given in itertools.combinations(PERMISSIONS, size):
            allowed = rules(*given, namespace=name, known=known).refusal(key, use, value) == ""
            assert allowed == (needed is not None and (needed in given or "admin" in given)), given


@pytest.mark.parametrize("key", ["/ledgers/INSTANCEID", "/ledgers/available", "/ledgers/available/b", "/buckram/slow"])
def test_what_every_client_reads_needs_nothing(key: str) -> None:
    assert rules().refusal(key, READ) == ""
    assert rules(*PERMISSIONS, namespace="*").refusal(key, SET, b"") != ""


def test_what_is_not_known_is_neither_allowed_nor_refused() -> None:
    blank = NamespaceRules(PLACES, lambda: Acl().granting(ALICE.name, "*", PERMISSIONS), ALICE, Known())
    assert blank.refusal(f"{DATA}/lease", CREATE, b"") is None
    assert blank.refusal(LEDGER, DELETE) is None
    assert blank.refusal(LEDGER, SET, RECORDS["shop"]) is None
    blank.learn(LEDGER, RECORDS["shop"])
    assert blank.refusal(LEDGER, SET, RECORDS["shop"]) == ""
    assert "stays one" in str(blank.refusal(LEDGER, SET, RECORDS["other"]))


def test_ids_of_ledgers_are_given_to_whoever_was_granted_something() -> None:
    assert rules("read").refusal("/ledgers", CREATE) == ""
    nobody = NamespaceRules(PLACES, Acl, ALICE, Known())
    assert nobody.refusal("/ledgers", CREATE) != ""


@pytest.mark.parametrize("folder", ["behind", "degraded"])
def test_who_writes_may_say_what_lacks_copies_and_takes_nothing_back(folder: str) -> None:
    key = f"/buckram/healing/{folder}/x"
    nobody = NamespaceRules(PLACES, Acl, ALICE, Known())
    for use in (CREATE, SET, READ):
        assert rules("append").refusal(key, use) == ""
        assert nobody.refusal(key, use) != ""
    assert rules(*PERMISSIONS).refusal(key, DELETE) != ""
    assert rules(*PERMISSIONS).refusal("/buckram/healing/attendance", SET) != ""


def test_a_ledger_is_of_its_streams_namespace_or_says_it_or_is_of_the_default_one() -> None:
    stream = {"buckram.stream": b"shop/s", "buckram.stream.uid": b"u", "buckram.namespace": b"other"}
    assert namespace_of_ledger(stream) == "shop"
    assert granted_name_of_ledger(stream) == "shop/s"
    assert granted_name_of_ledger({"buckram.namespace": b"other"}) == "other"
    assert namespace_of_ledger({"buckram.namespace": b"other"}) == "other"
    assert namespace_of_ledger({}) == "default"


def test_without_authorisation_there_are_no_rules() -> None:
    assert OpenAccess().rules(ALICE) is None
