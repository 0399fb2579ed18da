"""What a client takes for an answer while it secures a connection, and what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.support.secure_kit import Files

from buckram.core.security import digest_md5
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.messages import (
    OP_AUTH,
    OP_START_TLS,
    Auth,
    AuthReply,
    ErrorReply,
    Reply,
    ReplyContext,
    StartTlsReply,
)
from buckram.core.wire.server_protocol import AUTH_DISABLED, encode_error, encode_reply
from buckram.errors import Code
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.runtime.net.security.logins import SaslLogin
from buckram.runtime.net.security.secure_network import SecureNetwork
from buckram.runtime.net.tcp import TcpNetwork

NONCE = "nonce"
LOGGED_IN = encode_reply(ReplyContext(3, 3, OP_AUTH, txn=2), AuthReply(Code.OK, AUTH_DISABLED, b""))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("secure"))


@asynccontextmanager
async def apaches_bookie(
    files: Files, behind: bytes = b"", through: Callable[[int], Sequence[bytes]] = lambda txn: ()
) -> AsyncIterator[tuple[int, list[str]]]:
    """START_TLS and SASL as Apache's bookie answers them; its port, and who logged in. `behind`: what somebody on the
    way says in clear behind the answer to START_TLS; `through(txn)`: what the bookie says as well through TLS."""
    users: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def asked() -> tuple[object, ReplyContext]:
            packet = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            decoded = wire_v3.decode_request(packet)
            assert decoded is not None
            return decoded

        def say(context: ReplyContext, reply: Reply) -> None:
            writer.write(encode_reply(context, reply))

        try:
            _, context = await asked()
            writer.write(encode_reply(context, StartTlsReply(Code.OK)) + behind)
            await writer.start_tls(TlsFiles(files.bookie, server_side=True).context())
            writer.write(b"".join(through(context.txn)))
            request, begun = await asked()
            assert isinstance(request, Auth)
            say(begun, AuthReply(Code.OK, "sasl", digest_md5.challenge(NONCE)))
            request, answered = await asked()
            assert isinstance(request, Auth)
            user, last = digest_md5.accept(request.payload, NONCE, {"hd": "testpwd"})
            users.append(user)
            say(answered, AuthReply(Code.OK, "sasl", last))
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], users
    finally:
        server.close()
        await server.wait_closed()


async def log_in(files: Files, port: int) -> None:
    tls = TlsFiles(files.client, server_side=False)
    network = SecureNetwork(TcpNetwork(local=False), tls, login=lambda: SaslLogin("hd", "testpwd"))
    transport, _ = await network.connect("127.0.0.1", port, asyncio.Protocol)
    transport.abort()


def second_answer(txn: int) -> list[bytes]:
    return [encode_error(ReplyContext(3, 3, OP_START_TLS, txn=txn), Code.IO_ERROR)]


async def test_apaches_second_answer_to_start_tls_is_none_to_the_login(files: Files) -> None:
    assert wire_v3.decode_reply(second_answer(1)[0][4:])[0] == ErrorReply(Code.IO_ERROR)
    async with apaches_bookie(files, through=second_answer) as (port, users):
        await log_in(files, port)
        assert users == ["hd"]


@pytest.mark.parametrize("cut", [len(LOGGED_IN), 3, 10], ids=["whole", "in-its-length", "half"])
async def test_what_is_said_in_clear_behind_the_answer_to_start_tls_is_not_taken_for_the_bookies(
    files: Files, cut: int
) -> None:
    async with apaches_bookie(files, behind=LOGGED_IN[:cut]) as (port, users):
        with pytest.raises(ConnectionError, match="in clear"):
            await log_in(files, port)
        assert users == []


async def test_an_answer_to_something_else_ends_the_connection(files: Files) -> None:
    other = encode_reply(ReplyContext(3, 3, OP_AUTH, txn=9), AuthReply(Code.OK, AUTH_DISABLED, b""))
    async with apaches_bookie(files, through=lambda txn: [other]) as (port, users):
        with pytest.raises(ConnectionError, match="was not made"):
            await log_in(files, port)
        assert users == []
