"""Headers: those that several answers have, and one of a request, for what is looked up in each of them.

Starlette's own search is several times slower.
"""

from __future__ import annotations

from starlette.requests import Request

SAFE = {
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
"""Somebody's bytes under the address of the console: a browser keeps them as a file and shows and runs none of them."""
UNKEPT = {"Cache-Control": "no-store"}
"""An answer that nobody on the way keeps."""


def header(request: Request, name: bytes, default: str = "") -> str:
    """The first header of this name, which is in lower case; `default` if there is none."""
    for key, value in request.scope["headers"]:
        if key == name:
            found: str = value.decode("latin-1")
            return found
    return default


def has_header(request: Request, name: bytes) -> bool:
    """Whether there is a header of this name, which is in lower case."""
    return any(key == name for key, _ in request.scope["headers"])


__all__ = ["SAFE", "UNKEPT", "has_header", "header"]
