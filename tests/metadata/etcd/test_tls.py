"""etcds://: TLS in front of a real etcd, with a certificate of the test's own."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from buckram.errors import ConfigError, MetadataUnavailable
from buckram.launch.etcd_server import EtcdServer
from buckram.metadata.etcd.keys import EtcdKeys
from buckram.metadata.uri import ETCD_CA, ETCD_CERT, open_store


def certificate(directory: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    cert, key = directory / "cert.pem", directory / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=etcd"]
    subprocess.run([*words, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


@asynccontextmanager
async def tls_in_front(server: EtcdServer, cert: Path, key: Path) -> AsyncIterator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    host, _, port = server.address.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


async def test_tls(etcd_server: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path)
    async with tls_in_front(etcd_server, cert, key) as address:
        uri = f"etcds://{address}/tls"
        monkeypatch.setenv(ETCD_CA, str(cert))
        store = await open_store(uri)
        instance = await store.initialise()
        assert (store.uri, await store.instance_id()) == (uri, instance)
        await store.close()
        stranger = EtcdKeys((address,), "/tls", tls=ssl.create_default_context(), timeout_s=1.0)
        with pytest.raises(MetadataUnavailable, match="certificate verify failed"):
            await stranger.get("/ledgers/INSTANCEID")
        await stranger.close()
    monkeypatch.setenv(ETCD_CERT, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"{ETCD_CERT} {tmp_path}/none"):
        await open_store(uri)
