"""The web console: static files of the package, which fetch all data from /v2.

Not here: logging in (`security_pages.py`). Nothing of it is loaded from elsewhere, and the policy that comes with each
file lets a browser load nothing from elsewhere either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from buckram.serve.http.origins import Origins
from buckram.serve.http.problems import HttpProblem

FOLDER = "/console"
_MEDIA = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class _Asset:
    """One file and its headers."""

    def __init__(self, name: str, content: bytes) -> None:
        self.content, self.media = content, _MEDIA[name[name.rindex(".") :]]
        self.tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'


class ConsolePages:
    """The console's files, looked up by name: no path of a request ever becomes a path of a file."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._assets = _read()

    def routes(self) -> list[BaseRoute]:
        """Return the routes for Starlette."""
        return [
            Route("/", self._page, methods=["GET"]),
            Route(FOLDER + "/{name}", self._file, methods=["GET"]),
        ]

    async def _page(self, request: Request) -> Response:
        self._origins.check(request)
        return self._answer(request, self._assets["index.html"])

    async def _file(self, request: Request) -> Response:
        self._origins.check(request)
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            raise HttpProblem(404, "NOT_FOUND", "the console has no such file: begin at /")
        return self._answer(request, asset)

    def _answer(self, request: Request, asset: _Asset) -> Response:
        headers = {**HEADERS, "ETag": asset.tag}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(b"", 304, headers)
        return Response(asset.content, 200, headers, asset.media)


def _read() -> Mapping[str, _Asset]:
    folder = files("buckram.serve.gateway") / "console"
    return {one.name: _Asset(one.name, one.read_bytes()) for one in folder.iterdir() if one.is_file()}
