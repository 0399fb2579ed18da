"""The bookie's end of one connection: chunks of bytes in, work items out.

Each packet shows which wire it uses. A connection starts as v3 and switches to v2 for good at the first packet that is
not v3. Arbitrary bytes produce items, error replies or one Close, but never an exception, and never take more memory
than one frame and one chunk.

Not here: sockets and decisions (`bookie/service/server.py`, `bookie/service/dispatch.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.adds import (
    ALL_RUNS,
    FRAME_OVERHEAD,
    MAX_RUN_BYTES,
    V2_ADDS,
    AddContext,
    AddRun,
    ack_frames,
    scan_adds,
)
from buckram.core.wire.adds_v3 import USUAL_ADD, continues, reframe, scan_v3_adds, v3_add_replies
from buckram.core.wire.frames import PREFIX_BYTES, ChunkBuffer, FrameTooLarge
from buckram.core.wire.lacs import take_lacs
from buckram.core.wire.messages import (
    OP_ADD,
    OP_READ,
    Add,
    Auth,
    AuthReply,
    BadPacket,
    ErrorReply,
    Read,
    RefusedRequest,
    Reply,
    ReplyContext,
    Request,
    StartTls,
    StartTlsReply,
    error_reply,
)
from buckram.core.wire.protobuf import varint
from buckram.core.wire.start_tls import MAX_OPENING_BYTES, Opening, begins_login
from buckram.errors import Code
from buckram.types import EntryId, LedgerId

AUTH_DISABLED = "AuthDisabledPlugin"
_UNKNOWN = "a request before the login"
MAX_UNKNOWN_BYTES = 64 * 1024
"""Maximum bytes that a peer may send before it is authenticated."""


class Incoming(NamedTuple):
    """A request other than an add, with the context for its reply."""

    request: Request
    context: ReplyContext


class Named(NamedTuple):
    """Birth of the ledger that later requests of this connection about the id mean."""

    ledger_id: LedgerId
    birth: bytes


class Traced(NamedTuple):
    """Trace context of the add of this entry, which comes later on this connection."""

    ledger_id: LedgerId
    entry: EntryId
    context: bytes


class KeyPacket(NamedTuple):
    """A request about metadata (metadata/service/packets)."""

    packet: bytes


class StrangersKeyPacket(NamedTuple):
    """Request about metadata of a peer that is not authenticated: it gets a refusal, and the connection ends."""

    packet: bytes
    needs_tls: bool
    """True if the connection lacks TLS, false if it lacks a login."""


class BeginTls(NamedTuple):
    """Beginning of TLS: these bytes, and all that follow, are TLS. It is the last item."""

    data: bytes


class LoginBegun(NamedTuple):
    """Beginning of a login in clear. The reply waits for TLS: call `answer_begun` if TLS does not come."""


class LoginWaits(NamedTuple):
    """Login whose result is not known yet: call `answer_login` when it may be. Later bytes of the peer wait
    behind it.
    """

    payload: bytes


class Ready(NamedTuple):
    """Bytes to send as they are."""

    data: bytes
    refused: str = ""
    """Reason of the refusal of an unauthenticated peer's request, if the connection stays; else empty."""


class Close(NamedTuple):
    """Order to close the connection after the queued replies have left. It is the last item."""

    reason: str


Item: TypeAlias = (
    AddRun
    | Incoming
    | Named
    | Traced
    | KeyPacket
    | StrangersKeyPacket
    | BeginTls
    | Ready
    | LoginBegun
    | LoginWaits
    | Close
)


class ChunkTaker(Protocol):
    """Takes plain adds straight from a received chunk (`bookie/service/connections/session.py:Session.take_chunk`)."""

    def __call__(self, items: list[Item], chunk: bytes, offset: int, max_packet: int, v3: bool, /) -> int:
        """Carry out `items`, which come before, and clear the list; then take adds from chunk[offset] on.

        Returns where it stopped, maybe at `offset`: the next run is not plain. -1: the connection has ended.
        """
        ...


class AuthStep(NamedTuple):
    """A provider's answer to one token. `token` None: nothing is sent. `failed`: refuse and close. `waits`: it is
    called again, with the same token, once a lookup that it needs is done.
    """

    token: bytes | None
    done: bool = False
    failed: bool = False
    waits: bool = False


