"""Batons come back; those of another key, or with a changed byte, are none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from buckram.serve.hrana.streams import decode_baton, encode_baton

NUMBERS = st.integers(0, 2**64 - 1)


@given(NUMBERS, NUMBERS)
def test_a_baton_comes_back(stream_id: int, sequence: int) -> None:
    assert decode_baton(b"key", encode_baton(b"key", stream_id, sequence)) == (stream_id, sequence)
    assert decode_baton(b"other", encode_baton(b"key", stream_id, sequence)) is None


@given(st.integers(0, 63), st.characters(codec="ascii"))
def test_a_changed_baton_is_none(at: int, character: str) -> None:
    baton = encode_baton(b"key", 7, 9)
    changed = baton[:at] + character + baton[at + 1 :]
    assert changed == baton or decode_baton(b"key", changed) is None


@given(st.text(max_size=80))
def test_any_text_is_taken(text: str) -> None:
    assert decode_baton(b"key", text) is None


def test_a_long_text_is_none() -> None:
    assert decode_baton(b"key", "A" * 1_000_000) is None
