"""TLS on a bookie's port: both beginnings, refusals, files that change, and entries through it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from tests.support.bookie_kit import CONFIG, STORE, memory_metadata
from tests.support.polling import until
from tests.support.secure_kit import Files

from buckram import connect
from buckram.bookie.process import Bookie
from buckram.bookie.service.security.connection_gate import ConnectionGate
from buckram.config import ClientConfig, NetConfig, TlsConfig
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.messages import GetBookieInfo, StartTls
from buckram.errors import BuckramError, ConfigError
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.net.security.certificate_authority import Authority
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.runtime.net.security.secure_network import LoginRefused, SecureNetwork, secured, tls_of_environment
from buckram.runtime.net.tcp import TcpNetwork
from buckram.runtime.production import production_runtime


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def bookie(directory: Path, tls: TlsConfig, login_s: float = 10.0) -> AsyncIterator[tuple[Bookie, TreeStore]]:
    metadata = await memory_metadata()
    os.makedirs(directory, exist_ok=True)
    disk = LocalDisk(str(directory), "inline")
    door = ConnectionGate(tls, login_s=login_s)
    made = Bookie(production_runtime(), disk, metadata, CONFIG, STORE, NetConfig(), door=door)
    await made.start()
    try:
        yield made, metadata
    finally:
        await made.stop()
        await metadata.close()
        disk.close()


def port_of(made: Bookie) -> int:
    assert made.info is not None
    assert made.info.address is not None
    return made.info.address.port


async def written_and_read(metadata: TreeStore, tls: TlsConfig, protocol: int = 2) -> bool:
    payloads = [os.urandom(size) for size in (0, 1, 70_000, 1_000_000)] + [b"small"] * 500
    async with connect(metadata, tls=tls, config=ClientConfig(wire_protocol=protocol, local_read_bytes=0)) as client:
        async with client.create(ensemble=1) as writer:
            await asyncio.gather(*(writer.append(one) for one in payloads))
        async with client.open(writer.ledger_id) as reader:
            return await reader.read_payloads(0, len(payloads) - 1) == payloads


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("start", ["starttls", "first-byte"])
async def test_entries_go_through_tls(tmp_path: Path, files: Files, start: str, protocol: int) -> None:
    async with bookie(tmp_path / "b", files.bookie) as (_, metadata):
        assert await written_and_read(metadata, replace(files.client, start=start), protocol)


async def test_one_port_serves_both_where_tls_is_optional(tmp_path: Path, files: Files) -> None:
    async with bookie(tmp_path / "b", replace(files.bookie, mode="optional")) as (_, metadata):
        assert await written_and_read(metadata, TlsConfig())
        assert await written_and_read(metadata, files.client)


async def test_what_is_in_clear_is_refused_where_tls_is_required(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")  # through the Unix socket the kernel says who it is
    async with bookie(tmp_path / "b", files.bookie) as (made, metadata):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(made))
        writer.write(wire_v3.encode_request(GetBookieInfo(1), 7))
        packet = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        assert wire_v3.decode_reply(packet)[0].code.name == "UNAUTHORIZED"
        writer.close()
        with pytest.raises(BuckramError):
            await written_and_read(metadata, TlsConfig())


async def test_bytes_in_clear_behind_starttls_end_the_connection(tmp_path: Path, files: Files) -> None:
    async with bookie(tmp_path / "b", files.bookie) as (made, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(made))
        writer.write(wire_v3.encode_request(StartTls(), 1) + wire_v3.encode_request(GetBookieInfo(1), 2))
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_a_peer_that_never_begins_is_closed(tmp_path: Path, files: Files) -> None:
    async with bookie(tmp_path / "b", files.bookie, login_s=0.2) as (made, metadata):
        for first in (b"", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(made))
            writer.write(first)
            async with asyncio.timeout(10):
                assert not await reader.read()
            writer.close()
        assert await written_and_read(metadata, files.client)


async def test_a_certificate_is_replaced_under_load(tmp_path: Path, files: Files) -> None:
    """Connections that are open stay, new ones see the new certificate, and nothing that was written is lost."""
    pair = files.authority.bookie("changing", ["127.0.0.1"])
    server = replace(files.bookie, certificate=str(pair.certificate), key=str(pair.key))

    def serial() -> int:
        return x509.load_pem_x509_certificate(pair.certificate.read_bytes()).serial_number

    async def shown(port: int) -> int:
        context = TlsFiles(files.client, server_side=False).context()
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        found = int(writer.get_extra_info("ssl_object").getpeercert()["serialNumber"], 16)
        writer.close()
        return found

    async with (
        bookie(tmp_path / "b", server) as (made, metadata),
        connect(metadata, tls=files.client, config=ClientConfig(local_read_bytes=0)) as client,
        client.create(ensemble=1) as writer,
    ):
        acked: list[int] = []

        async def write() -> None:
            while True:
                acked.append(await writer.append(b"%d" % len(acked)))

        load = asyncio.create_task(write())
        for _ in range(3):
            before, entries = await shown(port_of(made)), len(acked)
            files.authority.bookie("changing", ["127.0.0.1"])
            assert await shown(port_of(made)) == serial() != before
            await until(lambda: len(acked) > entries + 20)  # noqa: B023
        load.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await load
        assert writer.ensemble_changes == 0
        await writer.close()
        async with client.open(writer.ledger_id) as reader:
            found = await reader.read_payloads(0, acked[-1])
        assert found == [b"%d" % number for number in range(len(acked))]


async def test_random_bytes_before_and_inside_the_handshake(tmp_path: Path, files: Files) -> None:
    async with bookie(tmp_path / "b", files.bookie, login_s=0.5) as (made, metadata):
        for number in range(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(made))
            writer.write((b"\x16\x03\x01" if number % 2 else b"") + os.urandom(300))
            async with asyncio.timeout(10):
                await reader.read()
            writer.close()
        assert await written_and_read(metadata, files.client)


@pytest.mark.parametrize("wrong", ["host", "authority", "expired", "no-client-certificate"])
async def test_certificates_that_do_not_do(tmp_path: Path, files: Files, wrong: str) -> None:
    server, client = files.bookie, files.known_client
    if wrong == "host":
        pair = files.authority.bookie("elsewhere", ["bookie.example"])
        server = replace(server, certificate=str(pair.certificate), key=str(pair.key))
    elif wrong == "authority":
        client = TlsConfig("required", str(Authority(tmp_path / "other").certificate))
    elif wrong == "expired":
        pair = files.authority.bookie("expired", ["127.0.0.1"], days=-1)
        server = replace(server, certificate=str(pair.certificate), key=str(pair.key))
    else:
        server, client = replace(server, client_certificates="required"), files.client
    async with bookie(tmp_path / "b", server) as (made, _):
        network = SecureNetwork(TcpNetwork(), TlsFiles(client, server_side=False))
        lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        class Waiting(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                lost.set_result(exc)

        try:
            await network.connect("127.0.0.1", port_of(made), Waiting)
        except ConnectionError as error:
            said = str(error)
        else:  # with TLS 1.3 a client hears of the refusal of its certificate behind the handshake
            async with asyncio.timeout(10):
                said = str(await lost)
        assert "TLS: " in said
        if wrong == "host":
            network = SecureNetwork(TcpNetwork(), TlsFiles(replace(client, verify_host=0), server_side=False))
            transport, _ = await network.connect("127.0.0.1", port_of(made), asyncio.Protocol)
            transport.abort()


async def test_a_client_with_tls_names_a_bookie_without(tmp_path: Path, files: Files) -> None:
    metadata = await memory_metadata()
    disk = LocalDisk(str(tmp_path), "inline")
    made = Bookie(production_runtime(), disk, metadata, CONFIG, STORE, NetConfig())
    await made.start()
    try:
        network = secured(TcpNetwork(), files.client)
        with pytest.raises(LoginRefused, match="does not offer TLS"):
            await network.connect("127.0.0.1", port_of(made), asyncio.Protocol)
    finally:
        await made.stop()
        await metadata.close()
        disk.close()


async def test_files_that_change_count_for_new_connections_and_no_open_one_ends(tmp_path: Path, files: Files) -> None:
    authority = Authority(tmp_path / "mine")
    pair = authority.bookie("bookie", ["127.0.0.1"])
    server = TlsConfig("required", str(authority.certificate), str(pair.certificate), str(pair.key))
    client = TlsConfig("required", str(authority.certificate))

    async def serial(made: Bookie) -> tuple[asyncio.Transport, int]:
        transport, _ = await secured(TcpNetwork(), client).connect("127.0.0.1", port_of(made), asyncio.Protocol)
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        found = tls.getpeercert()
        assert found is not None
        return transport, int(str(found["serialNumber"]), 16)

    async with bookie(tmp_path / "b", server) as (made, metadata):
        first, before = await serial(made)
        authority.bookie("bookie", ["127.0.0.1"])
        second, after = await serial(made)
        assert before != after
        assert not first.is_closing()
        pair.certificate.write_bytes(b"half a certif")
        third, kept = await serial(made)
        assert kept == after
        for transport in (first, second, third):
            transport.abort()
        assert await written_and_read(metadata, client)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"key": ""}, "certificate and key"),
        ({"certificate": "/nowhere.pem"}, "/nowhere.pem"),
        ({"ca": "/nowhere.pem"}, "/nowhere.pem"),
        ({"ca": "", "client_certificates": "required"}, "name in `ca`"),
    ],
)
def test_settings_that_do_not_do(files: Files, change: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        TlsFiles(replace(files.bookie, **change), server_side=True)


def test_a_key_that_others_can_read_and_one_of_another_certificate(tmp_path: Path, files: Files) -> None:
    open_key = tmp_path / "open.key"
    open_key.write_bytes(Path(files.bookie.key).read_bytes())
    open_key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 0600"):
        TlsFiles(replace(files.bookie, key=str(open_key)), server_side=True)
    with pytest.raises(ConfigError, match="that of the certificate"):
        TlsFiles(replace(files.bookie, key=files.known_client.key), server_side=True)


def test_files_that_were_refused_count_as_soon_as_they_do(tmp_path: Path) -> None:
    """Also when nothing of the files changes but who may read them."""
    authority = Authority(tmp_path / "mine")
    pair = authority.bookie("bookie", ["127.0.0.1"])
    config = TlsConfig("required", str(authority.certificate), str(pair.certificate), str(pair.key))
    made = TlsFiles(config, server_side=True)
    first, ends = made.context(), made.ends_s()
    authority.bookie("bookie", ["127.0.0.1"])
    pair.key.chmod(0o644)
    whole = pair.certificate.read_bytes()
    aside = pair.certificate.rename(tmp_path / "aside")
    assert [made.context(), made.context()] == [first, first]
    assert made.ends_s() == 0
    aside.rename(pair.certificate)
    assert pair.certificate.read_bytes() == whole
    assert made.context() is first
    pair.key.chmod(0o600)
    assert made.context() is not first
    assert made.ends_s() >= ends


def test_a_ca_in_the_environment_turns_tls_on() -> None:
    assert tls_of_environment({}).mode == "off"
    assert tls_of_environment({"BUCKRAM_CA": "/x"}) == TlsConfig("required", "/x")
    assert tls_of_environment({"BUCKRAM_CA": "/x", "BUCKRAM_TLS_MODE": "off"}).mode == "off"
    assert tls_of_environment({"BUCKRAM_TLS_CA": "/y", "BUCKRAM_CA": "/x"}).ca == "/y"
