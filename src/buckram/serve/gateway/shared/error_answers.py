"""Errors of the cluster as answers of HTTP: a status, a code, and the error's text, which says what to do."""

from __future__ import annotations

import re

from buckram import errors
from buckram.core.security.object_names import OBJECTS
from buckram.errors import BuckramError
from buckram.errors.groups import ABSENT, CONFLICTS
from buckram.serve.http.problems import HttpProblem
from buckram.state.objects import refusals

_STATUSES: tuple[tuple[int, tuple[type[BuckramError], ...]], ...] = (
    (413, (errors.RecordTooLarge, errors.EntryTooLarge)),
    (410, (errors.OffsetTruncated,)),
    (503, (errors.OffsetNotReadable,)),
    (416, (errors.OffsetOutOfRange,)),
    (404, ABSENT),
    (429, (errors.QuotaExceeded, errors.TooManyUploads)),
    (403, (errors.AccessRefused, errors.Unauthorized, errors.EncryptionKeyMissing)),
    (409, (*CONFLICTS, errors.DatabaseExists, errors.OffsetMismatch, errors.WriterExists)),
    (400, (errors.InvalidArgument,)),
    (503, (errors.WriterLost, errors.WriterFailed, errors.WriteFailed, errors.HandleClosed)),
)
"""HTTP statuses by error of the cluster; the first row that matches decides."""
OUTCOME = "Buckram-Outcome"
"""Header of an error: `unknown` if the request may have been executed, or not."""
IN_DOUBT = (
    errors.WriterLost,
    errors.WriterFailed,
    errors.WriteFailed,
    errors.HandleClosed,
    errors.LedgerFenced,
    errors.QuotaExceeded,
)
"""Errors after which some or all of the appended records may be in the stream."""
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NUMBERS = ("earliest", "latest", "offset", "expected", "sequence", "limit")
"""Fields of errors that programs can use."""


def problem_of(error: BuckramError) -> HttpProblem:
    """Return the answer for an error that ended a request. An InvariantViolation is a bug: let it pass instead."""
    status = next((status for status, kinds in _STATUSES if isinstance(error, kinds)), 503 if error.retryable else 500)
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    details = {name: value for name in _NUMBERS if type(value := getattr(error, name, None)) is int}
    text = str(error)
    if isinstance(error, errors.AccessRefused):  # Where it is in the store is no business of who asks.
        text = f"the metadata store does not let this gateway do that: {error.found}"
    return HttpProblem(status, code_of(error), text, headers=headers, retryable=error.retryable, **details)


def absent(name: str, *, database: bool = False) -> HttpProblem:
    """The answer for a namespace, a stream, an object or a `database` that is not there, as grants call it."""
    namespace, _, within = name.partition("/")
    kind, is_object, rest = within.partition("/")
    if not within:
        return problem_of(errors.NoSuchNamespace(namespace))
    if is_object and kind == OBJECTS:
        full = f"{namespace}/{rest}"
        return problem_of(errors.NoSuchObject(full, refusals.absent(full)))
    return problem_of(errors.NoSuchDatabase(name) if database else errors.NoSuchStream(name))


def with_unknown_outcome(problem: HttpProblem) -> HttpProblem:
    """Mark a problem with the header that the request may have been executed, or not."""
    problem.headers[OUTCOME] = "unknown"
    return problem


def code_of(error: BuckramError) -> str:
    """NO_SUCH_STREAM of NoSuchStream."""
    return _WORD.sub("_", type(error).__name__).upper()


def bad_request(message: str) -> HttpProblem:
    """Return the problem of an invalid request; the text names the value, and what is needed."""
    return HttpProblem(400, "INVALID_ARGUMENT", message)
