"""Requests in clear on a connection that is to become TLS: START_TLS, and one empty AUTH before or behind it.

Apache's client sends its first AUTH as soon as it is connected, beside START_TLS, without waiting for the answer. With
SASL that AUTH is empty: it asks for a challenge and gives no identity, so anybody on the way may have sent it. It is
answered through TLS. Any other request in clear ends the connection. Pure.

Not here: the replies (`core/wire/server_protocol.py`).
"""

from __future__ import annotations

from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.frames import PREFIX_BYTES, ChunkBuffer
from buckram.core.wire.messages import Auth, BadPacket, RefusedRequest, ReplyContext, Request, StartTls

HANDSHAKE_BYTE = 0x16
"""The first byte of a TLS connection; no frame within the limit begins with it."""
MAX_OPENING_BYTES = 1024
"""Maximum bytes of each frame in clear."""


def begins_login(request: Request | RefusedRequest, context: ReplyContext) -> bool:
    """Return whether a request only asks for a challenge. Apache's bookies accept that beside START_TLS in v3 only."""
    return isinstance(request, Auth) and not request.payload and context.protocol == 3


class Opening:
    """Requests in clear, from START_TLS or the empty AUTH on. `push` takes the bytes that follow the first one."""

    def __init__(self) -> None:
        self.start_tls: ReplyContext | None = None
        """Context of the START_TLS; None until it has come."""
        self.answered = False
        self.begun: tuple[Auth, ReplyContext] | None = None
        """Empty AUTH that waits for its reply; None if it has not come."""

    def take(self, request: Request | RefusedRequest, context: ReplyContext) -> None:
        """Take one request. Raises BadPacket for one that must not come in clear here."""
        if isinstance(request, StartTls) and self.start_tls is None:
            self.start_tls = context
        elif isinstance(request, Auth) and begins_login(request, context) and self.begun is None:
            self.begun = request, context
        elif self.start_tls is not None:
            raise BadPacket("bytes in clear behind START_TLS")
        else:
            raise BadPacket("a request in clear behind the empty AUTH, which START_TLS or nothing may follow")

    def push(self, chunks: ChunkBuffer, buffer: bytes, offset: int) -> bytes:
        """Take the frames in the buffer. Returns the bytes with which TLS begins; b"" while it has not begun. Raises
        BadPacket and FrameTooLarge."""
        while offset < len(buffer):
            if buffer[offset] == HANDSHAKE_BYTE and self.start_tls is not None:
                return bytes(buffer[offset:])
            end = chunks.next_frame(buffer, offset)
            if not end:
                break
            decoded = wire_v3.decode_request(buffer[offset + PREFIX_BYTES : end])
            if decoded is None:
                raise BadPacket("a v2 request in clear on a connection that is to become TLS")
            self.take(*decoded)
            offset = end
        chunks.keep(buffer, offset)
        return b""
