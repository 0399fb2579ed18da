"""What holds for every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_found() -> Iterator[None]:
    """The simulator's command silences logging for its process; the next test shall not inherit that."""
    yield
    logging.disable(logging.NOTSET)
