"""Objects as JSON: the same for commands and the gateway."""

from __future__ import annotations

from typing import Any

from buckram.state.objects.objects import ObjectInfo
from buckram.state.objects.values import UploadInfo


def object_json(namespace: str, info: ObjectInfo) -> dict[str, Any]:
    """Return the JSON of an object. Times are in microseconds UTC; `expires` is null if the object never expires."""
    return {
        "object": f"{namespace}/{info.name}",
        "bytes": info.size,
        "digest": info.digest,
        "version": info.version,
        "time": info.time,
        "expires": info.expires,
        "metadata": dict(info.metadata),
    }


def upload_json(namespace: str, upload: UploadInfo) -> dict[str, Any]:
    """Return the JSON of an open upload in parts. `time`: its begin, microseconds UTC; `bytes`: total of its parts."""
    return {
        "upload": upload.upload,
        "object": f"{namespace}/{upload.name}",
        "time": upload.time,
        "parts": upload.parts,
        "bytes": upload.size,
    }
