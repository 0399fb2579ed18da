"""Comparing two indexes of objects, and the steps that make one the other: for random trees, whatever is in the way."""

from __future__ import annotations

import random

import pytest

from buckram.core.objects.index import ObjectIndex
from buckram.core.objects.index_difference import MOST_CHANGES, difference, steps
from buckram.core.objects.rows import Extent
from buckram.errors import CommandRefused

NAMES = ("a", "b", "c", "a/x", "a/y", "a/x/1", "b/x", "b/x/1/2", "c/z", "d/d/d/d")


def filled(index: ObjectIndex, ledger: int) -> ObjectIndex:
    index.apply(["begin", ledger, "w"])
    return index


def put(index: ObjectIndex, name: str, size: int, ledger: int, expires_us: int = 0) -> None:
    extents = [[ledger, 0, 0, size, 0]] if size else []
    made = {"size": size, "digest": f"sha256:{size}", "metadata": [["n", name]], "expires_us": expires_us}
    index.apply(["put", name, {**made, "extents": extents, "sealed": []}, None])


def change(index: ObjectIndex, random_: random.Random) -> None:
    index.now_us += 10
    name, other = random_.choice(NAMES), random_.choice(NAMES)
    command = random_.choice(("put", "put", "put", "expiring", "delete", "rename", "copy", "mkdirs", "remove"))
    try:
        if command in ("put", "expiring"):
            put(index, name, random_.randrange(50), 1, 45 if command == "expiring" else 0)
        elif command in ("rename", "copy"):
            index.apply([command, name, other, None])
        elif command == "remove":
            index.apply(["remove", name, True])
        elif command == "mkdirs":
            index.apply(["mkdirs", name])
        else:
            index.apply([command, name, None])
    except CommandRefused:
        return


def bring(source: ObjectIndex, mirror: ObjectIndex, most: int | None = None) -> None:
    """Make the changes, or the first `most` steps of them, with bytes in ledgers of the mirror."""
    mirror.now_us = source.now_us
    found = difference(source.outline(), mirror.outline(), source.now_us)
    for step in list(steps(found))[:most]:
        puts = [
            (name, row._replace(extents=(Extent(2, 0, 0, row.size, 0),) if row.size else ())) for name, row in step.puts
        ]
        mirror.apply(["mirror", source.outline().version, step.encode(puts), []])


def shown(index: ObjectIndex) -> list[object]:
    return [(name, row[:-1]) for name, row in index.listed("", "", 1000)]


def kept(index: ObjectIndex) -> list[str]:
    return [path for path, (keeps, _) in index.outline().directories.items() if keeps]


def test_a_mirror_becomes_the_same_by_its_steps_and_again_after_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(60):
        monkeypatch.setattr("buckram.core.objects.index_difference.MOST_CHANGES", MOST_CHANGES if seed % 2 else 2)
        random_ = random.Random(seed)
        source, mirror = filled(ObjectIndex(), 1), filled(ObjectIndex(), 2)
        for _ in range(15):
            for _ in range(random_.randrange(1, 12)):
                change(source, random_)
            if random_.random() < 0.3:
                bring(source, mirror, 1)  # It was stopped after the first step.
            bring(source, mirror)
            assert shown(mirror) == shown(source), seed
            assert kept(mirror) == kept(source), seed
            assert difference(source.outline(), mirror.outline(), source.now_us).empty
            restored = ObjectIndex()
            restored.restore(b"".join(mirror.snapshot()))
            assert restored.digest() == mirror.digest()
            while mirror.apply(["purge"]):
                pass
        mirror.now_us = source.now_us = source.now_us + 1000
        for index in (source, mirror):
            while index.apply(["expire"]):
                pass
        assert shown(mirror) == shown(source), seed
        assert mirror.space.live_bytes == sum(row[1] for _, row in shown(mirror))  # type: ignore[index, misc]


def test_the_order_is_that_of_the_puts_and_a_rename_is_one_step() -> None:
    source, mirror = filled(ObjectIndex(), 1), filled(ObjectIndex(), 2)
    for number in range(MOST_CHANGES + 10):
        put(source, f"{(number * 7919) % 1000:04d}", 1, 1)
    found = list(steps(difference(source.outline(), mirror.outline(), 0)))
    versions = [[row.version for _, row in step.puts] for step in found]
    assert [len(one) for one in versions] == [MOST_CHANGES, 10]
    order = [version for one in versions for version in one]
    assert order == sorted(order)
    bring(source, mirror)
    source.apply(["rename", "0000", "renamed", None])
    (one,) = steps(difference(source.outline(), mirror.outline(), 0))
    assert ([name for name, _ in one.puts], list(one.gone)) == (["renamed"], ["0000"])


def test_versions_are_those_of_the_source_and_go_on_behind_them() -> None:
    source, mirror = filled(ObjectIndex(), 1), filled(ObjectIndex(), 2)
    for _ in range(5):
        put(source, "a", 3, 1)
    bring(source, mirror)
    assert mirror.look("a") is not None
    put(mirror, "b", 1, 2)
    assert [row.version for _, row in mirror.listed("", "", 9)] == [5, 6]


@pytest.mark.parametrize("both", [True, False])
def test_what_expired_in_the_source_is_gone_in_the_mirror_in_its_time(both: bool) -> None:
    source, mirror = filled(ObjectIndex(), 1), filled(ObjectIndex(), 2)
    source.now_us = 100
    put(source, "a/1", 3, 1, 50)
    bring(source, mirror)
    source.apply(["rename", "a", "b", None])
    found = difference(source.outline(), mirror.outline(), 100)
    (step,) = steps(found)
    ((name, row),) = found.puts
    moved = (name, row._replace(extents=(Extent(2, 0, 0, 3, 0),)))
    mirror.apply(["mirror", 1, {**step.encode([moved]), "gone": []}, []])
    assert [name for name, _ in mirror.listed("", "", 9)] == ["a/1", "b/1"]  # For a moment it has both.
    if not both:
        bring(source, mirror)
        assert [name for name, _ in mirror.listed("", "", 9)] == ["b/1"]
    mirror.now_us = 149
    assert mirror.apply(["expire"]) == 0
    mirror.now_us = 150
    assert mirror.apply(["expire"]) == (2 if both else 1)
    assert mirror.objects == 0
    assert difference(source.outline(), mirror.outline(), 150).empty