class AuthProvider(Protocol):
    """Handshake of one peer; a new one for each connection."""

    plugin: str

    def step(self, payload: bytes) -> AuthStep: ...


class ServerProtocol:
    """One connection. Without `auth` every client is authenticated, and AUTH is answered by AuthDisabledPlugin.

    `auth`: the logins of this connection, one for each plug-in. Until one has succeeded, or `logged_in` was called, a
    peer gets MAX_UNKNOWN_BYTES; a peer that `logged_in` authenticated and that begins a login is unauthenticated until
    that succeeds. `offers_tls`: START_TLS is answered with yes. `needs_tls`: everything else is refused until `secured`
    is called. Not here: requests allowed in clear beside START_TLS (`core/wire/start_tls.py`).
    """

    def __init__(
        self,
        max_frame_bytes: int,
        *,
        max_run_bytes: int = MAX_RUN_BYTES,
        auth: AuthProvider | Sequence[AuthProvider] | None = None,
        offers_tls: bool = False,
        needs_tls: bool = False,
    ) -> None:
        self.chunks = ChunkBuffer(max_frame_bytes)
        """The unfinished frame."""
        self._max_run_bytes = max_run_bytes
        providers = () if auth is None else auth if isinstance(auth, Sequence) else (auth,)
        self._auth = {provider.plugin: provider for provider in providers}
        self._needs_login = auth is not None
        self._unknown_bytes = 0
        self._offers_tls, self._needs_tls = offers_tls, needs_tls
        self._authenticated = auth is None and not needs_tls
        self._max_frame_bytes = max_frame_bytes
        self._opening: Opening | None = None
        self._waiting: tuple[Auth, ReplyContext] | None = None
        """Login whose provider has to look something up; None if there is none."""
        self.behind = b""
        """Bytes that came behind that login."""
        self._limit_frames()
        self._v2 = False
        self._spoken = False
        """True once the peer has sent a request."""
        self._logged_in = False
        """True once a login succeeded on this connection."""
        self._settled = False
        """True once a login succeeded or a request was taken: the identity of the peer does not change any more."""
        self._closed = False
        self._v3_adds: list[Add] = []
        self._v3_txns: list[bytes] = []
        self._v3_bytes = 0
        self._name: Named | None = None

    @property
    def pending_bytes(self) -> int:
        """Return the bytes held of an unfinished frame, and behind a login that waits."""
        return self.chunks.pending_bytes + len(self.behind)

    @property
    def authenticated(self) -> bool:
        return self._authenticated

    @property
    def awaits_tls(self) -> bool:
        """Return whether requests are refused before TLS: it is required here, or the peer has asked for it."""
        return self._needs_tls or (self._opening is not None and self._opening.start_tls is not None)

    def secured(self) -> None:
        """Note that the connection is TLS from now on. Call `answer_begun` once a certificate may have logged in."""
        self._offers_tls = self._needs_tls = False
        if not self._needs_login:
            self.logged_in()

    def answer_begun(self) -> list[Item]:
        """Answer a login that was begun in clear, now that there is TLS, or that the client did not ask for it."""
        opening, items = self._opening, list[Item]()
        if self._closed or opening is None or (opening.start_tls is not None and self._offers_tls):
            return items
        self._opening = None
        self._limit_frames()
        if opening.begun is not None and self._needs_tls:
            self._unauthenticated(*opening.begun, items)
        elif opening.begun is not None and self._authenticated:
            # Authenticated by certificate. The AUTH in clear has no credential; anybody on the way may have sent it.
            items.append(Ready(encode_reply(opening.begun[1], AuthReply(Code.OK, AUTH_DISABLED, b""))))
        elif opening.begun is not None:
            self._auth_request(*opening.begun, items)
        return items

    def answer_login(self) -> list[Item]:
        """Resume a login that waits, and then the bytes that came behind it."""
        waiting, self._waiting = self._waiting, None
        behind, self.behind = self.behind, b""
        items: list[Item] = []
        if waiting is None or self._closed:
            return items
        self._auth_request(*waiting, items)
        return items if self._closed else [*items, *self.feed(behind)]

    def _is_held_up(self) -> bool:
        """Return whether what follows has to wait: for TLS, or behind a login."""
        return self._opening is not None or self._waiting is not None

    def _limit_frames(self) -> None:
        most = self._max_frame_bytes if self._authenticated else MAX_UNKNOWN_BYTES
        self.chunks.limit = min(self._max_frame_bytes, most)

    def logged_in(self) -> None:
        """Authenticate the peer: its requests are carried out from now on."""
        self._needs_tls = False
        self._authenticated = True
        self._limit_frames()

    def feed(self, chunk: bytes, taker: ChunkTaker | None = None) -> list[Item]:
        """Return everything that the chunk completes, in the order of arrival; nothing after a Close.

        With `taker`, plain adds go to it, and what comes before them is carried out by it: in the order of arrival as
        well, so what is returned is what came behind the last of them.
        """
        items: list[Item] = []
        if self._closed:
            return items
        chunks = self.chunks
        if not self._authenticated:
            self._unknown_bytes += len(chunk)
            if self._unknown_bytes > MAX_UNKNOWN_BYTES:
                self._close(f"{MAX_UNKNOWN_BYTES} bytes, the limit, before it was known who it is", items)
                return items
        if self._waiting is not None:
            self.behind += chunk
            return items
        try:
            buffer = chunks.push(chunk) if chunks.pending_bytes else chunk
            if self._opening is not None:
                self._in_clear(buffer, 0, items)
            else:
                self._walk(buffer, items, taker)
        except (FrameTooLarge, BadPacket) as error:
            self._flush_adds(items)
            self._close(str(error), items)
        return items

    def _walk(self, buffer: bytes, items: list[Item], taker: ChunkTaker | None) -> None:
        """Take the frames of a buffer that begins with one, and keep what is unfinished at its end."""
        chunks = self.chunks
        offset, most_runs = 0, ALL_RUNS if taker is None else 1
        while True:
            if not self._v2 and len(buffer) - offset > PREFIX_BYTES and buffer[offset + PREFIX_BYTES] < 8:
                # Protobuf has no field number 0, so this is no message and need not be parsed.
                self._flush_adds(items)
                self._v2 = True
            if self._authenticated:
                begin = offset
                if taker is not None:
                    offset = self._taken(taker, items, buffer, offset)
                    if offset < 0:
                        return
                    if offset > begin:
                        most_runs = 1
                if offset == begin:
                    offset = self._scanned(items, buffer, offset, most_runs)
                    if offset > begin and type(items[-1]) is AddRun:
                        most_runs = min(2 * most_runs, ALL_RUNS)  # where nothing is plain, more and more in one go
                if offset == len(buffer) and not self._v3_adds:
                    return
                if offset > begin and (taker is not None or self._v2):
                    continue
            end = chunks.next_frame(buffer, offset) if offset < len(buffer) else 0
            if not end:
                break
            self._packet(buffer[offset + PREFIX_BYTES : end], items)
            offset = end
            if self._is_held_up():
                self._hold_up(buffer, offset, items)
                return
            if items and type(items[-1]) is Close:
                return
        if self._v3_adds:
            self._flush_adds(items)
        if offset < len(buffer):
            chunks.keep(buffer, offset)

    def _scanned(self, items: list[Item], buffer: bytes, offset: int, most_runs: int) -> int:
        """Take runs of adds from `offset` on, at most `most_runs`, and v2 reads and LACs behind them; return where they
        end."""
        limit = self.chunks.limit
        if not self._v2:
            offset, runs = scan_v3_adds(buffer, offset, limit, self._max_run_bytes, most_runs)
            if runs:
                self._spoken = self._settled = True
                self._flush_adds(items)
                items.extend(runs)
            return offset
        offset, runs = scan_adds(buffer, offset, limit, self._max_run_bytes, most_runs)
        items.extend(runs)
        offset, reads = wire_v2.plain_reads(buffer, offset)
        items += [Incoming(Read(*ids), ReplyContext(2, 2, OP_READ, *ids)) for ids in reads]
        offset, lacs = take_lacs(buffer, offset)
        items += [Incoming(*one) for one in lacs]
        if runs or reads or lacs:
            self._settled = True
        return offset

    def _taken(self, taker: ChunkTaker, items: list[Item], buffer: bytes, offset: int) -> int:
        """Have plain adds taken from `offset` on, if a whole frame is there that may be one. Returns where that ended,
        or -1."""
        # A look at the operation spares other requests the call.
        may_be = buffer[offset + 5 : offset + 6] == b"\x01" if self._v2 else buffer[offset + 9 : offset + 10] == b"\x02"
        if not may_be or not self.chunks.next_frame(buffer, offset):
            return offset
        if self._v3_adds:
            if USUAL_ADD.match(buffer, offset) is None:
                return offset  # it may belong to the run that is gathered
            self._flush_adds(items)
        end = taker(items, buffer, offset, self.chunks.limit - PREFIX_BYTES, not self._v2)
        if end > offset:
            self._settled = True
            self._spoken = self._spoken or not self._v2
        return end

    def _hold_up(self, buffer: bytes, offset: int, items: list[Item]) -> None:
        """Take the bytes behind a packet that began TLS, or a login that waits."""
        if self._opening is not None:
            self._in_clear(buffer, offset, items)
        else:
            self.behind = buffer[offset:]

    def _open(self, request: Request | RefusedRequest, context: ReplyContext, items: list[Item]) -> None:
        """Begin an opening with the first request, which TLS may follow."""
        self._opening = Opening()
        self._opening.take(request, context)
        self.chunks.limit = min(self._max_frame_bytes, MAX_OPENING_BYTES)
        if self._opening.begun is not None:
            items.append(LoginBegun())

    def _in_clear(self, buffer: bytes, offset: int, items: list[Item]) -> None:
        """Take bytes in clear before TLS, none of which are carried out as if they had come through it."""
        opening = self._opening
        assert opening is not None
        first = opening.push(self.chunks, buffer, offset)
        if opening.start_tls is not None and not opening.answered:
            opening.answered = True
            items.append(Ready(encode_reply(opening.start_tls, StartTlsReply(Code.OK))))
        if first:
            items.append(BeginTls(first))

    def _named(self, name: Named, items: list[Item]) -> None:
        """Add an item for the birth in a v3 request, unless the same one was named last."""
        if name != self._name:
            self._flush_adds(items)
            self._name = name
            items.append(name)

    def _close(self, reason: str, items: list[Item]) -> None:
        self._closed = True
        self._flush_adds(items)
        items.append(Close(reason))

    def _packet(self, packet: bytes, items: list[Item]) -> None:
        decoded = None if self._v2 else wire_v3.decode_request(packet)
        if decoded is None:
            if self._v3_adds:
                self._flush_adds(items)
            self._v2 = self._spoken = True
            if packet[:4] in wire_v2.OWN_HEADERS and self._own_packet(packet, items):
                return
            request, context = wire_v2.decode_request(packet)
        else:
            request, context = decoded
            if birth := getattr(request, "birth", b""):
                self._named(Named(context.ledger_id, birth), items)
        first, self._spoken = not self._spoken, True
        if self._authenticated and not isinstance(request, Auth):
            self._settled = True
        if isinstance(request, Add) and self._authenticated:
            self._add(request, context, items)
            return
        if self._v3_adds:
            self._flush_adds(items)
        if isinstance(request, StartTls) and self._offers_tls and not first:
            # Somebody on the way could have sent it: a peer's identity must not come from a request in clear before it.
            self._close("START_TLS that is not the first request of its connection", items)
        elif self._offers_tls and (isinstance(request, StartTls) or (first and begins_login(request, context))):
            self._open(request, context, items)
        elif isinstance(request, Auth) and not self._needs_tls:
            self._auth_request(request, context, items)
        elif not self._authenticated:
            self._unauthenticated(request, context, items)
        elif isinstance(request, StartTls):
            items.append(Ready(encode_reply(context, StartTlsReply(Code.BAD_REQUEST))))
        elif isinstance(request, RefusedRequest):
            items.append(Ready(encode_error(context, request.code, envelope_only=request.envelope_only)))
        else:
            items.append(Incoming(request, context))

    def _own_packet(self, packet: bytes, items: list[Item]) -> bool:
        """Take a packet that Apache's protocol lacks; return False if it is none, or only known peers may send it."""
        named = wire_v2.named_ledger(packet)
        if self._authenticated and named is not None:
            items.append(Named(*named))
            return True
        if self._authenticated and (traced := wire_v2.traced_add(packet)) is not None:
            items.append(Traced(*traced))
            return True
        if not wire_v2.is_key_packet(packet):
            return False
        if self._authenticated:
            self._settled = True
            items.append(KeyPacket(packet))
            return True
        items.append(StrangersKeyPacket(packet, self._needs_tls))
        self._close("a request about metadata before authentication", items)
        return True

    def _add(self, add: Add, context: ReplyContext, items: list[Item]) -> None:
        """Convert v3 adds, and v2 adds of versions 0 and 1, into the stored form, and gather them into runs."""
        if context.protocol == 2:
            items.append(reframe([add], V2_ADDS._replace(version=context.version)))
            return
        if self._v3_adds and not continues(self._v3_adds[-1], add):
            self._flush_adds(items)
        self._v3_adds.append(add)
        self._v3_txns.append(varint(context.txn))
        self._v3_bytes += len(add.body) + FRAME_OVERHEAD
        if self._v3_bytes >= self._max_run_bytes:
            self._flush_adds(items)

    def _flush_adds(self, items: list[Item]) -> None:
        if self._v3_adds:
            items.append(reframe(self._v3_adds, AddContext(3, 3, tuple(self._v3_txns))))
            self._v3_adds, self._v3_txns, self._v3_bytes = [], [], 0

    def _auth_request(self, request: Auth, context: ReplyContext, items: list[Item]) -> None:
        provider = self._auth.get(request.plugin)
        if self._authenticated and not self._begins_anew(request, provider):
            if context.protocol == 2:
                context = context._replace(version=2)
            items.append(Ready(encode_reply(context, AuthReply(Code.OK, AUTH_DISABLED, b""))))
            return
        if self._settled:
            if context.protocol == 3:
                items.append(Ready(encode_error(context, Code.UNAUTHORIZED, envelope_only=True)))
            self._close("a login on a connection that is in use already", items)
            return
        self._authenticated = False
        if provider is None:
            why = f"authentication plug-in {request.plugin[:100]!r} is not the one that is configured"
            if context.protocol == 2:
                self._close(why, items)
            else:
                items.append(Ready(encode_error(context, Code.UNAUTHORIZED, envelope_only=True), why))
            return
        step = provider.step(request.payload)
        if step.waits:
            self._waiting = request, context
            items.append(LoginWaits(request.payload))
            return
        if step.failed:
            if context.protocol == 3:
                items.append(Ready(encode_error(context, Code.UNAUTHORIZED, envelope_only=True)))
            self._close("authentication failed", items)
            return
        if step.token is not None:
            items.append(Ready(encode_reply(context, AuthReply(Code.OK, provider.plugin, step.token))))
        if step.done:
            self._settled = self._logged_in = True
            self.logged_in()

    def _begins_anew(self, request: Auth, provider: AuthProvider | None) -> bool:
        """Return whether a login replaces an identity that the peer has without one, by a certificate or by the kernel:
        a peer that gives a credential is judged by that alone. An empty AUTH for a login that is not served here gives
        none.
        """
        if not self._needs_login or request.plugin == AUTH_DISABLED:
            return False
        if self._logged_in and not request.payload:
            return False  # Apache's v2 client sends one more AUTH when SASL has succeeded.
        return provider is not None or bool(request.payload)

    def _unauthenticated(self, request: Request | RefusedRequest, context: ReplyContext, items: list[Item]) -> None:
        if context.protocol == 2:
            if context.operation not in (OP_ADD, OP_READ):
                self._close("a v2 request before authentication", items)
            else:
                items.append(Ready(encode_error(context, Code.UNAUTHORIZED), _UNKNOWN))
        elif isinstance(request, StartTls):
            items.append(Ready(encode_reply(context, StartTlsReply(Code.BAD_REQUEST))))
        else:
            items.append(Ready(encode_error(context, Code.UNAUTHORIZED, envelope_only=True), _UNKNOWN))


def encode_reply(context: ReplyContext, reply: Reply) -> bytes:
    """Encode the reply to a request as a frame of the request's protocol; v2 sends code 507 as 101."""
    if context.protocol == 2:
        return wire_v2.encode_reply(context, reply)
    return wire_v3.encode_reply(context, reply)


def encode_error(context: ReplyContext, code: Code, *, envelope_only: bool = False) -> bytes:
    """Encode an error reply to any request, with the ids that its operation's reply must carry."""
    return encode_reply(context, ErrorReply(code) if envelope_only else error_reply(context, code))


def encode_add_replies(run: AddRun, code: Code = Code.OK) -> bytes:
    """Encode the replies to all entries of a run, in order, with the same code for each."""
    context = run.context
    if context.protocol == 2:
        return ack_frames(run.ledger_id, run.first, run.count, code, context.version)
    return v3_add_replies(run, code)
