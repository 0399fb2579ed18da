"""The first mistakes of whoever comes to a secured cluster: each is told what lacks and what it is called, as a refusal
that does not go away by waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.secure_kit import Files, Guarded, guarded

from buckram import Client, Namespace, connect
from buckram.cli.app import run
from buckram.cli.shared.exits import Exit, exit_code_of, line_of
from buckram.config import AuthConfig, ClientConfig, TlsConfig
from buckram.errors import AccessRefused, BuckramError


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "ca")


@pytest.fixture
async def there(tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Guarded]:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    async with guarded(tmp_path, files.bookie, AuthConfig(logins="token", authorisation="on")) as found:
        yield found


async def refusal(there: Guarded, tls: TlsConfig | None, token: str, scheme: str = "buckram+tls") -> str:
    with pytest.raises(AccessRefused) as caught:
        async with connect(f"{scheme}://127.0.0.1:{there.port}/", tls=tls, token=token):
            pass
    assert not caught.value.retryable
    assert exit_code_of(caught.value) == Exit.REFUSED
    return str(caught.value)


async def test_no_token(there: Guarded, files: Files) -> None:
    assert "has no token: set one (BUCKRAM_TOKEN," in await refusal(there, files.client, "")


async def test_a_word_that_is_no_token(there: Guarded, files: Files) -> None:
    said = await refusal(there, files.client, "garbage")
    assert "BUCKRAM_TOKEN" in said
    assert "it is no token" in said


async def test_a_token_that_was_changed(there: Guarded, files: Files) -> None:
    token = await there.token()
    assert "was changed" in await refusal(there, files.client, token[:-6] + "AAAAAA")


async def test_a_token_that_has_ended(there: Guarded, files: Files) -> None:
    end = time.time() // 60 * 60 - 3570.0  # in the middle of a minute, which is what the text says
    _, token = await there.security.create_token("alice", (), end - 3600, end)
    ended = time.strftime("%Y-%m-%d at %H:%M UTC", time.gmtime(end))
    assert f"it has ended, on {ended}" in await refusal(there, files.client, token)


async def test_no_authority_and_another_one(there: Guarded, files: Files, tmp_path: Path) -> None:
    other = Files(tmp_path / "other")
    for tls in (replace(files.client, ca=""), other.client):
        assert "BUCKRAM_CA" in await refusal(there, tls, await there.token())


async def test_no_tls(there: Guarded) -> None:
    for token in ("", await there.token()):
        assert "buckram+tls://" in await refusal(there, TlsConfig(), token, "buckram")


@pytest.mark.parametrize("secured", [True, False])
async def test_no_login_beside_a_store_that_is_opened_directly(there: Guarded, files: Files, secured: bool) -> None:
    """Metadata are read, and the bookie that has the entries asks who that is."""
    token, config = await there.token("root", "admin"), ClientConfig(local_read_bytes=0)
    uri = f"buckram+tls://127.0.0.1:{there.port}/"
    tls, said = files.client if secured else None, "it asks for a login, and there is no token: set one"
    async with connect(uri, tls=files.client, token=token, config=config) as root, root.create(ensemble=1) as writer:
        await writer.append(b"x")
        async with connect(there.store.uri, tls=tls, config=config) as client, asyncio.timeout(10):
            for attempt in (reads, recovers, creates):
                with pytest.raises(BuckramError, match=said) as caught:
                    await attempt(client, writer.ledger_id)
                assert exit_code_of(caught.value) == Exit.REFUSED
                assert "may succeed later" not in line_of(caught.value)
                assert not caught.value.retryable


async def reads(client: Client, ledger_id: int) -> None:
    async with client.open(ledger_id) as reader:
        await reader.read_payloads(0, 0)


async def recovers(client: Client, ledger_id: int) -> None:
    async with client.recover(ledger_id):
        pass


async def creates(client: Client, _ledger_id: int) -> None:
    async with client.create(ensemble=1) as writer:
        await writer.append(b"x")


async def test_no_login_beside_a_store_with_a_stream(there: Guarded, files: Files) -> None:
    """A reader of a stream would wait a minute for bookies that are away; for a login it does not."""
    token, config = await there.token("root", "admin"), ClientConfig(local_read_bytes=0)
    uri = f"buckram+tls://127.0.0.1:{there.port}/"
    async with connect(uri, tls=files.client, token=token, config=config) as root:
        await root.namespaces.create("shop", ensemble=(1, 1, 1))
        ns = root.namespace("shop")
        await ns.create("orders")
        async with ns.writer("orders") as writer:
            await writer.append(b"x")
    async with connect(there.store.uri, tls=files.client, config=config) as client, asyncio.timeout(20):
        ns = client.namespace("shop")
        for attempt in (reads_stream, appends):
            with pytest.raises(BuckramError, match="it asks for a login") as caught:
                await attempt(ns)
            assert exit_code_of(caught.value) == Exit.REFUSED, line_of(caught.value)


async def reads_stream(ns: Namespace) -> None:
    async with ns.read("orders", start="earliest") as reader:
        async for _ in reader:
            return


async def appends(ns: Namespace) -> None:
    async with ns.writer("orders") as writer:
        await writer.append(b"y")


async def test_no_login_and_the_health_of_the_cluster(
    there: Guarded, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bookie that asks for a login is well: nobody is told to restart it."""
    for variable in ("BUCKRAM_TOKEN", "BUCKRAM_CA"):
        monkeypatch.delenv(variable, raising=False)
    for words in (["status"], ["doctor"], ["cluster", "check"]):
        assert await asyncio.to_thread(run, [*words, "--metadata", there.store.uri]) == Exit.REFUSED, words
        said = capfd.readouterr()
        assert "BUCKRAM_TOKEN" in said.err
        assert "restart" not in said.out + said.err


async def test_no_login_and_a_bookie_without_a_registration(
    there: Guarded, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bookie that asks for a login is not gone: it is not taken out."""
    for variable in ("BUCKRAM_TOKEN", "BUCKRAM_CA"):
        monkeypatch.delenv(variable, raising=False)
    assert there.bookie.info is not None
    name = there.bookie.info.bookie_id
    await there.store.unregister(name)
    assert await asyncio.to_thread(run, ["bookie", "forget", name, "--metadata", there.store.uri]) == Exit.FAILED
    assert f"bookie {name} is kept: it answers at" in capfd.readouterr().err
