"""Exit codes, and the one place where an exception becomes a line, or a JSON object, on standard error."""

from __future__ import annotations

import enum
import functools
import sys
from dataclasses import dataclass
from typing import Any

import click

from buckram.cli.shared.stdout import OutputLost


class Exit(enum.IntEnum):
    """Exit codes of the commands (docs/reference/commands.md)."""

    OK = 0
    """Done."""
    FAILED = 1
    """The command failed, or a check found a problem."""
    USAGE = 2
    """The command, an option or the configuration is wrong, or there is no cluster where it looked."""
    NOT_FOUND = 3
    """The ledger, entry, bookie, stream, namespace, cursor or key does not exist (any more)."""
    TRY_AGAIN = 4
    """The command failed for now, for example because too few bookies answer; it may succeed later."""
    REFUSED = 5
    """The cluster does not allow it: fenced, closed, exists already, wrong password, wrong cookie, damaged store."""
    INTERNAL = 70
    """A bug in Buckram; BUCKRAM_DEBUG=1 shows where."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE = 141
    """The reader of the output has closed its end of the pipe."""


_OPTIONS = {
    'on_truncated="skip"': "--skip-truncated",
    "wait=True, --wait": "--wait",
    "takeover=True, --takeover": "--takeover",
    "if_absent": "--if-absent",
    "if_match": "--if-match",
    "expires_s": "--expires: seconds",
    "recursive=True": "--recursive",
}
"""Arguments that messages of errors name, and the command-line options that replace them."""


@dataclass(frozen=True)
class Fault:
    """Error that ended a command, in the form in which it is reported."""

    kind: str
    """The name of the error's class, or Usage, Interrupted, Declined."""
    message: str
    """One line that a person can act on."""
    exit_code: Exit
    retryable: bool
    """True if the same command may succeed later."""
    do: str | None = None
    """A command that helps."""
    context: str | None = None
    """The context that named the cluster."""

    def as_json(self) -> dict[str, Any]:
        found = {"kind": self.kind, "message": self.message, "exit_code": int(self.exit_code)}
        found |= {"retryable": self.retryable}
        found |= {"do": self.do} if self.do else {}
        return found | ({"context": self.context} if self.context else {})


def fault_of(error: BaseException, context: str | None = None) -> Fault:
    """Return the report of an error that ends a command. `context` is the context that named the cluster, if any."""
    if isinstance(error, click.Abort):
        return Fault("Aborted", "stopped", Exit.INTERRUPTED, True)
    if isinstance(error, click.ClickException):
        return _usage(error)
    code = exit_code_of(error)
    kind = "Interrupted" if code is Exit.INTERRUPTED else type(error).__name__
    retryable = code is Exit.INTERRUPTED or bool(getattr(error, "retryable", code is Exit.TRY_AGAIN))
    message = line_of(error)
    if context is not None and _is_about_a_cluster(error):
        message += f" (context {context})"
    do = "BUCKRAM_DEBUG=1 shows where; please report it" if code is Exit.INTERNAL else None
    return Fault(kind, message, code, retryable, do, context)


def _usage(problem: click.ClickException) -> Fault:
    """click's own form takes four lines."""
    text = " ".join(problem.format_message().split()).rstrip(".")
    context = problem.ctx if isinstance(problem, click.UsageError) else None
    if context is None:
        kind = "Usage" if isinstance(problem, click.UsageError) else type(problem).__name__
        return Fault(kind, text, Exit(problem.exit_code), False)
    do = f"{context.command_path} --help"
    return Fault("Usage", f"{text}; see `{do}`", Exit.USAGE, False, do)


