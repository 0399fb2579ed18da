"""Names of WebHDFS that the gateway and Spark's side share: Java's classes of errors, and headers of repeated requests.

Hadoop's client knows by the class of an error what went wrong. The headers mark requests whose answers were lost with a
gateway; `spark/relay/server.py` sends them, and Hadoop's own client sends none. Nothing here needs the extra `serve`.
Not here: which error has which class (`problems.py`), repeated renames of Hadoop's client (`files.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

# -- classes of errors ------------------------------------------------------------------------------------

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


# -- repeated requests ------------------------------------------------------------------------------------

ATTEMPT = "buckram-attempt"
"""Header of CREATE's second step: a unique id of the request, the same in every repetition."""
REPEATED = "buckram-repeated"
"""Header of any request: `true` if it was sent before and its outcome is unknown."""
_NAME = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)


class Repeat(NamedTuple):
    """Marks of repetition in a request. Without `attempt` a file that it created is not recognised."""

    attempt: str = ""
    repeated: bool = False


def repeat_of(headers: Mapping[str, str]) -> Repeat:
    """Read the marks from the headers of a request; an `attempt` that is no valid name is ignored."""
    name = headers.get(ATTEMPT, "")
    return Repeat(name if _NAME.fullmatch(name) else "", headers.get(REPEATED, "") == "true")
