"""Headers that several answers share, and fast look-up of one header of a request.

Starlette's own search is several times slower.
"""

from __future__ import annotations

from starlette.requests import Request

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
    return any(key == name for key, _ in request.scope["headers"])


__all__ = ["SAFE", "UNKEPT", "has_header", "header"]
