"""The pytest plugin: registered as an entry point, so it imports nothing of the package until a test asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from buckram.testing.threaded import ThreadedCluster


@pytest.fixture
def buckram_cluster() -> Iterator[ThreadedCluster]:
    """A cluster of three bookies on loopback, alive for one test; works in plain and in async tests.

    It runs on a loop of its own in a thread: `buckram_cluster.uri` is for `buckram.connect` or
    `buckram.sync.connect`; `kill(i)`, `pause(i)`, `resume(i)`, `restart(i)` return when done.
    """
    from buckram.testing.threaded import ThreadedCluster

    with ThreadedCluster(bookies=3) as running:
        yield running
