"""One round of the interop soak on every run; `make soak` runs fifty."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from tests.interop.rounds import Round, play, world

pytestmark = pytest.mark.share(8, "mixed clusters")

SEED = int(os.environ.get("BUCKRAM_ROUNDS_SEED", str(int(time.time()) % 1_000_000)))


@pytest.mark.slow
def test_every_acknowledged_entry_is_read_back_by_both(have_java: None, workdir: Path) -> None:
    print(f"replay: python -m tests.interop.rounds --rounds 1 --seed {SEED}")
    root = workdir / "rounds"
    root.mkdir()
    with world(root) as shared:
        stored = asyncio.run(play(Round.choose(SEED), shared))
    assert stored["java_acked"] > 0
    assert stored["our_acked"] > 0
