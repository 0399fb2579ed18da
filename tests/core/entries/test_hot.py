"""The compiled twins do what the Python does, with good bytes and with bad ones."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.core.entries import hot
from buckram.core.entries import python_twins as scan
from buckram.core.entries import python_twins as seal
from buckram.core.entries import python_twins as verify

built = pytest.mark.skipif(not hot.COMPILED, reason="the compiled twins were not built here")
KEY = b"k" * 20
IDS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 70_000), st.integers(2**63 - 700, 2**63 - 1))
PAYLOADS = st.one_of(
    st.tuples(st.integers(0, 40), st.integers(1, 600)).map(lambda shape: [bytes([shape[0]]) * shape[0]] * shape[1]),
    st.lists(st.binary(max_size=50), max_size=12),
)


def test_they_are_built_where_they_can_be() -> None:
    compiler = shutil.which("cc") and Path(sysconfig.get_paths()["include"], "Python.h").exists()
    known = platform.machine() in ("x86_64", "aarch64", "arm64")
    if not compiler or not known or os.environ.get("BUCKRAM_PURE"):
        pytest.skip("nothing is compiled here")
    assert hot.COMPILED, "`make setup` says why not: pip install -v -e ."


def outcome(work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except (ValueError, OverflowError) as error:
        return type(error)


@built
@given(st.integers(0, 2**32 - 1), IDS, IDS, IDS, IDS, PAYLOADS)
@example(0, 1, 2**63 - 1, 0, 0, [b"the last id of all"])
@example(0, 1, 2**63 - 1, 0, 0, [b"the last id of all", b"and one more"])
@example(0, 1, 0, 0, 2**63 - 3, [b"ab"])
@example(0, 1, 0, 0, 2**63 - 3, [b"abc"])
@settings(max_examples=soak(150, 75))
def test_sealed(header: int, ledger: int, first: int, lac: int, length: int, payloads: list[bytes]) -> None:
    arguments = (header, KEY, ledger, first, lac, length, payloads)
    assert outcome(hot.seal_adds, *arguments) == outcome(seal.seal_adds, *arguments)


@built
@given(
    ledger=st.integers(0, 2**63 - 1),
    first=st.one_of(st.integers(0, 70_000), st.integers(2**63 - 700, 2**63 - 601)),
    size=st.integers(0, 40),
    count=st.integers(1, 600),
    gap=st.integers(0, 30),
    at=st.integers(0, 9),
    spoilt=st.lists(st.tuples(st.integers(0, 599), st.integers(0, 75), st.integers(1, 255)), max_size=3),
    mutable=st.booleans(),
    wanted=st.booleans(),
)
@settings(max_examples=soak(150, 75))
def test_verified(
    ledger: int,
    first: int,
    size: int,
    count: int,
    gap: int,
    at: int,
    spoilt: list[tuple[int, int, int]],
    mutable: bool,
    wanted: bool,
) -> None:
    frames, _ = seal.seal_adds(0, KEY, ledger, first, first - 1, 0, [os.urandom(size) for _ in range(count)])
    step = 64 + size
    entries = [bytearray(frames[n * step + 28 : (n + 1) * step]) for n in range(count)]
    for number, place, change in spoilt:
        if number < count and place < len(entries[number]):
            entries[number][place] ^= change
    data: bytes | bytearray = bytes(at) + bytes(gap).join(entries)
    if mutable:
        data = bytearray(data)
    mine: list[bytes] | None = [] if wanted else None
    theirs: list[bytes] | None = [] if wanted else None
    arguments = (data, at, 36 + size + gap, count, size, ledger, first)
    good, said = hot.verify_entries(*arguments, mine), verify.verify_entries(*arguments, theirs)
    bad = [n for n, one in enumerate(entries) if one != frames[n * step + 28 : (n + 1) * step]]
    assert good == min(bad, default=count)
    assert said <= good  # blocks
    assert (said == good) or bad
    if mine is not None and theirs is not None:
        assert mine == [bytes(one[36:]) for one in entries[:good]]
        assert theirs == mine[:said]


@built
@pytest.mark.parametrize("change", [
    {"at": -1}, {"at": 2}, {"at": 2**62}, {"stride": 45}, {"stride": 47}, {"stride": 2**62}, {"count": 0},
    {"count": 4}, {"count": -1}, {"count": 2**62}, {"size": -1}, {"size": 2**62}, {"size": 11},
])  # fmt: skip
def test_what_does_not_fit_is_refused_by_both(change: dict[str, int]) -> None:
    shape = {"at": 1, "stride": 46, "count": 3, "size": 10, **change}
    for work in (hot.verify_entries, verify.verify_entries):
        with pytest.raises(ValueError, match="not within 139 bytes"):
            work(bytes(1 + 3 * 46), shape["at"], shape["stride"], shape["count"], shape["size"], 7, 0, [])


@built
@pytest.mark.parametrize("payloads", [("a",), (b"a", None), (bytearray(b"a"),)])
def test_payloads_are_bytes(payloads: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="not bytes"):
        hot.seal_adds(0, KEY, 1, 0, -1, 0, list(payloads))
    with pytest.raises(ValueError, match="a key of 3 bytes"):
        hot.seal_adds(0, b"key", 1, 0, -1, 0, [])


FRAMES = st.lists(st.tuples(
    st.sampled_from([3, 4]), st.integers(0, 3), st.integers(1, 5), st.integers(-1, 9), st.sampled_from([0, 0, 5, 40]),
    st.sampled_from([0x0201_0000, 0x0201_0000, 0x0201_0006, 0x0202_0000, 0x0101_0000]),
    st.sampled_from([KEY, b"l" * 20]),
), max_size=12)  # fmt: skip


@built
@given(
    FRAMES,
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=3),
    st.integers(0, 60),
    st.sampled_from([0, 1, 7, 74]),
    st.sampled_from([47, 48, 70, 1000]),
    st.sampled_from([0, 60, 150, 400, 65536]),
    st.sampled_from([1, 2, 100]),
)
@settings(max_examples=soak(300, 100))
def test_scanned(
    rows: list[Any], spoilt: list[tuple[int, int]], cut: int, offset: int, max_packet: int, max_run: int, most: int
) -> None:
    chunk = bytearray(b"".join(
        seal.seal_adds(header, key, ledger, first, lac, 0, [bytes(size)] * count)[0]
        for ledger, first, count, lac, size, header, key in rows
    ))  # fmt: skip
    for place, change in spoilt:
        if place < len(chunk):
            chunk[place] ^= change
    arguments = (bytes(chunk[: len(chunk) - cut]), offset, max_packet, max_run, most)
    assert hot.scan_add_frames(*arguments) == scan.scan_add_frames(*arguments)


@built
def test_ids_at_the_end_of_their_range_begin_a_run_and_end_it() -> None:
    chunk = seal.seal_adds(0x0201_0000, KEY, 1, 2**63 - 2, 0, 0, [b"a", b"b"])[0]
    chunk += seal.seal_adds(0x0201_0000, KEY, 1, -(2**63), 0, 0, [b"c"])[0]
    for work in (hot.scan_add_frames, scan.scan_add_frames):
        assert work(chunk, 0, 1000, 1000, 9) == (130, [(0, 130, 1, 2**63 - 2, 2, 0, 0, 65)])


@built
@given(st.binary(max_size=300))
def test_anything_scanned(chunk: bytes) -> None:
    assert hot.scan_add_frames(chunk, 0, 1000, 1000, 9) == scan.scan_add_frames(chunk, 0, 1000, 1000, 9)


@built
@pytest.mark.parametrize(("value", "compiled"), [("", True), ("0", True), ("1", False)])
def test_the_python_can_be_asked_for(value: str, compiled: bool) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "from buckram.core.entries import hot; print(hot.COMPILED, hot.seal_adds.__module__)"],
        env={**os.environ, "BUCKRAM_PURE": value}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.split()[0] == str(compiled)
