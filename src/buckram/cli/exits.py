"""Exit codes, and the one place where an exception becomes a line on standard error."""

from __future__ import annotations

import enum
import sqlite3

from buckram import errors
from buckram.errors.groups import ABSENT, CONFLICTS


class Exit(enum.IntEnum):
    """What a command's exit code means (docs/reference/commands.md)."""

    OK = 0
    """Done."""
    FAILED = 1
    """It failed, or a check found something that is not in order."""
    USAGE = 2
    """The command, an option or the configuration is wrong, or there is no cluster where it looked."""
    NOT_FOUND = 3
    """The ledger, entry, bookie, stream, namespace, cursor or key does not exist (any more)."""
    TRY_AGAIN = 4
    """It failed for now, for example because too few bookies answer: the same command may succeed later."""
    REFUSED = 5
    """The cluster does not allow it: fenced, closed, exists already, wrong password, wrong cookie, damaged store."""
    INTERNAL = 70
    """A bug in Buckram; BUCKRAM_DEBUG=1 shows where."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE = 141
    """Whoever read its output has gone."""


_NOT_FOUND = (*ABSENT, errors.OffsetOutOfRange, errors.OffsetTruncated)
_USAGE = (errors.InvalidArgument, errors.ConfigError, errors.ClusterNotInitialised)
_REFUSED = (
    *CONFLICTS,
    errors.Unauthorized,
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
    errors.DatabaseExists,
)


_OPTIONS = {
    'on_truncated="skip"': "--skip-truncated",
    "wait=True, --wait": "--wait",
    "takeover=True, --takeover": "--takeover",
    "if_absent": "--if-absent",
    "if_match": "--if-match",
    "expires_s": "--expires: seconds",
    "recursive=True": "--recursive",
}
"""What errors say to programs, and what they say at the command line."""


def exit_code_of(error: BaseException) -> Exit:
    """The exit code for an error that ends a command."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return Exit.PIPE
    if isinstance(error, _USAGE):
        return Exit.USAGE
    if isinstance(error, _NOT_FOUND):
        return Exit.NOT_FOUND
    if isinstance(error, _REFUSED):
        return Exit.REFUSED
    if isinstance(error, errors.InvariantViolation):
        return Exit.INTERNAL
    if isinstance(error, errors.BuckramError):
        return Exit.TRY_AGAIN if error.retryable else Exit.FAILED
    if isinstance(error, (OSError, TimeoutError, sqlite3.Error)):
        return Exit.FAILED
    return Exit.INTERNAL


def line_of(error: BaseException) -> str:
    """One line that a person can act on."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:  # without the number, which helps nobody
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = " ".join(message.split()) or type(error).__name__
    for python, option in _OPTIONS.items():
        text = text.replace(python, option)
    code = exit_code_of(error)
    if code is Exit.INTERRUPTED:
        return "interrupted"
    if code is Exit.INTERNAL:
        return f"internal error: {type(error).__name__}: {text} (BUCKRAM_DEBUG=1 shows where; please report it)"
    if isinstance(error, TimeoutError) and not isinstance(error, errors.BuckramError):
        return f"no answer in time: {text}"
    if code is Exit.TRY_AGAIN:
        return f"{text} (may succeed later)"
    return text
