"""Objects as JSON: the same for commands and the gateway."""

from __future__ import annotations

from typing import Any

from buckram.objects.objects import ObjectInfo


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


__all__ = ["object_json"]
