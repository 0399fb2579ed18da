"""Objects as JSON: the same for commands and the gateway."""

from __future__ import annotations

from typing import Any

from buckram.state.objects.objects import ObjectInfo
from buckram.state.objects.values import UploadInfo


def object_json(namespace: str, info: ObjectInfo) -> dict[str, Any]:
    """What is known of an object. Times in microseconds UTC; `expires` is null for one that stays."""
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
    """What is known of an open upload in parts. `time`: when it began, in microseconds UTC; `bytes`: of its parts."""
    return {
        "upload": upload.upload,
        "object": f"{namespace}/{upload.name}",
        "time": upload.time,
        "parts": upload.parts,
        "bytes": upload.size,
    }


__all__ = ["object_json", "upload_json"]
