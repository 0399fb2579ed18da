"""Classifies failed file operations and explains them with path, operation and advice.

Most errors mean that the device or the data is bad. Some mean only that space or descriptors are short for now: nothing
is lost, nothing was promised, and the operation is tried again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
_SHORT = NO_SPACE | NO_DESCRIPTOR | {errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR}
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM})
_SEE_LOG = "look into the kernel's log for what happened to the device"
_ADVICE = {
    errno.ENOSPC: "free space on its file system",
    errno.EDQUOT: "raise the quota, or delete other files",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f) or choose a smaller segment_bytes",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n, or LimitNOFILE= of its service)",
    errno.ENFILE: "raise the limit of open files of this machine (sysctl fs.file-max)",
    errno.ENOMEM: "give this machine more memory, or end other programs",
    errno.EIO: "the device fails: move the bookie to another one, see `A bookie is lost for good` in the manual",
    errno.EACCES: "let the user of this process read and write it",
    errno.EPERM: "let the user of this process read and write it",
    errno.EROFS: f"mount its file system for writing; {_SEE_LOG}",
    errno.ENOENT: "put it back if it was moved or removed",
    errno.ENOTDIR: "name a directory",
    errno.EEXIST: "move the file that has its name out of the way",
}


def no_space(error: OSError) -> bool:
    """Return whether an error says that the file system has no space, at least not for this user."""
    return error.errno in NO_SPACE


def passing(error: BaseException) -> bool:
    """Return whether a resource is short for the moment. Such an error does not concern the data; the operation may be
    retried."""
    return isinstance(error, OSError) and error.errno in _SHORT


def harmless(error: BaseException) -> bool:
    """Return whether a read error leaves it open whether the data are whole."""
    return passing(error) or (isinstance(error, OSError) and error.errno in _NOT_ALLOWED)


def explained(error: OSError, operation: str, path: str | Path) -> OSError:
    """Return an error of the same class, with a text that a person can act on."""
    number = error.errno or errno.EIO
    advice = _ADVICE.get(number, _SEE_LOG)
    return OSError(number, f"{path}: cannot {operation}: {os.strerror(number)}; {advice}")


@contextmanager
def explaining(operation: str, path: str | Path) -> Iterator[None]:
    """Make errors raised inside name the operation and the path."""
    try:
        yield
    except OSError as error:
        raise explained(error, operation, path) from error
