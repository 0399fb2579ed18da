"""The command line's parts without a cluster: quorums, lines of input, percentiles, exit codes, tools."""

from __future__ import annotations

import asyncio
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from buckram import errors
from buckram.cli.bench.load import Tally
from buckram.cli.ledger.commands import ledger
from buckram.cli.shared.exits import Exit, exit_code_of, line_of
from buckram.cli.shared.options import custom_metadata, quorum
from buckram.cli.shared.stdin import CHUNK_BYTES, Lines
from buckram.errors import ConfigError, InvalidArgument

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "write", "ack", "expected"),
    [
        ("3", None, None, "3/3/2"), ("1", None, None, "1/1/1"), ("5/3/2", None, None, "5/3/2"),
        ("5", 3, None, "5/3/2"), ("5", 3, 3, "5/3/3"), ("4", None, 1, "4/4/1"),
    ],
)  # fmt: skip
def test_quorums(text: str, write: int | None, ack: int | None, expected: str) -> None:
    assert str(quorum(text, write, ack)) == expected


@pytest.mark.parametrize(
    ("text", "write", "ack"), [("3/3/2", 3, None), ("2", 3, None), ("3", 2, 3), ("0", None, None), ("3/2", None, None)]
)
def test_impossible_quorums_are_refused(text: str, write: int | None, ack: int | None) -> None:
    with pytest.raises(InvalidArgument):
        quorum(text, write, ack)


def test_custom_metadata_keeps_what_follows_the_first_equals_sign() -> None:
    assert custom_metadata(("a=b=c", "d=")) == {"a": b"b=c", "d": b""}
    with pytest.raises(InvalidArgument, match="'x'"):
        custom_metadata(("x",))
    with pytest.raises(InvalidArgument, match="'a' is there already"):
        custom_metadata(("a=1", "a=2"))


async def collect(data: bytes, piece: int) -> list[bytes]:
    read, write = os.pipe()
    with os.fdopen(read, "rb"):
        lines = Lines(1_000_000, read)

        def feed() -> None:
            with os.fdopen(write, "wb", buffering=0) as pipe:
                for begin in range(0, len(data), piece):
                    pipe.write(data[begin : begin + piece])

        feeding = asyncio.create_task(asyncio.to_thread(feed))
        found = [line async for batch in lines for line in batch]
        await feeding
        return found


@pytest.mark.parametrize("piece", [1, 7, 4096, CHUNK_BYTES])
async def test_lines_are_the_same_however_they_arrive(piece: int) -> None:
    rng = random.Random(5)
    wanted = [rng.randbytes(rng.randrange(40)).replace(b"\n", b"") for _ in range(200)] + [b"", b"", b"end"]
    assert await collect(b"\n".join(wanted) + b"\n", piece) == wanted
    assert await collect(b"\n".join(wanted), piece) == wanted


async def test_stop_ends_the_lines_and_drops_half_of_one() -> None:
    read, write = os.pipe()
    lines = Lines(1_000_000, read)
    os.write(write, b"whole\nhal")
    assert await anext(lines) == [b"whole"]
    lines.stop()
    with pytest.raises(StopAsyncIteration):
        await anext(lines)
    os.close(write)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), min_size=1, max_size=40))
def test_percentiles_are_those_of_the_single_entries(waits: list[tuple[float, int]]) -> None:
    tally = Tally()
    for latency, entries in waits:
        tally.add(latency, entries)
    entries = sorted(latency for latency, n in waits for _ in range(n))
    for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)):
        # The nearest-rank definition.
        expected = entries[max(0, math.ceil(share * len(entries)) - 1)]
        assert tally.percentiles()[name] == pytest.approx(expected * 1000, abs=0.001)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("x"), Exit.USAGE), (ConfigError("x"), Exit.USAGE), (errors.NoSuchLedger(1), Exit.NOT_FOUND),
        (errors.NoSuchBookie("b"), Exit.NOT_FOUND),
        (errors.LedgerFenced(1), Exit.REFUSED), (errors.Unauthorized("x"), Exit.REFUSED),
        (errors.NotEnoughBookies(3, 1), Exit.TRY_AGAIN), (errors.MetadataUnavailable("x"), Exit.TRY_AGAIN),
        (errors.WriteFailed(1, "x"), Exit.FAILED), (OSError(98, "in use"), Exit.FAILED),
        (ZeroDivisionError("x"), Exit.INTERNAL), (KeyboardInterrupt(), Exit.INTERRUPTED),
    ],
)  # fmt: skip
def test_exit_codes(error: BaseException, code: Exit) -> None:
    assert exit_code_of(error) is code
    assert "\n" not in line_of(error)


def test_a_line_about_a_file_names_it_and_leaves_out_the_number(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        (tmp_path / "missing").read_bytes()
    assert line_of(caught.value) == f"{tmp_path / 'missing'}: No such file or directory"


def test_an_empty_range_is_refused_before_anything_is_asked() -> None:
    done = CliRunner().invoke(ledger, ["read", "7", "--first", "3", "--last", "1"])
    assert isinstance(done.exception, InvalidArgument)
    assert "--first 3 --last 1" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-m", "bench", "--list"], 0), (["-m", "bench", "nonsense"], 2), (["scripts/soak.py", "nonsense"], 2),
    ],
)  # fmt: skip
def test_tools_know_their_cases(words: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code
    assert "one_ledger" in done.stdout + done.stderr or "kill_rounds" in done.stderr