def exit_code_of(error: BaseException) -> Exit:
    """Return the exit code for an error that ends a command."""
    if isinstance(error, click.ClickException):
        return Exit(error.exit_code)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Exit.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return Exit.PIPE
    if isinstance(error, OutputLost):
        return Exit.FAILED
    from buckram import errors

    if isinstance(error, errors.OffsetNotReadable):
        return Exit.TRY_AGAIN  # it is there, unlike what its base says
    for code, kinds in _by_code().items():
        if isinstance(error, kinds):
            return code
    if isinstance(error.__cause__, errors.LoginRequired):
        return Exit.REFUSED  # a writer gave up because of it
    if isinstance(error, errors.BuckramError):
        return Exit.TRY_AGAIN if error.retryable else Exit.FAILED
    if _extra_of(error) is not None:
        return Exit.USAGE
    if (status := _http_status(error)) is not None:
        return _BY_STATUS.get(status, Exit.TRY_AGAIN if status >= 500 else Exit.FAILED)
    sqlite3 = sys.modules.get("sqlite3")
    if isinstance(error, (OSError, TimeoutError)) or (sqlite3 is not None and isinstance(error, sqlite3.Error)):
        return Exit.FAILED
    return Exit.INTERNAL


def _extra_of(error: BaseException) -> str | None:
    """Return the extra that brings the package whose absence this error is about."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    from buckram.extras import extra_of

    return extra_of(error.name or "")


_BY_STATUS = {
    400: Exit.USAGE,
    401: Exit.REFUSED,
    403: Exit.REFUSED,
    404: Exit.NOT_FOUND,
    409: Exit.REFUSED,
    410: Exit.NOT_FOUND,
    412: Exit.REFUSED,
    413: Exit.REFUSED,
    422: Exit.USAGE,
    429: Exit.TRY_AGAIN,
}


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status of a problem found by a serving part before it served; None for other errors."""
    problems = sys.modules.get("buckram.serve.http.problems")
    return error.status if problems is not None and isinstance(error, problems.HttpProblem) else None


@functools.cache
def _by_code() -> dict[Exit, tuple[type[BaseException], ...]]:
    """Return the error classes of each exit code; the first code that lists an error's class applies. They are imported
    only when an error has occurred, because they are many."""
    from buckram import errors
    from buckram.errors.groups import ABSENT, CONFLICTS

    return {
        Exit.USAGE: (
            errors.InvalidArgument,
            errors.ConfigError,
            errors.ClusterNotInitialised,
            errors.MissingCodec,
            errors.MissingEngine,
        ),
        Exit.NOT_FOUND: (*ABSENT, errors.OffsetOutOfRange, errors.OffsetTruncated),
        Exit.REFUSED: (
            *CONFLICTS,
            errors.Unauthorized,
            errors.LoginRequired,
            errors.EncryptionKeyMissing,
            errors.AccessRefused,
            errors.QuotaExceeded,
            errors.TooManyUploads,
            errors.WrongCookie,
            errors.CorruptStore,
            errors.EntryTooLarge,
            errors.ValueTooLarge,
            errors.WrongCluster,
            errors.WriterLost,
            errors.RecordTooLarge,
            errors.UnknownQuery,
            errors.BatchesLost,
            errors.DatabaseExists,
        ),
        Exit.INTERNAL: (errors.InvariantViolation,),
    }


def _is_about_a_cluster(error: BaseException) -> bool:
    """Return whether the message should name the cluster and the context that chose it."""
    from buckram import errors

    asked = (errors.ClusterNotInitialised, errors.ConfigError, errors.AccessRefused, errors.Unauthorized)
    return isinstance(error, (*asked, errors.WrongCluster, errors.MetadataUnavailable, errors.BookieUnavailable))


def line_of(error: BaseException) -> str:
    """Return one line that a person can act on."""
    code = exit_code_of(error)
    message = str(error)
    if code is Exit.INTERRUPTED:
        return f"interrupted: {message}" if message else "interrupted"
    from buckram import errors

    if (extra := _extra_of(error)) is not None:
        missing = getattr(error, "name", "")
        from buckram.extras import needs

        return needs(f"{missing} is not installed, and this", extra)
    if isinstance(error, OSError) and error.strerror:  # without the number, which helps nobody
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = " ".join(message.split()) or type(error).__name__
    for python, option in _OPTIONS.items():
        text = text.replace(python, option)
    if code is Exit.INTERNAL:
        return f"internal error: {type(error).__name__}: {text} (BUCKRAM_DEBUG=1 shows where; please report it)"
    if isinstance(error, TimeoutError) and not isinstance(error, errors.BuckramError):
        return f"no answer in time: {text}"
    if code is Exit.TRY_AGAIN:
        return f"{text} (may succeed later)"
    return text
