"""An application: routes, errors as JSON, and who asks. Authentication plugs in here (`Authenticate`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from buckram.core.security.principal import Principal
from buckram.serve.http.problems import HttpProblem, json_answer
from buckram.serve.http.refusal_audit import note_refused
from buckram.serve.http.tokens import check_no_token

ANYBODY = Principal("anybody", admin=True)
Authenticate = Callable[[Request], Awaitable[Principal]]
"""Authenticates the sender of a request before its body is read. Raises HttpProblem 401 for an unknown one."""


async def anybody(request: Request) -> Principal:
    """Authenticate every client as one that may do everything, on servers without tokens, which listen on 127.0.0.1.

    Raises HttpProblem 401 for a request with a token, as no one could check it.
    """
    check_no_token(request)
    return ANYBODY


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """A Starlette application whose errors, also those of routing and of bugs, are answered in JSON."""
    return Starlette(
        routes=list(routes),
        exception_handlers={HttpProblem: _problem, HTTPException: _routing, Exception: _bug},
    )


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpProblem)
    note_refused(request, error)
    return json_answer(request, error.content(), error.status, error.headers)


async def _routing(request: Request, error: Exception) -> Response:
    """404 and 405 of the routes."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    message = (
        f"{request.method} {request.url.path}: {phrase.lower()}; see the documentation for the paths that are served"
    )
    code = phrase.upper().replace(" ", "_")
    return json_answer(request, {"message": message, "code": code}, error.status_code, error.headers)


async def _bug(request: Request, error: Exception) -> Response:
    """Starlette raises the error again afterwards, so that it is logged with its traceback."""
    message = f"an unexpected {type(error).__name__} in the server, which its log describes: please report it"
    return json_answer(request, {"message": message, "code": "INTERNAL_ERROR"}, 500)


__all__ = ["ANYBODY", "Authenticate", "Principal", "anybody", "application"]
