"""A WebSocket of uvicorn that can be cut off at once, so that a client that reads nothing holds no memory.

Messages are not compressed: what a client sends takes as much memory as it has sent. Not here: what is said on it.
"""

from __future__ import annotations

from typing import Any, cast

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import Request

from buckram.http.connection import ABORT


class Socket(WSProtocol):
    """One connection, for uvicorn, which constructs it."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        cast("dict[str, Any]", self.scope)[ABORT] = self.transport.abort

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # To close it would wait until the client has read what was written.
        self.transport.abort()


__all__ = ["Socket"]
