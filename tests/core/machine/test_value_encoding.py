"""Commands and results as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from buckram.core.machine.value_encoding import DEEPEST, decode_value, encode_value
from buckram.errors import InvalidArgument


@pytest.mark.parametrize("value", [b"", b"bytes", None, True, False, 0, -3, 10**30, 1.5, "ä", "", [1, {"a": None}], {}])
def test_bytes_and_json_come_back(value: Any) -> None:
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), [float("inf")], "\ud800", {(1, 2): 3}])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="a command must be bytes"):
        encode_value(value)


def test_values_that_are_nested_too_deep_are_refused() -> None:
    """Else it would depend on the stack of the caller whether a replica can read a command."""
    value: Any = 1
    for _ in range(DEEPEST):
        value = [value]
    assert decode_value(encode_value(value)) == value
    assert decode_value(encode_value([[]] * 1000)) == [[]] * 1000
    for deeper in ([value], {"a": value}, [1, (value,)]):
        with pytest.raises(InvalidArgument, match="nested more than 200 levels"):
            encode_value(deeper)
    value = []
    value.append(value)
    with pytest.raises(InvalidArgument):
        encode_value(value)
    assert encode_value([1]) == b"j[1]"


def test_json_of_other_programs_may_have_spaces() -> None:
    assert decode_value(b'j { "a" : [1, 2] } ') == {"a": [1, 2]}


@pytest.mark.parametrize("data", [b"", b"x", b"j", b"j1 2", b"j1x", b"j{", b"j\xff"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of its children
        decode_value(data)
