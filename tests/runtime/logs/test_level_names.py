"""Levels as people write them."""

from __future__ import annotations

import pytest

from buckram.errors import ConfigError
from buckram.runtime.logs.line_format import LONGEST_LEVELS, parse_levels


def test_one_level_for_all_and_others_for_rooms() -> None:
    assert parse_levels("info") == (20, {})
    assert parse_levels("Warning, buckram.net=DEBUG buckram.store=error") == (
        30,
        {"buckram.net": 10, "buckram.store": 40},
    )


def test_they_are_written_as_they_are_read() -> None:
    text = "error buckram.net=debug"
    assert str(parse_levels(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "loud", "buckram.net=debug", "info debug", "info =debug", "info a-b=debug", "info x="],
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\[log\] level = .*debug, info, warning, error"):
        parse_levels(text, "[log] level")


def test_a_long_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=str(LONGEST_LEVELS)):
        parse_levels("info " + " ".join(f"a{n}=debug" for n in range(100)))
