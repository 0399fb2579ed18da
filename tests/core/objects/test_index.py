"""The objects' index: conditions, copies, renaming, parts, expiry, and which ledgers are still needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from buckram.core.objects.index import PURGE_AT_ONCE, UPLOAD_US, ObjectIndex
from buckram.errors import CommandRefused, UnknownCommand


class Index(ObjectIndex):
    """An index with two ledgers."""

    def __init__(self) -> None:
        super().__init__()
        for ledger in (1, 2):
            self.apply(["begin", ledger, "writer"])

    def put(self, name: str, *, size: int = 10, ledger: int = 1, condition: Any = None, expires_us: int = 0) -> int:
        put = {
            "size": size,
            "digest": "sha256:00",
            "metadata": [],
            "expires_us": expires_us,
            "extents": [[ledger, 0, 0, size, 0]],
            "sealed": [],
        }
        version: int = self.apply(["put", name, put, condition])[0]
        return version

    def names(self) -> list[str]:
        return [name for name, _ in self.listed("", "", 1000)]


def refused(index: ObjectIndex, word: str, *command: Any) -> None:
    """The command is refused and changes nothing."""
    before = b"".join(index.snapshot())
    with pytest.raises(CommandRefused, match=f"^{word}: "):
        index.apply(list(command))
    assert b"".join(index.snapshot()) == before


def again(index: ObjectIndex) -> ObjectIndex:
    """The index from its snapshot, which is equal in all that a snapshot has."""
    other = ObjectIndex()
    data = b"".join(index.snapshot())
    other.restore(data)
    assert b"".join(other.snapshot()) == data
    return other


def test_conditions_decide_about_a_put() -> None:
    index = Index()
    first = index.put("a", condition="absent")
    with pytest.raises(CommandRefused, match="exists"):
        index.put("a", condition="absent")
    second = index.put("a", condition=first)
    with pytest.raises(CommandRefused, match="changed"):
        index.put("a", condition=first)
    with pytest.raises(CommandRefused, match="changed"):
        index.put("b", condition=second)
    refused(index, "changed", "delete", "a", first)
    index.apply(["delete", "a", second])
    refused(index, "absent", "delete", "a", None)
    assert index.names() == []


def test_a_directory_is_renamed_with_all_that_is_in_it() -> None:
    index = Index()
    for name in ("d/x", "d/e/y", "d.txt", "other/z"):
        index.put(name)
    index.apply(["rename", "d", "new/place", None])
    assert index.names() == ["d.txt", "new/place/e/y", "new/place/x", "other/z"]
    index.apply(["rename", "new/place", "d", None])
    assert index.names() == ["d.txt", "d/e/y", "d/x", "other/z"]
    index.apply(["rename", "d/e", "e", None])
    assert index.names() == ["d.txt", "d/x", "e/y", "other/z"]
    refused(index, "exists", "rename", "d", "other", None)
    refused(index, "blocked", "rename", "d", "d/below", None)
    refused(index, "blocked", "rename", "d.txt", "other", None)
    refused(index, "absent", "rename", "nothing", "n", None)
    index.apply(["rename", "d/x", "d/x2", "absent"])
    assert index.names() == ["d.txt", "d/x2", "e/y", "other/z"]
    assert again(index).digest() == index.digest()


def test_a_ledger_is_dead_when_it_is_sealed_and_no_object_needs_it() -> None:
    index = Index()
    index.put("a")
    index.apply(["copy", "a", "b", None])
    index.apply(["seal", 1, 10])
    index.apply(["delete", "a", None])
    assert list(index.space.dead) == []
    index.now_us = 77
    index.put("b", ledger=2)
    assert index.space.dead == again(index).space.dead == {1: 77}
    with pytest.raises(CommandRefused, match="lost"):
        index.put("c", ledger=1)
    index.apply(["gone", [1]])
    with pytest.raises(CommandRefused, match="lost"):
        index.put("c", ledger=1)
    assert index.space.live_bytes == 10


def test_an_object_expires_by_the_time_of_the_log() -> None:
    index = Index()
    index.now_us = 1000
    index.put("d/a", expires_us=500)
    index.put("d/b")
    index.apply(["rename", "d", "e", None])
    index = again(index)  # type: ignore[assignment]
    index.now_us = 1499
    assert not index.expiry_due
    assert index.look("e/a") is not None
    index.now_us = 1500
    assert index.look("e/a") is None
    assert index.expiry_due
    assert index.apply(["expire"]) == 1
    assert [name for name, _ in index.listed("", "", 10)] == ["e/b"]
    assert index.objects == 1


def test_parts_become_an_object_in_one_step() -> None:
    index = Index()
    upload = index.apply(["upload", "big"])
    for number in (1, 0):
        index.apply(["part", upload, number, 5, f"sha256:{number}", [[1, number, 0, 5, 0]], []])
    put = {"metadata": [["k", "v"]], "expires_us": 0}
    refused(index, "incomplete", "complete", upload, {**put, "parts": 3}, None)
    assert index.names() == []
    index = again(index)  # type: ignore[assignment]
    name, _, size, digest, *_ = index.apply(["complete", upload, {**put, "parts": 2}, None])
    assert (name, size, digest.startswith("parts:"), digest.endswith("-2")) == ("big", 10, True, True)
    row = index.look("big")
    assert row is not None
    assert [extent.entry for extent in row.extents] == [0, 1]
    refused(index, "absent", "complete", upload, {**put, "parts": 2}, None)
    assert index.space.live_bytes == 10


def test_an_upload_that_was_left_gives_its_space_back() -> None:
    index = Index()
    upload = index.apply(["upload", "big"])
    index.apply(["part", upload, 0, 5, "sha256:0", [[1, 0, 0, 5, 0]], [[1, 5]]])
    assert index.next_expiry_us == UPLOAD_US + 1  # So that whoever sweeps comes, also where no object expires.
    index.now_us = UPLOAD_US + 1
    assert index.apply(["expire"]) == 1
    assert list(index.space.dead) == [1]
    assert index.next_expiry_us is None


def test_the_next_to_expire_is_an_object_or_an_upload() -> None:
    index = Index()
    index.apply(["upload", "big"])
    index.put("later", expires_us=UPLOAD_US + 2)
    assert index.next_expiry_us == UPLOAD_US + 1
    index.put("sooner", expires_us=UPLOAD_US)
    assert index.next_expiry_us == UPLOAD_US


def test_no_upload_begins_where_as_many_are_open_as_may_be() -> None:
    index = Index()
    first, _ = index.apply(["upload", "a", 2]), index.apply(["upload", "b"])
    refused(index, "uploads", "upload", "c", 2)
    index = again(index)  # type: ignore[assignment]
    refused(index, "uploads", "upload", "c", 2)
    index.apply(["abort", first])
    assert index.apply(["upload", "c", 2]) > first


def test_bytes_that_were_moved_are_read_elsewhere() -> None:
    index = Index()
    version = index.put("a/b")
    index.apply(["seal", 1, 10])
    assert index.apply(["moved", "a/b", version, [[2, 7, 3, 10, 0]]]) is True
    assert list(index.space.dead) == [1]
    row = index.look("a/b")
    assert row is not None
    assert (row.version, row.extents[0].ledger) == (version, 2)
    assert index.apply(["moved", "a/b", version + 1, [[2, 7, 3, 10, 0]]]) is False
    assert index.apply(["moved", "nothing", 1, [[2, 7, 3, 10, 0]]]) is False
    assert again(index).digest() == index.digest()


@pytest.mark.parametrize("command", [None, [], ["put"], ["put", "a", {}, None], ["fly"], {"op": "put"}, ["gone", 3]])
def test_unknown_commands_are_not_skipped(command: Any) -> None:
    with pytest.raises(UnknownCommand):
        ObjectIndex().apply(command)


def children(index: ObjectIndex, path: str = "", after: str = "", limit: int = 100) -> list[str] | None:
    found = index.children(path, after, limit)
    return None if found is None else [name for name, _ in found]


def test_directories_that_were_made_stay_when_they_are_empty() -> None:
    index = Index()
    index.now_us = 7
    assert index.apply(["mkdirs", "a/b"]) is True
    assert index.apply(["mkdirs", "a/b"]) is False
    index.put("a/b/x")
    index.put("c/y")
    for name in ("a/b/x", "c/y"):
        index.apply(["delete", name, None])
    assert children(index) == ["a"]
    assert children(index, "a") == ["a/b"]
    assert children(index, "a/b") == []
    assert children(index, "c") is None
    refused(index, "blocked", "put", "a/b", {"extents": [], "metadata": []}, None)
    other = again(index)
    assert (children(other), children(other, "a/b")) == (["a"], [])
    assert other.root.nodes["a"].time_us == 7
    index.apply(["rename", "a/b", "d/e/f", None])
    assert (children(index), children(index, "a"), children(index, "d/e")) == (["a", "d"], [], ["d/e/f"])
    index.put("z")
    refused(index, "blocked", "mkdirs", "z/w")


def test_children_are_listed_in_order_and_pages_go_on() -> None:
    index = Index()
    for name in ("b/x", "b-1", "b.2", "a", "c/d/e"):
        index.put(name)
    assert children(index) == ["a", "b-1", "b.2", "b", "c"]
    keys = ["", "a", "b-1", "b.2", "b/", "c/"]
    assert [children(index, after=key, limit=1) for key in keys] == [["a"], ["b-1"], ["b.2"], ["b"], ["c"], []]


def test_a_directory_goes_in_one_step_and_its_space_bit_by_bit() -> None:
    index = Index()
    for number in range(PURGE_AT_ONCE + 10):
        index.put(f"d/{number:05}/x" if number % 2 else f"d/{number:05}", expires_us=5 if number == 3 else 0)
    index.put("e")
    index.apply(["seal", 1, 10])
    refused(index, "filled", "remove", "d", False)
    index.apply(["remove", "d", True])
    assert index.names() == ["e"]
    refused(index, "absent", "remove", "d", True)
    index.put("d/again", ledger=2)
    other = again(index)
    assert index.apply(["purge"]) is True
    assert other.apply(["purge"]) is True
    assert other.digest() == index.digest()
    index = again(index)  # type: ignore[assignment]
    for one in (index, other):
        one.now_us = 10
        one.apply(["expire"])
        while one.apply(["purge"]):
            pass
        assert (one.objects, one.trash, one.space.live_bytes) == (2, [], 20)
    assert other.digest() == index.digest()
    index.apply(["remove", "e", False])
    assert list(index.space.dead) == [1]


def test_an_empty_directory_and_an_object_are_removed() -> None:
    index = Index()
    index.apply(["mkdirs", "a/b"])
    index.put("a/c")
    index.apply(["remove", "a/b", False])
    index.apply(["remove", "a/c", False])
    assert children(index, "a") == []
    assert index.objects == 0


def test_a_namespace_can_be_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.core.objects.index.MAX_OBJECTS", 1)
    index = Index()
    index.put("a")
    index.put("a")
    with pytest.raises(CommandRefused, match=r"^full: "):
        index.put("b")


DAY = 86_400_000_000


def _in_doubt(index: Index, name: str, *, at: int, latest: int, age: int) -> int:
    index.now_us = at
    put = {"size": 1, "digest": "d", "metadata": [], "extents": [[1, 0, 0, 1, 0]], "sealed": []}
    version: int = index.apply(["put", name, {**put, "expires_us": age, "latest_us": latest}, None])[0]
    return version


@pytest.mark.parametrize(("settled_at", "ends"), [(100 * DAY + 8, 130 * DAY), (140 * DAY + 60, 170 * DAY)])
def test_what_is_put_in_doubt_ends_by_the_later_time_until_that_is_settled(settled_at: int, ends: int) -> None:
    """The time is day 100 or day 140, and then it is certain which of them it was."""
    index = Index()
    _in_doubt(index, "a", at=100 * DAY, latest=140 * DAY, age=30 * DAY)
    upload = index.apply(["upload", "b", 5, 140 * DAY])
    index.apply(["copy", "a", "c", None])
    index.apply(["rename", "a", "d", None])
    again = Index()
    again.restore(b"".join(index.snapshot()))
    for one in (index, again):
        assert {one.look(name).expires_us for name in ("c", "d")} == {170 * DAY}  # type: ignore[union-attr]
        one.now_us = settled_at
        assert one.apply(["settle"]) == 3
        assert {one.look(name).expires_us for name in ("c", "d")} == {ends}  # type: ignore[union-attr]
        assert one.uploads[upload].time_us == ends - 30 * DAY
        assert one.doubtful == {}
        one.now_us = ends
        assert one.apply(["expire"]) == 3  # and the upload of a week
        assert one.names() == []
    assert index.digest() == again.digest()


def test_what_is_gone_is_not_in_doubt() -> None:
    index = Index()
    _in_doubt(index, "a", at=5, latest=1000, age=10)
    upload = index.apply(["upload", "b", 5, 1000])
    index.apply(["delete", "a", None])
    index.apply(["abort", upload])
    assert index.doubtful == {}


def test_when_the_log_goes_back_what_is_dated_later_is_of_then() -> None:
    index = Index()
    index.now_us = 100 * DAY
    index.put("before", expires_us=30 * DAY)
    index.now_us = 140 * DAY  # by a wrong clock
    index.put("ahead", expires_us=30 * DAY)
    upload = index.apply(["upload", "b", 5])
    index.apply(["seal", 2, 0])
    assert index.space.dead == {2: 140 * DAY}
    index.now_us = 101 * DAY
    index.set_back(101 * DAY)
    assert index.look("before").expires_us == 130 * DAY  # type: ignore[union-attr]
    assert index.look("ahead").expires_us == 131 * DAY  # type: ignore[union-attr]
    assert (index.uploads[upload].time_us, index.space.dead) == (101 * DAY, {2: 101 * DAY})
    again = Index()
    again.restore(b"".join(index.snapshot()))
    assert again.digest() == index.digest()
    for one in (index, again):
        one.now_us = 131 * DAY
        assert one.apply(["expire"]) == 3
        assert one.names() == []


def test_a_number_in_the_log_or_in_a_snapshot_makes_nothing_of_its_size() -> None:
    """Whoever may append to the log writes any number, and gateways that read it serve others as well."""
    index = Index()
    upload = index.apply(["upload", "x"])
    index.apply(["part", upload, 0, 1, "d", [[1, 0, 0, 1, 0]], []])
    put = {"metadata": [], "expires_us": 0}
    for parts in (10**12, 2, 0, -1):
        refused(index, "incomplete", "complete", upload, {**put, "parts": parts}, None)
    index.apply(["complete", upload, {**put, "parts": 1}, None])
    assert index.names() == ["x"]
    lines = b"".join(index.snapshot()).splitlines(keepends=True)
    head = json.loads(lines[0])
    for trees in (1000, 1, -1):
        forged = json.dumps([head[0], trees, *head[2:]]).encode() + b"\n" + b"".join(lines[1:])
        with pytest.raises(ValueError, match="trees"):
            ObjectIndex().restore(forged)
