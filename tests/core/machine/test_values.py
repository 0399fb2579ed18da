"""Commands and results as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from buckram.core.machine.values import decode_value, encode_value
from buckram.errors import InvalidArgument


@pytest.mark.parametrize("value", [b"", b"bytes", None, True, 3, 1.5, "ä", [1, {"a": None}], {}])
def test_bytes_and_json_come_back(value: Any) -> None:
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), "\ud800"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="a command must be bytes"):
        encode_value(value)


@pytest.mark.parametrize("data", [b"", b"x", b"j{", b"j\xff"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of its children
        decode_value(data)
