"""Ledger ids as ZooKeeper nodes in Apache's four ways, LAYOUT texts, and the order of a walk. Vectors are Apache's."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.errors import ConfigError, InvalidArgument, MalformedRecord
from buckram.metadata.zookeeper.ledger_managers import (
    FLAT,
    HIERARCHICAL,
    LEGACY_HIERARCHICAL,
    LONG_HIERARCHICAL,
    MANAGERS,
    ApacheLayout,
    Folder,
    Manager,
    Walk,
    choose_manager,
    is_special,
    manager_of,
    own_root,
    parse_layout,
    serialise_layout,
    sort_children,
)
from buckram.types import MAX_LEDGER_ID

VECTORS = [
    (0, "L0000000000", "00/0000/L0000", "000/0000/0000/0000/L0000"),
    (5, "L0000000005", "00/0000/L0005", "000/0000/0000/0000/L0005"),
    (9999, "L0000009999", "00/0000/L9999", "000/0000/0000/0000/L9999"),
    (10000, "L0000010000", "00/0001/L0000", "000/0000/0000/0001/L0000"),
    (1234567890, "L1234567890", "12/3456/L7890", "000/0000/0012/3456/L7890"),
    (2147483646, "L2147483646", "21/4748/L3646", "000/0000/0021/4748/L3646"),
    (2147483647, "L2147483647", "000/0000/0021/4748/L3647", "000/0000/0021/4748/L3647"),
    (4294967296, "L4294967296", "000/0000/0042/9496/L7296", "000/0000/0042/9496/L7296"),
    (1234567890123456789, "L1234567890123456789", "123/4567/8901/2345/L6789", "123/4567/8901/2345/L6789"),
    (MAX_LEDGER_ID, "L9223372036854775807", "922/3372/0368/5477/L5807", "922/3372/0368/5477/L5807"),
]
ids = st.one_of(
    st.integers(0, 30_000), st.integers(2**31 - 20_000, 2**31 + 20_000), st.integers(2**32 - 9, 2**32 + 9),
    st.integers(0, MAX_LEDGER_ID),
)  # fmt: skip
managers = st.sampled_from(list(MANAGERS.values()))


def keeps(manager: Manager, ledger_id: int) -> bool:
    return manager is not LEGACY_HIERARCHICAL or ledger_id < 10**10


@pytest.mark.parametrize(("ledger_id", "flat", "hierarchical", "long"), VECTORS)
def test_vectors(ledger_id: int, flat: str, hierarchical: str, long: str) -> None:
    for manager, path in ((FLAT, flat), (HIERARCHICAL, hierarchical), (LONG_HIERARCHICAL, long)):
        assert manager.path(ledger_id) == path
        assert manager.ledger_id(path) == ledger_id


def test_the_legacy_manager_keeps_ten_digits() -> None:
    assert LEGACY_HIERARCHICAL.path(2147483647) == "21/4748/L3647"
    assert LEGACY_HIERARCHICAL.path(9999999999) == "99/9999/L9999"
    with pytest.raises(InvalidArgument, match=r"10000000000.*legacyhierarchical"):
        LEGACY_HIERARCHICAL.path(10**10)


@pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS)
def test_ids_that_no_manager_keeps(manager: Manager) -> None:
    for ledger_id in (-1, MAX_LEDGER_ID + 1):
        with pytest.raises(InvalidArgument, match=str(ledger_id)):
            manager.path(ledger_id)


@given(managers, ids)
def test_a_path_leads_back_to_its_id(manager: Manager, ledger_id: int) -> None:
    if keeps(manager, ledger_id):
        path = manager.path(ledger_id)
        assert manager.ledger_id(path) == ledger_id
        layout = ApacheLayout("/prod/ledgers", "/x", manager)
        assert layout.ledger(ledger_id) == f"/prod/ledgers/{path}"
        assert layout.ledger_of(f"/prod/ledgers/{path}") == ledger_id
        assert layout.ledger_of(f"/ledgers/{path}") is None


@given(managers, st.text("0123456789L/x", max_size=28))
def test_whatever_is_taken_for_a_ledger_is_one(manager: Manager, path: str) -> None:
    found = manager.ledger_id(path)
    assert found is None or manager.path(found) == path


@pytest.mark.parametrize(
    "path",
    ["00/0000/L000", "00/0000/L00000", "00/0000/0000", "00/0000/tmp", "00/0000/L00٣1", "0/00000/L0001", "00/00/L0001",
     "22/0000/L0000", "21/4748/L3647", "000/0000/0021/4748/L3646", "000/0000/0000/0000/L0001", "L0000000001",
     "00/0000/L-001", "00/0000/L+001", "00/0000/L0001/x", "", "L", "available", "922/3372/0368/5477/L5808"],
)  # fmt: skip
def test_strays_of_the_hierarchical_manager(path: str) -> None:
    assert HIERARCHICAL.ledger_id(path) is None


@pytest.mark.parametrize(
    "path", ["L000000001", "L00000000001", "L99999999999999999999", "ID-0000000001", "L", "l0000000001"]
)
def test_strays_of_the_flat_manager(path: str) -> None:
    assert FLAT.ledger_id(path) is None


def test_names_that_are_no_ledgers_of_the_root() -> None:
    for name in ("available", "cookies", "LAYOUT", "INSTANCEID", "underreplication", "idgen", "idgen-long", "ID-1"):
        assert is_special(name)
    found = sort_children(HIERARCHICAL, Folder(), ["LAYOUT", "mine", "00", "disableHealthCheck", "99", "idgen", "0000"])
    assert [folder.path for folder in found.folders] == ["00"]
    assert found.strays == ["mine", "disableHealthCheck", "99", "0000"]


def test_own_keys_of_clusters_inside_each_other_do_not_meet() -> None:
    roots = ["/ledgers", "/a", "/a/b", "/a%2Fb", "/a%252Fb", "/prod/ledgers"]
    owned = [own_root(root) for root in roots]
    assert owned[0] == "/buckram/ledgers"
    assert len(dict.fromkeys(owned)) == len(roots)
    assert all(own.count("/") == 2 for own in owned)


def tree(manager: Manager, ledger_ids: list[int], strays: list[str]) -> dict[str, list[str]]:
    """Children by path, as a server would have them."""
    nodes: dict[str, dict[str, None]] = {}
    for path in [*map(manager.path, ledger_ids), *strays]:
        parts = path.split("/")
        for depth, name in enumerate(parts):
            nodes.setdefault("/".join(parts[:depth]), {})[name] = None
    return {path: sorted(names) for path, names in nodes.items()}


def walked(manager: Manager, nodes: dict[str, list[str]], after: int, limit: int, width: int) -> tuple[list[int], int]:
    """All ids after `after`, in pages of `limit`; and how many folders were read."""
    walk, seen, read = Walk(manager, after), [], 0
    while True:
        while walk.ready() < limit and not walk.finished:
            folders = walk.next_folders(width)
            read += len(folders)
            walk.read([nodes.get(folder.path, []) for folder in folders])
        page = walk.take(limit)
        assert len(page) <= limit
        if not page:
            return seen, read
        seen += page


@given(managers, st.lists(ids, max_size=60), st.just(-1) | ids, st.integers(1, 20), st.integers(1, 9))
def test_a_walk_gives_all_in_order(manager: Manager, some: list[int], after: int, limit: int, width: int) -> None:
    kept = sorted({ledger_id for ledger_id in some if keeps(manager, ledger_id)})
    strays = ["available/b1", "idgen/ID-0000000001", "tmp", "00/tmp", "00/0000/L1", "00/0000/x/L0001", "000/0000/y"]
    nodes = tree(manager, kept, strays)
    assert walked(manager, nodes, after, limit, width)[0] == [known for known in kept if known > after]


def test_a_walk_skips_what_lies_before() -> None:
    kept = list(range(0, 2_000_000, 5000)) + [2**40 + n for n in range(50)]
    nodes = tree(HIERARCHICAL, kept, [])
    ordered, read = walked(HIERARCHICAL, nodes, 1_990_000, 1000, 4)
    assert ordered == [known for known in kept if known > 1_990_000]
    assert read <= 10


def test_strays_are_remembered_and_never_become_ids() -> None:
    rng = random.Random(5)
    kept = sorted(rng.sample(range(100_000), 500))
    strays = ["00/0000/tmp7", "00/00000", "00/0001/L12345", "7", "foreign"]
    nodes = tree(HIERARCHICAL, kept, strays)
    walk = Walk(HIERARCHICAL)
    while not walk.finished:
        walk.read([nodes[folder.path] for folder in walk.next_folders(3)])
    assert walk.take(1000) == kept
    assert sorted(walk.strays) == sorted(strays)


# LAYOUT

CLASS = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"


def test_the_layout_text() -> None:
    assert serialise_layout(HIERARCHICAL) == f"2\n{CLASS}:1".encode()
    for manager in MANAGERS.values():
        assert manager_of("/l/LAYOUT", parse_layout("/l/LAYOUT", serialise_layout(manager))) is manager


@pytest.mark.parametrize(
    ("text", "manager"),
    [
        (f"2\n{CLASS}:1\nmore\n", HIERARCHICAL),
        (f"2\ndlshade.{CLASS}:1", HIERARCHICAL),
        ("1\nflat:1", FLAT),
        ("1\nhierarchical:1", HIERARCHICAL),
    ],
)
def test_layouts_that_are_understood(text: str, manager: Manager) -> None:
    assert choose_manager("/ledgers/LAYOUT", text.encode(), None) is manager


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("3\nx:1", "layout format '3'"),
        ("0\nx:1", "layout format '0'"),
        ("", "layout format ''"),
        ("\xff", "layout format"),
        ("2", "second line is ''"),
        (f"2\n{CLASS}", "second line"),
        (f"2\n{CLASS}:1:1", "second line"),
        (f"2\n{CLASS}:one", "second line"),
        (f"2\n{CLASS}:٣", "second line"),
        (f"2\n{CLASS}:2", "version 2 of the hierarchical"),
        (f"2\nx{CLASS}:1", "is not one of"),
        ("2\norg.apache.bookkeeper.meta.MSLedgerManagerFactory:1", "is not one of"),
        ("2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0", "is not one of"),
        ("1\nlonghierarchical:1", "is not one of"),
    ],
)
def test_layouts_that_are_not(text: str, named: str) -> None:
    with pytest.raises(MalformedRecord, match=named) as error:
        choose_manager("/prod/ledgers/LAYOUT", text.encode("latin-1" if text == "\xff" else "utf-8"), None)
    assert str(error.value).startswith("/prod/ledgers/LAYOUT: ")
    assert "nothing was changed" in str(error.value)


def test_the_manager_that_is_asked_for_must_be_the_one_that_is_there() -> None:
    flat = serialise_layout(FLAT)
    assert choose_manager("/l/LAYOUT", flat, FLAT) is FLAT
    assert choose_manager("/l/LAYOUT", None, None) is HIERARCHICAL
    assert choose_manager("/l/LAYOUT", None, HIERARCHICAL) is HIERARCHICAL
    for record, wanted, says in ((flat, HIERARCHICAL, "says flat"), (None, LONG_HIERARCHICAL, "is missing")):
        with pytest.raises(ConfigError, match=f"/l/LAYOUT {says}.*asks for the {wanted.name}.*use zk://"):
            choose_manager("/l/LAYOUT", record, wanted)
