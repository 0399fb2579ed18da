"""Levels change while a process runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from buckram.errors import ConfigError
from buckram.runtime.logs.process_log import levels, set_levels


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    set_levels("warning")
    logging.getLogger().setLevel(before)


def test_rooms_have_their_own_and_lose_them_again() -> None:
    set_levels("error buckram.net=debug")
    assert logging.getLogger("buckram.net").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("buckram.store").isEnabledFor(logging.WARNING)
    assert str(levels()) == "error buckram.net=debug"
    set_levels("warning")
    assert not logging.getLogger("buckram.net").isEnabledFor(logging.INFO)
    assert str(levels()) == "warning"


def test_what_is_no_level_changes_nothing() -> None:
    set_levels("error")
    with pytest.raises(ConfigError):
        set_levels("info buckram.net=loud")
    assert str(levels()) == "error"
