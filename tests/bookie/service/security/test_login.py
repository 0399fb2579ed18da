"""Logins on a bookie's port: who gets in, who does not, and when a connection ends again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.polling import until
from tests.support.secure_kit import Files, Guarded, guarded

from buckram import connect
from buckram.config import AuthConfig, ClientConfig, EncryptionConfig, TlsConfig
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.messages import Auth, AuthReply, GetBookieInfo, Read, Reply, StartTls, StartTlsReply
from buckram.errors import AccessRefused, BuckramError, Code, ConfigError
from buckram.metadata.uri import open_store
from buckram.runtime.net import local_sockets
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.runtime.net.security.logins import SaslLogin, TokenLogin, login_of
from buckram.runtime.net.security.secure_network import LoginRefused, SecureNetwork
from buckram.runtime.net.tcp import TcpNetwork

TOKENS = AuthConfig(logins="token")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("login"))


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through them the kernel says who it is."""
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


def principals(running: Guarded) -> list[str]:
    return sorted(session.principal.name for session in running.bookie.server.sessions)


async def closed(transport: asyncio.Transport, seconds: float) -> bool:
    """Whether the connection ends in that time."""
    await until(transport.is_closing, "it stays open", seconds)
    return True


async def test_a_token_lets_in_and_says_who_it_is(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=TOKENS) as running:
        token = await running.token("alice", "ops")
        transport, _ = await running.network(token=token).connect("127.0.0.1", running.port, asyncio.Protocol)
        assert principals(running) == ["token:alice"]
        (session,) = running.bookie.server.sessions
        assert (session.principal.roles, session.principal.admin) == (("ops",), False)
        transport.abort()


async def test_entries_and_metadata_go_through_a_login_over_tls(tmp_path: Path, files: Files) -> None:
    async with guarded(tmp_path, files.bookie, TOKENS) as running:
        token = await running.token()
        config = ClientConfig(local_read_bytes=0)
        async with connect(running.service, tls=files.client, token=token, config=config) as client:
            async with client.create(ensemble=1) as writer:
                await writer.append_many([b"x"] * 100)
            async with client.open(writer.ledger_id) as reader:
                assert len(await reader.read_payloads(0, 99)) == 100
        assert set(principals(running)) <= {"token:alice"}
        with pytest.raises(BuckramError):
            async with connect(running.service, tls=files.client, config=config):
                pass
        with pytest.raises(AccessRefused, match="refused the login"):
            async with connect(running.service, tls=files.client, token="no.token.atall", config=config):
                pass


@pytest.mark.parametrize("what", ["none", "expired", "revoked", "foreign", "nonsense"])
async def test_who_is_not_let_in(tmp_path: Path, what: str) -> None:
    async with guarded(tmp_path, auth=TOKENS) as running:
        token = await running.token()
        if what == "expired":
            token = await running.token(lasts_s=-1)
        elif what == "revoked":
            (made,) = await running.security.tokens()
            await running.security.revoke_token(made["id"])
            guard = running.bookie._guard
            assert guard is not None
            await until(lambda: bool(guard.state.revoked.tokens))
        elif what == "foreign":
            async with guarded(tmp_path / "other", auth=TOKENS) as other:
                token = await other.token()
        elif what in ("none", "nonsense"):
            token = "x" if what == "nonsense" else ""
        if what == "none":
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(wire_v3.encode_request(GetBookieInfo(1), 7))
            packet = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            assert wire_v3.decode_reply(packet)[0].code is Code.UNAUTHORIZED
            writer.close()
        else:
            with pytest.raises(LoginRefused):
                await running.network(token=token).connect("127.0.0.1", running.port, asyncio.Protocol)
        assert running.bookie.server.sessions == {} or principals(running) == ["anonymous"]


@pytest.mark.parametrize("how", ["token", "subject", "expiry"])
async def test_an_open_connection_ends_with_its_token(tmp_path: Path, how: str) -> None:
    async with guarded(tmp_path, auth=TOKENS) as running:
        token = await running.token(lasts_s=1.5 if how == "expiry" else 3600)
        other = await running.token("bob")
        network = running.network(token=token)
        transport, _ = await network.connect("127.0.0.1", running.port, asyncio.Protocol)
        stays, _ = await running.network(token=other).connect("127.0.0.1", running.port, asyncio.Protocol)
        if how == "token":
            (made,) = [one for one in await running.security.tokens() if one["subject"] == "alice"]
            await running.security.revoke_token(made["id"])
        elif how == "subject":
            await running.security.revoke_subject("alice", time.time() + 1)
        assert await closed(transport, 5.0)
        assert not stays.is_closing()
        stays.abort()


