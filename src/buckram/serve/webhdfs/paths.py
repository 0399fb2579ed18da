"""Forms of WebHDFS in both directions: paths of files and parameters, checked; file statuses and directory listings.

A path is /NAMESPACE/NAME; the root lists the namespaces. Times are in milliseconds UTC. Owners, permissions and
replication are what a namespace has for all its files: grants and the ensemble decide. Not here: what is at a path
(`files.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import Request

from buckram.core.objects.rows import check_object_name
from buckram.core.streams.names import check_name
from buckram.errors import InvalidArgument
from buckram.serve.webhdfs.problems import RemoteProblem, illegal
from buckram.serve.webhdfs.protocol_names import INVALID_PATH
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo

BLOCK_BYTES = 128 * 1024 * 1024
"""Block size in statuses, by which Spark and Hadoop split a file into tasks; files have no blocks here."""
OWNER = "buckram"
_MS = 1000

SERVER_DEFAULTS: dict[str, Any] = {
    "blockSize": BLOCK_BYTES,
    "bytesPerChecksum": 512,
    "writePacketSize": 64 * 1024,
    "replication": 1,
    "fileBufferSize": 64 * 1024,
    "encryptDataTransfer": False,
    "trashInterval": 0,
    "checksumType": 2,
    "keyProviderUri": "",
    "defaultStoragePolicyId": 7,
}


def status_of(info: ObjectInfo | DirectoryInfo, suffix: str = "") -> dict[str, Any]:
    """A FileStatus; `suffix` is the last part of the path where it is one of a list."""
    if isinstance(info, DirectoryInfo):
        return _status("DIRECTORY", suffix, info.time, children=info.children)
    return _status("FILE", suffix, info.time, size=info.size, number=info.version)


def root_status(children: int) -> dict[str, Any]:
    """The FileStatus of the root."""
    return _status("DIRECTORY", "", 0, children=children)


def namespace_status(name: str) -> dict[str, Any]:
    """The FileStatus of a namespace in the list of the root, which opens none of them."""
    return _status("DIRECTORY", name, 0)


def _status(
    kind: str, suffix: str, time_us: int, *, size: int = 0, number: int = 0, children: int = 0
) -> dict[str, Any]:
    file = kind == "FILE"
    return {
        "accessTime": time_us // _MS,
        "blockSize": BLOCK_BYTES if file else 0,
        "childrenNum": children,
        "fileId": number,
        "group": OWNER,
        "length": size,
        "modificationTime": time_us // _MS,
        "owner": OWNER,
        "pathSuffix": suffix,
        "permission": "644" if file else "755",
        "replication": 1 if file else 0,
        "storagePolicy": 0,
        "type": kind,
    }


def summary_of(files: int, directories: int, size: int) -> dict[str, Any]:
    """A ContentSummary."""
    return {
        "directoryCount": directories,
        "ecPolicy": "",
        "fileCount": files,
        "length": size,
        "quota": -1,
        "spaceConsumed": size,
        "spaceQuota": -1,
        "typeQuota": {},
    }


def block_locations(size: int) -> dict[str, Any]:
    """The BlockLocations of a file: one for all of it, at no host, as any gateway serves it."""
    one = {
        "cachedHosts": [],
        "corrupt": False,
        "hosts": [],
        "length": size,
        "names": [],
        "offset": 0,
        "storageTypes": [],
        "topologyPaths": [],
    }
    return {"BlockLocations": {"BlockLocation": [one] if size else []}}


PREFIX = "/webhdfs/v1"
_MAX_PARAMETERS = 64


class FilePath(NamedTuple):
    """A path; `name` is empty for a namespace, and both are for the root."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.name}" if self.name else f"/{self.namespace}"

    @property
    def parent(self) -> FilePath:
        """The directory above; of a namespace and of the root it is the root."""
        return FilePath(self.namespace, self.name.rpartition("/")[0]) if self.name else FilePath("", "")

    def child(self, name: str) -> FilePath:
        """Return the path of the child with this name."""
        return FilePath(self.namespace, f"{self.name}/{name}".strip("/")) if self.namespace else FilePath(name, "")

    def within(self, other: FilePath) -> bool:
        """Return whether this path is below `other`."""
        return self.namespace == other.namespace and self.name.startswith(f"{other.name}/")


def file_path(text: str) -> FilePath:
    """Parse a path such as /shop/orders/offsets/7. Raises RemoteProblem if it is invalid."""
    if not text.startswith("/"):
        raise RemoteProblem(INVALID_PATH, f"path {text[:60]!r}: needs one from the root on, such as /default/orders")
    namespace, _, name = text[1:].removesuffix("/").partition("/")
    try:
        if namespace:
            check_name("namespace", namespace)
        if name:
            check_object_name(name)
    except InvalidArgument as error:
        raise RemoteProblem(INVALID_PATH, f"path {text[:60]!r}: {error}") from None
    if name and not namespace:
        raise RemoteProblem(INVALID_PATH, f"path {text[:60]!r}: has an empty part; needs /NAMESPACE/NAME")
    return FilePath(namespace, name)


def requested_path(request: Request) -> FilePath:
    """The path of a request. Raises RemoteProblem."""
    raw: bytes = request.scope["raw_path"].partition(b"?")[0]
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise RemoteProblem(INVALID_PATH, "the path is no UTF-8: encode it so, then with %") from None
    return file_path(text.removeprefix(PREFIX) or "/")


def requested_parameters(request: Request) -> Mapping[str, str]:
    """The parameters of a request, names in lower case. Raises RemoteProblem for one that is given twice."""
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(request.url.query, keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS)
    except ValueError:
        raise illegal("the query", request.url.query, f"at most {_MAX_PARAMETERS} parameters in UTF-8") from None
    for name, value in pairs:
        if name.lower() in found:
            raise illegal(name[:60], value, "to be given once")
        found[name.lower()] = value
    return found


def flag(parameters: Mapping[str, str], name: str, default: bool = False) -> bool:
    """A parameter that is true or false. Raises RemoteProblem."""
    text = parameters.get(name, "").lower()
    if text not in ("", "true", "false"):
        raise illegal(name, text, "true or false")
    return text == "true" if text else default


def whole(parameters: Mapping[str, str], name: str) -> int | None:
    """A parameter that is a whole number from 0 on; None where there is none. Raises RemoteProblem."""
    text = parameters.get(name, "")
    if not text or text == "null":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise illegal(name, text, "a whole number from 0 on")
    return int(text)
