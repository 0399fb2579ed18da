"""A WebSocket of uvicorn that can be aborted at once, so that a client that reads nothing holds no memory.

Messages are not compressed: what a client sends takes as much memory as it has sent. The first message authenticates,
and is small. Not here: the protocol of the messages.
"""

from __future__ import annotations

import copy
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import BytesMessage, Request, TextMessage

from buckram.serve.http.connection import ABORT
from buckram.serve.http.limits import LOGIN_BYTES


class Socket(WSProtocol):
    """One connection; uvicorn constructs it."""

    def __init__(self, config: Config, *given: Any, **named: Any) -> None:
        first = copy.copy(config)
        first.ws_max_size = min(config.ws_max_size, LOGIN_BYTES)
        super().__init__(first, *given, **named)
        self._config = config

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        cast("dict[str, Any]", self.scope)[ABORT] = self.transport.abort

    def handle_message(self, event: TextMessage | BytesMessage) -> None:
        super().handle_message(event)
        if event.message_finished and self.config is not self._config:
            self.config = self._config
            self.buffer.max_length = self._config.ws_max_size

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # To close it would wait until the client has read what was written.
        self.transport.abort()


__all__ = ["Socket"]
