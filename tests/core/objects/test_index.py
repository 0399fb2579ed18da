"""The objects' index: conditions, copies, renaming, parts, expiry, and which ledgers are still needed."""

from __future__ import annotations

from typing import Any

import pytest

from buckram.core.objects.index import UPLOAD_US, ObjectIndex
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
    """The index from its snapshot."""
    other = ObjectIndex()
    other.restore(b"".join(index.snapshot()))
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
    index.put("b", ledger=2)
    assert list(index.space.dead) == [1]
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
    index.now_us = UPLOAD_US + 1
    assert index.apply(["expire"]) == 1
    assert list(index.space.dead) == [1]


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