async def test_a_new_signing_key_and_tokens_of_the_one_before_count(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=TOKENS) as running:
        first = await running.token()
        now = time.time()
        _, second = await running.security.create_token("alice", (), now, now + 60, new_key=True)
        third = await running.token()
        guard = running.bookie._guard
        assert guard is not None
        await until(lambda: len(guard.state.keys) == 2)
        for token in (first, second, third):
            transport, _ = await running.network(token=token).connect("127.0.0.1", running.port, asyncio.Protocol)
            transport.abort()


async def test_a_certificate_names_its_client_and_its_roles(tmp_path: Path, files: Files) -> None:
    auth = AuthConfig(logins="certificate token")
    async with guarded(tmp_path, files.bookie, auth) as running:
        transport, _ = await running.network(files.known_client).connect("127.0.0.1", running.port, asyncio.Protocol)
        # The handshake ends a moment later on the bookie's side.
        await until(lambda: principals(running) == ["cert:alice"])
        (session,) = running.bookie.server.sessions
        assert session.principal.roles == ("ops", "dev")
        transport.abort()
        token = await running.token("bob")
        transport, _ = await running.network(files.client, token).connect("127.0.0.1", running.port, asyncio.Protocol)
        assert "token:bob" in principals(running)
        transport.abort()


@pytest.mark.parametrize("authorisation", ["on", "off"])
async def test_a_withdrawn_certificate_is_refused_and_ends_its_connections(
    tmp_path: Path, files: Files, authorisation: str
) -> None:
    auth = AuthConfig(logins="certificate", authorisation=authorisation)
    pair, other = (files.authority.client(name, name) for name in ("withdrawn", "other"))
    config = {one: replace(files.client, certificate=str(one.certificate), key=str(one.key)) for one in (pair, other)}
    async with guarded(tmp_path, files.bookie, auth) as running:
        connect_as = {one: running.network(config[one]).connect for one in (pair, other)}
        await running.security.note_certificate(pair.serial, "withdrawn", 1.0, 2.0)
        transport, _ = await connect_as[pair]("127.0.0.1", running.port, asyncio.Protocol)
        stays, _ = await connect_as[other]("127.0.0.1", running.port, asyncio.Protocol)
        await until(lambda: principals(running) == ["cert:other", "cert:withdrawn"])
        await running.security.withdraw_certificate(pair.serial)
        await running.security.withdraw_certificate(pair.serial)
        (listed,) = await running.security.certificates()
        assert listed == {
            "serial": f"{pair.serial:x}", "subject": "withdrawn", "issued_s": 1.0, "expires_s": 2.0, "withdrawn": True,
        }  # fmt: skip
        assert await closed(transport, 5.0)
        assert not stays.is_closing()
        said: list[bytes] = []

        class Heard(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                said.append(data)

        with contextlib.suppress(ConnectionError):  # the handshake ends a moment later on the bookie's side
            again, _ = await connect_as[pair]("127.0.0.1", running.port, Heard)
            again.write(wire_v3.encode_request(GetBookieInfo(1), 7))
            assert await closed(again, 5.0)
        assert said == []
        assert principals(running) == ["cert:other"]
        stays.abort()


async def _packet(reader: asyncio.StreamReader) -> Reply:
    async with asyncio.timeout(10):
        return wire_v3.decode_reply(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))[0]


@pytest.mark.parametrize("order", ["start begin", "begin start", "start+begin", "begin+start"])
@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_sasl_inside_tls_may_begin_in_clear_as_apaches_client_does(
    tmp_path: Path, files: Files, order: str, mode: str
) -> None:
    """Its START_TLS and its first AUTH come in either order, together or one after the other."""
    said = {"start": wire_v3.encode_request(StartTls(), 1), "begin": wire_v3.encode_request(Auth("sasl", b""), 2)}
    auth = AuthConfig(logins="sasl", sasl_users=str(_users(tmp_path)))
    async with guarded(tmp_path, replace(files.bookie, mode=mode), auth) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for part in order.split():
            received = sum(session.progress() for session in running.bookie.server.sessions)
            writer.write(b"".join(said[one] for one in part.split("+")))
            await until(lambda: sum(one.progress() for one in running.bookie.server.sessions) > received)  # noqa: B023
        assert await _packet(reader) == StartTlsReply(Code.OK)
        await writer.start_tls(TlsFiles(files.client, server_side=False).context(), server_hostname="127.0.0.1")
        login, challenge = SaslLogin("hd", "testpwd"), await _packet(reader)
        assert isinstance(challenge, AuthReply)
        writer.write(wire_v3.encode_request(Auth("sasl", login.answer(challenge.payload) or b""), 3))
        last = await _packet(reader)
        assert isinstance(last, AuthReply)
        assert login.answer(last.payload) is None
        assert principals(running) == ["sasl:hd"]
        writer.transport.abort()


