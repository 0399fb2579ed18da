"""The pytest plugin. It is an entry point of every pytest run, so it imports the package only when a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from buckram.testing.in_process import ThreadedCluster


@pytest.fixture
def buckram_cluster() -> Iterator[ThreadedCluster]:
    """A cluster of three bookies on loopback for one test, in plain and in async tests.

    It runs on an event loop of its own in a thread: `buckram_cluster.uri` is for `buckram.connect` or
    `buckram.sync.connect`; `kill(i)`, `pause(i)`, `resume(i)`, `restart(i)` return when done.
    """
    from buckram.testing.in_process import ThreadedCluster

    with ThreadedCluster(bookies=3) as running:
        yield running
