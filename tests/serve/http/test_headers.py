"""Looking up one header of a request."""

from __future__ import annotations

from starlette.requests import Request

from buckram.serve.http.problems import has_header, header


def request(*headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "headers": list(headers)})


def test_the_first_of_a_name_counts() -> None:
    asked = request((b"host", b"a"), (b"origin", b"http://x"), (b"origin", b"http://y"))
    assert header(asked, b"origin") == asked.headers["origin"] == "http://x"
    assert has_header(asked, b"origin")


def test_one_that_is_missing_is_told_from_one_that_is_empty() -> None:
    asked = request((b"idempotency-key", b""))
    assert has_header(asked, b"idempotency-key")
    assert header(asked, b"idempotency-key", "other") == ""
    assert not has_header(asked, b"host")
    assert header(asked, b"host", "other") == "other"


def test_bytes_that_are_not_ascii_are_latin_1() -> None:
    assert header(request((b"x", b"caf\xe9")), b"x") == "café"
