"""Java's classes of errors, by which Hadoop's client knows what went wrong. Which error is which: `problems.py`.

Nothing here needs the extra `serve`: Spark's side reads these names, too.
"""

from __future__ import annotations

ACCESS = "org.apache.hadoop.security.AccessControlException"
ABSENT = "java.io.FileNotFoundException"
EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
FILLED = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"
ILLEGAL = "java.lang.IllegalArgumentException"
INPUT_OUTPUT = "java.io.IOException"
INVALID_PATH = "org.apache.hadoop.fs.InvalidPathException"
INVALID_TOKEN = "org.apache.hadoop.security.token.SecretManager$InvalidToken"
NO_DIRECTORY = "org.apache.hadoop.fs.ParentNotDirectoryException"
QUOTA = "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException"
RETRY = "org.apache.hadoop.ipc.RetriableException"
STANDBY = "org.apache.hadoop.ipc.StandbyException"
UNSUPPORTED = "java.lang.UnsupportedOperationException"


def remote_exception(java_class: str, message: str) -> dict[str, dict[str, str]]:
    """The JSON of an answer after which the client raises this class."""
    name = java_class.rpartition(".")[2].rpartition("$")[2]
    return {"RemoteException": {"exception": name, "javaClassName": java_class, "message": message}}


__all__ = [
    "ABSENT",
    "ACCESS",
    "EXISTS",
    "FILLED",
    "ILLEGAL",
    "INPUT_OUTPUT",
    "INVALID_PATH",
    "INVALID_TOKEN",
    "NO_DIRECTORY",
    "QUOTA",
    "RETRY",
    "STANDBY",
    "UNSUPPORTED",
    "remote_exception",
]
