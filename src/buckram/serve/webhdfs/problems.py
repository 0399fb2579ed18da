"""Errors as Hadoop's client understands them: a RemoteException with the name of a Java class, and 403 or 404.

The client raises the class that is named. A StandbyException means: ask another gateway, or this one again; a
RetriableException: ask again.
"""

from __future__ import annotations

from typing import Any

from buckram import errors
from buckram.errors import BuckramError
from buckram.serve.http.problems import HttpProblem
from buckram.serve.webhdfs.protocol_names import (
    ABSENT,
    ACCESS,
    EXISTS,
    FILLED,
    ILLEGAL,
    INPUT_OUTPUT,
    INVALID_PATH,
    INVALID_TOKEN,
    NO_DIRECTORY,
    QUOTA,
    RETRY,
    STANDBY,
    UNSUPPORTED,
    remote_exception,
)

_STATUSES = {ABSENT: 404, ILLEGAL: 400, INVALID_PATH: 400, UNSUPPORTED: 400}
_CLASSES: tuple[tuple[str, tuple[type[BuckramError], ...]], ...] = (
    (ABSENT, (errors.NoSuchObject, errors.NoSuchNamespace)),
    (EXISTS, (errors.ObjectExists,)),
    (NO_DIRECTORY, (errors.NameBlocked,)),
    (FILLED, (errors.DirectoryNotEmpty,)),
    (QUOTA, (errors.QuotaExceeded,)),
    (ACCESS, (errors.AccessRefused, errors.Unauthorized, errors.EncryptionKeyMissing)),
    (ILLEGAL, (errors.InvalidArgument,)),
    (STANDBY, (errors.HandleClosed, errors.ReplicaStopped)),
    (RETRY, (errors.DataLost,)),
)
"""Java classes by error of the cluster; the first row that matches decides."""


class RemoteProblem(HttpProblem):
    """Ends a request with a RemoteException of this Java class."""

    def __init__(self, java_class: str, message: str) -> None:
        self._content = remote_exception(java_class, message)
        code = self._content["RemoteException"]["exception"]
        super().__init__(_STATUSES.get(java_class, 403), code, message)
        self.java_class = java_class
        self.refuses = java_class in (ACCESS, INVALID_TOKEN)  # Hadoop knows other problems by 403, too

    def content(self) -> dict[str, Any]:
        """The answer's JSON."""
        return dict(self._content)


def problem_of(error: BuckramError) -> RemoteProblem:
    """The answer to an error of the cluster. An InvariantViolation is a bug: let it pass instead."""
    java_class = next((name for name, kinds in _CLASSES if isinstance(error, kinds)), None)
    if java_class is None:
        java_class = RETRY if error.retryable else INPUT_OUTPUT
    if isinstance(error, errors.AccessRefused):  # Where it is in the store is no business of who asks.
        return RemoteProblem(java_class, f"the metadata store does not let this gateway do that: {error.found}")
    return RemoteProblem(java_class, str(error))


def illegal(name: str, value: str, needs: str) -> RemoteProblem:
    """The answer to a bad parameter."""
    return RemoteProblem(ILLEGAL, f"{name}={value[:60]!r}: needs {needs}")
