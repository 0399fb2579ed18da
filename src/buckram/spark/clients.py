"""The clients of Spark's processes. Spark's workers are forked and reused, and end without running exit hooks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buckram import sync

_clients: dict[tuple[int, str], sync.Client] = {}


def shared_client(uri: str) -> sync.Client:
    """One client a process and cluster."""
    from buckram import sync

    key = (os.getpid(), uri)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = sync.connect(uri)
    return client
