"""Answers in JSON, errors as such answers, and headers. Each error names the value, the limit and what to do.

The keys `message` and `code` are those of an error in the Hrana protocol, so that its clients show them. Looking up one
header here is several times faster than Starlette's own search.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from buckram.serve.http.limits import option_of

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that terminals interpret and JSON does not escape; names that users chose may contain them."""


# -- errors -----------------------------------------------------------------------------------------------


class HttpProblem(Exception):
    """Ends a request with an error. `details` are further keys of the JSON answer, such as value and limit."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers, self.details = dict(headers or {}), details
        self.refuses = status in (401, 403)
        """True if the request is refused because of its sender, so that it counts in the audit trail."""

    def content(self) -> dict[str, Any]:
        return {"message": self.message, "code": self.code, **self.details}


P = TypeVar("P", bound=HttpProblem)


def refusing(problem: P) -> P:
    """Mark a problem as a refusal, although its text says that something does not exist."""
    problem.refuses = True
    return problem


def too_large(what: str, size: int | None, limit: int, *, status: int = 413, do: str) -> HttpProblem:
    """Return the problem of something larger than its limit; `size` None: it was not read to its end."""
    value = "more" if size is None else f"{size} bytes"
    return HttpProblem(
        status,
        "TOO_LARGE",
        f"{what} has {value}, the limit is {limit} bytes: {do}",
        value=size,
        limit=limit,
        do=do,
    )


def full(code: str, what: str, value: int, limit: int, *, option: str, do: str, retry_after_s: int) -> HttpProblem:
    """Return the problem of a server at a limit of how many it may have; `what` describes it, `option` is the limit."""
    return HttpProblem(
        503,
        code,
        f"{what}, the limit is {limit}: {do} ({option_of(option)})",
        headers={"Retry-After": str(retry_after_s)},
        value=value,
        limit=limit,
        do=do,
    )


# -- answers ----------------------------------------------------------------------------------------------


def json_answer(request: Request, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return the value as an answer in JSON."""
    text = _encode(value)
    if not text.isascii() or "\x7f" in text:
        text = _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return Response(text.encode(), status, dict(headers or {}), json_media(request))


def json_media(request: Request) -> str | None:
    """The Content-Type of an answer in JSON; none for Java's own HTTP client.

    Hadoop's client (every PySpark has it) fails over a class that its shading left out when a JSON answer has that
    header; it is known by a User-Agent that begins with "Java/".
    """
    return None if header(request, b"user-agent").startswith("Java/") else "application/json"


def redirect(location: str) -> Response:
    """307: the client sends the same request, with its body, to `location`, which may be this server again."""
    return Response(b"", 307, {"Location": location})


# -- headers ----------------------------------------------------------------------------------------------

SAFE = {
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
"""Headers for content from users under the address of the console: browsers download it, and neither show nor run it.
"""
UNKEPT = {"Cache-Control": "no-store"}
"""Headers of an answer that caches must not store."""


def header(request: Request, name: bytes, default: str = "") -> str:
    """The first header of this name, which is in lower case; `default` if there is none."""
    for key, value in request.scope["headers"]:
        if key == name:
            found: str = value.decode("latin-1")
            return found
    return default


def has_header(request: Request, name: bytes) -> bool:
    """Return whether the request has a header of this name, given in lower case."""
    return name in dict(request.scope["headers"])
