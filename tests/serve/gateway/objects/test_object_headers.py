"""Headers of requests for objects: what they mean, and which are refused."""

from __future__ import annotations

import pytest

from buckram.serve.gateway.objects.object_headers import (
    METADATA,
    Precondition,
    check_unchanged,
    condition_of,
    headers_of,
    metadata_of,
    range_of,
)
from buckram.serve.http.problems import HttpProblem
from buckram.state.objects.objects import ObjectInfo

INFO = ObjectInfo("a/b", 7, 100, "sha256:00", 1_700_000_000_000_000, None, {"author": "Zoë"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bytes=0-9", (0, 10)),
        ("bytes=90-", (90, 100)),
        ("bytes=90-5000", (90, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-5000", (0, 100)),
        ("bytes=99-99", (99, 100)),
        ("bytes=0-1,5-6", None),
        ("bytes=9-5", None),
        ("bytes=-", None),
        ("lines=0-9", None),
        ("bytes=x-9", None),
    ],
)
def test_a_range_is_understood_or_left_out(text: str, found: tuple[int, int] | None) -> None:
    assert range_of({"range": text}, INFO) == found
    assert range_of({"range": text, "if-range": '"7"'}, INFO) == found
    assert range_of({"range": text, "if-range": '"8"'}, INFO) is None


@pytest.mark.parametrize("text", ["bytes=100-", "bytes=500-600", "bytes=-0"])
def test_a_range_beyond_the_end_is_refused_with_the_size(text: str) -> None:
    with pytest.raises(HttpProblem) as refused:
        range_of({"range": text}, INFO)
    assert (refused.value.status, refused.value.headers["Content-Range"]) == (416, "bytes */100")
    assert "has 100 bytes" in refused.value.message


def test_conditions_of_changes() -> None:
    assert condition_of({}) == Precondition()
    assert condition_of({"if-match": '"7"'}) == Precondition(if_match=7)
    assert condition_of({"if-none-match": " * "}) == Precondition(if_absent=True)


@pytest.mark.parametrize(
    "headers",
    [
        {"if-match": "*"},
        {"if-match": "7"},
        {"if-match": 'W/"7"'},
        {"if-match": '"7", "8"'},
        {"if-none-match": '"7"'},
        {"if-none-match": "*", "if-match": '"7"'},
    ],
)
def test_conditions_that_cannot_be_held_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(HttpProblem) as refused:
        condition_of(headers)
    assert refused.value.status == 400


def test_conditions_of_reads() -> None:
    assert not check_unchanged({}, INFO)
    assert not check_unchanged({"if-match": '"6", "7"'}, INFO)
    assert not check_unchanged({"if-match": "*", "if-none-match": '"6"'}, INFO)
    assert check_unchanged({"if-none-match": '"6", W/"7"'}, INFO)
    assert check_unchanged({"if-none-match": "*"}, INFO)
    with pytest.raises(HttpProblem) as refused:
        check_unchanged({"if-match": '"6"'}, INFO)
    assert (refused.value.status, refused.value.code) == (412, "OBJECT_CHANGED")


def test_metadata_travels_as_ascii_and_comes_back() -> None:
    said = headers_of(INFO)
    assert said[METADATA].isascii()
    assert metadata_of({METADATA.lower(): said[METADATA]}) == INFO.metadata
    assert metadata_of({}) == {}
    assert metadata_of({METADATA.lower(): '{"author": "Zoë"}'.encode().decode("latin-1")}) == INFO.metadata
    assert said["ETag"] == '"7"'
    assert said["Last-Modified"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert "Buckram-Expires-Us" not in said


@pytest.mark.parametrize("text", ["", "x", "[]", '{"a": "\xeb"}', '{"a": 1}', '{"a": null}', "[" * 100_000])
def test_metadata_that_is_no_object_of_texts_is_refused(text: str) -> None:
    with pytest.raises(HttpProblem) as refused:
        metadata_of({METADATA.lower(): text})
    assert refused.value.status == 400
    assert "JSON object of texts" in refused.value.message
