"""File statuses and directory listings in the JSON of WebHDFS. Times in milliseconds UTC.

Owners, permissions and replication are what a namespace has for all its files: grants and the ensemble decide.
"""

from __future__ import annotations

from typing import Any

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