@pytest.mark.parametrize(("mode", "answer"), [("optional", Code.OK), ("required", Code.UNAUTHORIZED)])
async def test_a_login_that_begins_in_clear_is_answered_where_no_tls_follows(
    tmp_path: Path, files: Files, mode: str, answer: Code
) -> None:
    auth = AuthConfig(logins="sasl", sasl_users=str(_users(tmp_path)))
    async with guarded(tmp_path, replace(files.bookie, mode=mode), auth) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(wire_v3.encode_request(Auth("sasl", b""), 2))
        assert (await _packet(reader)).code is answer
        writer.transport.abort()


def _users(directory: Path) -> Path:
    users = directory / "users"
    users.write_text("hd:testpwd\n")
    users.chmod(0o600)
    return users


async def test_sasl_as_apaches_clients_speak_it(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("# user:password\nhd:testpwd\n")
    users.chmod(0o600)
    async with guarded(tmp_path, auth=AuthConfig(logins="sasl", sasl_users=str(users))) as running:
        network = SecureNetwork(TcpNetwork(), None, login=lambda: SaslLogin("hd", "testpwd"))
        transport, _ = await network.connect("127.0.0.1", running.port, asyncio.Protocol)
        assert principals(running) == ["sasl:hd"]
        transport.abort()
        for user, password in (("hd", "wrong"), ("nobody", "testpwd")):
            network = SecureNetwork(TcpNetwork(), None, login=lambda u=user, p=password: SaslLogin(u, p))  # type: ignore[misc]
            with pytest.raises(LoginRefused):
                await network.connect("127.0.0.1", running.port, asyncio.Protocol)


async def test_a_bookie_without_logins_answers_a_login_as_apaches_do(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        transport, _ = await running.network(token="any").connect("127.0.0.1", running.port, asyncio.Protocol)
        transport.abort()


async def test_before_the_login_little_is_taken_and_not_for_long(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=TOKENS, login_s=0.3) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(wire_v3.encode_request(Read(1, 1), 1) * 8000)
        async with asyncio.timeout(10):
            answers = b""
            with contextlib.suppress(ConnectionResetError):  # for what was not read any more
                while data := await reader.read(65536):
                    answers += data
        assert answers.count(answers[:4]) < 8000
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write((2 << 20).to_bytes(4))  # a frame that is longer than what may come before the login
        async with asyncio.timeout(0.25):
            assert await reader.read() == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_a_v2_client_logs_in_with_v2_packets(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=TOKENS) as running:
        token = await running.token()
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(wire_v2.encode_request(Auth("buckram-token", token.encode())))
        packet = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        reply, _ = wire_v2.decode_reply(packet)[:2]
        assert isinstance(reply, AuthReply)
        assert principals(running) == ["token:alice"]
        writer.close()


async def test_the_bookies_own_user_needs_no_token_through_the_unix_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BUCKRAM_SOCKETS")
    async with guarded(tmp_path, auth=TOKENS) as running:
        store = await open_store(running.service)
        assert await store.instance_id()
        (session,) = running.bookie.server.sessions
        assert session.principal.name.startswith("unix:")
        assert session.principal.admin
        await store.close()
    async with guarded(tmp_path, auth=replace(TOKENS, unix_admin=0)) as running:
        with pytest.raises(AccessRefused, match="BUCKRAM_TOKEN"):
            await open_store(running.service)


@pytest.mark.parametrize("what", ["garbage", "expired", "weaker"])
async def test_a_token_through_the_unix_socket_counts_and_not_who_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.delenv("BUCKRAM_SOCKETS")
    async with guarded(tmp_path, auth=TOKENS) as running:
        given = "garbage" if what == "garbage" else await running.token(lasts_s=-1 if what == "expired" else 60)
        network = SecureNetwork(TcpNetwork(), None, login=lambda: TokenLogin(given))
        if what != "weaker":
            with pytest.raises(LoginRefused):
                await network.connect("127.0.0.1", running.port, asyncio.Protocol)
            await until(lambda: not running.bookie.server.sessions)
            return
        transport, _ = await network.connect("127.0.0.1", running.port, asyncio.Protocol)
        (session,) = running.bookie.server.sessions
        assert session.local
        assert (session.principal.name, session.principal.admin) == ("token:alice", False)
        transport.abort()


def test_an_empty_file_is_not_taken_for_no_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError, match="it is empty"):
        login_of(AuthConfig(token_file=str(tmp_path / "token")), "", {})


@pytest.mark.parametrize("what", ["garbage", "other", "sasl"])
async def test_a_credential_beside_a_certificate_counts_and_not_the_certificate(
    tmp_path: Path, files: Files, what: str
) -> None:
    async with guarded(tmp_path, files.bookie, AuthConfig(logins="certificate token")) as running:
        token = await running.token("bob") if what == "other" else "garbage"
        login = SaslLogin("hd", "testpwd") if what == "sasl" else TokenLogin(token)  # SASL is not taken there
        network = SecureNetwork(TcpNetwork(), TlsFiles(files.known_client, server_side=False), login=lambda: login)
        if what == "garbage":
            with pytest.raises(LoginRefused):
                await network.connect("127.0.0.1", running.port, asyncio.Protocol)
            return
        transport, _ = await network.connect("127.0.0.1", running.port, asyncio.Protocol)
        assert principals(running) == ["token:bob" if what == "other" else "cert:alice"]
        transport.abort()


async def test_a_word_more_that_gives_no_credential_is_answered_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apache's v2 client says it when its login by SASL has succeeded."""
    monkeypatch.delenv("BUCKRAM_SOCKETS")
    async with guarded(tmp_path, auth=TOKENS) as running:
        token = (await running.token()).encode()
        name = local_sockets.name_of("127.0.0.1", running.port)
        reader, writer = await asyncio.open_unix_connection(name)
        said = (Auth("buckram-token", token), Auth("buckram-token", b""), GetBookieInfo(1))
        for number, one in enumerate(said):
            writer.write(wire_v3.encode_request(one, number))
            assert (await _packet(reader)).code is Code.OK
        assert principals(running) == ["token:alice"]
        writer.close()


@pytest.mark.parametrize("first", ["request", "login"])
async def test_who_it_is_does_not_change_once_a_connection_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.delenv("BUCKRAM_SOCKETS")
    async with guarded(tmp_path, auth=TOKENS) as running:
        token = (await running.token()).encode()
        begun = wire_v3.encode_request(Auth("buckram-token", token) if first == "login" else GetBookieInfo(1), 1)
        name = local_sockets.name_of("127.0.0.1", running.port)
        reader, writer = await asyncio.open_unix_connection(name)
        writer.write(begun + wire_v3.encode_request(Auth("buckram-token", token), 2))
        answers = [(await _packet(reader)).code for _ in range(2)]
        assert sorted(answers) == sorted([Code.OK, Code.UNAUTHORIZED])
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("auth", "why"),
    [
        (AuthConfig(logins="token password"), "password is none of"),
        (AuthConfig(logins="certificate"), "client_certificates"),
        (AuthConfig(authorisation="on"), "set \\[auth\\] logins"),
        (AuthConfig(logins="sasl"), "sasl_users"),
        (AuthConfig(logins="sasl", sasl_users="/nowhere"), "/nowhere"),
    ],
)
async def test_settings_that_do_not_do(tmp_path: Path, auth: AuthConfig, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        async with guarded(tmp_path, TlsConfig(), auth):
            pass


async def test_secrets_are_in_no_log_error_report_or_representation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logins that succeed and fail in every way, at the most talkative level of every log."""
    caplog.set_level(logging.DEBUG)
    users, password, key = tmp_path / "users", "a-password-nobody-shall-see", "ab" * 32
    users.write_text(f"alice:{password}\n")
    users.chmod(0o600)
    (tmp_path / "default.keys").write_text(f"{key}\n")
    (tmp_path / "default.keys").chmod(0o600)
    auth = AuthConfig(logins="token sasl", sasl_users=str(users))
    encryption = EncryptionConfig(keys=str(tmp_path / "{namespace}.keys"))
    said: list[str] = []
    async with guarded(tmp_path, auth=auth) as running:
        token, expired = await running.token(), await running.token(lasts_s=-1)
        forged = token[:-8] + "AAAAAAAA"
        config = ClientConfig(local_read_bytes=0)
        async with connect(running.service, token=token, encryption=encryption, config=config) as client:
            async with client.create(ensemble=1) as writer:
                await writer.append(b"sealed")
            said.append(repr(client) + repr(client.services.encryption))
        for bad in (expired, forged, f"{token}x"):
            with pytest.raises(BuckramError) as error:
                async with connect(running.service, token=bad, config=config):
                    pass
            said.append(f"{error.value} {error.value!r} {error.value.__cause__!r} {error.value.__context__!r}")
        for given in (password, password + "x"):
            network = SecureNetwork(TcpNetwork(local=False), None, login=lambda: SaslLogin("alice", given))  # noqa: B023
            with contextlib.suppress(LoginRefused):
                transport, _ = await network.connect("127.0.0.1", running.port, asyncio.Protocol)
                transport.abort()
        said += [running.bookie.report().decode(errors="replace"), repr(running.bookie.info)]
        said.append(json.dumps(await running.security.tokens()))
    secrets = [token, expired, forged, password, key]
    for text in (*said, caplog.text):
        assert [secret for secret in secrets if secret in text] == []
    assert "a login is refused" in caplog.text
