"""A relay between a client and two gateways that are killed: what was sent counts once, and what is read is whole."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.serve.gateway.kit import serving
from tests.serve.http.kit import Raw
from tests.serve.webhdfs.gateway_process import GatewayProcess
from tests.serve.webhdfs.kit import Remote, Web
from tests.serve.webhdfs.wire import Wire
from tests.support.polling import until

from buckram.cluster import Client
from buckram.core.security.certificates import life_of
from buckram.runtime.net.security.certificate_authority import Authority, alone
from buckram.spark.relay.failover import Patience
from buckram.spark.relay.http_messages import Body, BodyMemory
from buckram.spark.relay.server import Relay, RelayTls, relay_to
from buckram.spark.relay.trust_store import certificate_in, relay_identity
from buckram.testing import Cluster, ThreadedCluster

MIB = 1024 * 1024
LARGE = b"".join(number.to_bytes(4, "big") for number in range(2 * MIB))
IMPATIENT = Patience(total=0.5, silence=0.3)


@pytest.fixture(scope="module")
def pair(sqlite_cluster: ThreadedCluster) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    with GatewayProcess(sqlite_cluster.uri) as first, GatewayProcess(sqlite_cluster.uri) as second:
        yield first, second


@dataclass
class Relayed:
    """A relay to two gateways, with a wire to each; `web` is a connection to it, and `direct` one to the second."""

    relay: Relay
    wires: tuple[Wire, Wire]
    web: Web
    direct: Web
    place: str = ""

    def name(self, file: str) -> str:
        return f"{self.place}/{file}"


@asynccontextmanager
async def relayed(
    *addresses: str, place: str, patience: Patience | None = None, tls: RelayTls | None = None
) -> AsyncIterator[Relayed]:
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(Wire(address)) for address in addresses]
        room = BodyMemory(total=8 * MIB, each=MIB)
        relay = await stack.enter_async_context(Relay((first.address, second.address), patience, tls=tls, room=room))
        scheme, trusted = ("http", [None, None]) if tls is None else ("https", [trusting_relay(), tls.gateways()])
        web, direct = [
            await Web.to(f"{scheme}://{address}", context)
            for address, context in zip((relay.address, addresses[1]), trusted, strict=True)
        ]
        stack.push_async_callback(web.close)
        stack.push_async_callback(direct.close)
        yield Relayed(relay, (first, second), web, direct, place)
        await until(lambda: room.left == 8 * MIB, "bodies were not given up")


def trusting_relay() -> ssl.SSLContext:
    """As a JVM trusts it that has the store which `configure` makes."""
    return ssl.create_default_context(cadata=certificate_in(relay_identity()).decode())


@pytest.fixture
async def killable(pair: tuple[GatewayProcess, GatewayProcess]) -> AsyncIterator[Relayed]:
    """On gateways that are processes, which the test may kill."""
    async with relayed(*(one.address for one in pair), place=f"/default/relay-{os.urandom(4).hex()}") as running:
        yield running
    for one in pair:
        one.start_again()


@pytest.fixture
async def near(three_bookies: Cluster, client: Client) -> AsyncIterator[Relayed]:
    """On gateways in this process, which the test may leave without answers."""
    async with (
        three_bookies.client() as other,
        serving(client) as first,
        serving(other) as second,
        relayed(first.url.removeprefix("http://"), second.url.removeprefix("http://"), place="/default") as running,
    ):
        yield running


async def test_files_go_in_and_out_in_memory_and_in_a_file(near: Relayed) -> None:
    web = near.web
    for name, data in (("empty", b""), ("small", b"0123456789"), ("large", LARGE)):
        await web.create(near.name(name), data, pieces=5)
        assert await web.open(near.name(name)) == data
        assert await near.direct.open(near.name(name)) == data
    assert await web.open(near.name("small"), offset=3, length=4) == b"3456"
    assert await web.list("/default") == ["empty", "large", "small"]
    assert near.wires[1].there == 0
    with pytest.raises(Remote, match="FileNotFoundException: File does not exist"):
        await web.status(near.name("none"))
    with pytest.raises(Remote, match=r"UnsupportedOperationException: .*APPEND"):
        await web.answer(f"POST {web.place(near.name('small'), 'APPEND')}")


@pytest.mark.share(4)
@pytest.mark.parametrize("sent", [1, 5 * MIB])
async def test_a_body_that_is_under_way_is_sent_to_the_gateway_that_is_left(
    killable: Relayed, pair: tuple[GatewayProcess, GatewayProcess], sent: int
) -> None:
    await killable.web.mkdirs(killable.place)
    place = await killable.web.redirected(f"PUT {killable.web.place(killable.name('file'), 'CREATE')}")
    killable.wires[0].after_sent(sent, pair[0].kill)
    answer = await killable.web.answer(f"PUT {place}", LARGE)
    assert answer.status == 201
    assert await killable.web.open(killable.name("file")) == LARGE
    assert await killable.web.list(killable.place) == ["file"]


@pytest.mark.share(4)
async def test_a_file_is_its_own_first_attempt_when_the_answer_was_lost(
    killable: Relayed, pair: tuple[GatewayProcess, GatewayProcess]
) -> None:
    web, name = killable.web, killable.name("file")
    place = await web.redirected(f"PUT {web.place(name, 'CREATE', overwrite='false')}")
    killable.wires[0].after_answered(1, pair[0].kill)
    assert (await web.answer(f"PUT {place}", b"mine")).status == 201
    with pytest.raises(Remote, match="FileAlreadyExistsException"):
        await web.answer(f"PUT {place}", b"another")
    assert await web.open(name) == b"mine"


async def test_a_file_of_another_is_not_replaced_when_the_request_was_lost(near: Relayed) -> None:
    web, name = near.web, near.name("file")
    place = await web.redirected(f"PUT {web.place(name, 'CREATE', overwrite='false')}")
    await near.direct.create(name, b"theirs", overwrite=False)
    near.wires[0].after_sent(1, lambda: None)
    with pytest.raises(Remote, match="FileAlreadyExistsException"):
        await web.answer(f"PUT {place}", b"mine")
    assert await web.open(name) == b"theirs"


async def test_changes_whose_answers_were_lost_are_done_once_and_say_so(near: Relayed) -> None:
    web, wire = near.web, near.wires[0]
    await web.create(near.name("a/b/file"), b"x")
    for change in (
        lambda: web.mkdirs(near.name("c/d")),
        lambda: web.rename(near.name("a/b"), near.name("c/d")),  # Into a directory that is there.
        lambda: web.rename(near.name("c/d/b"), near.name("e")),
        lambda: web.rename2(near.name("e"), near.name("f")),
        lambda: web.rename(near.name("f/file"), near.name("g")),
        lambda: web.delete(near.name("g")),
        lambda: web.delete(near.name("c"), recursive=True),
    ):
        wire.after_answered(1)
        assert await change() in (True, None)
        near.relay._gateways._addresses.sort(key=[one.address for one in near.wires].index)
    assert await web.list("/default") == ["a", "f"]
    # Without a lost answer nothing is taken for done.
    assert not await web.delete(near.name("g"))
    assert not await web.rename(near.name("none"), near.name("f"))


@pytest.mark.share(4)
async def test_a_file_that_is_read_goes_on_in_the_middle(
    killable: Relayed, pair: tuple[GatewayProcess, GatewayProcess]
) -> None:
    web, name = killable.web, killable.name("file")
    await web.create(name, LARGE)
    place = await web.redirected(f"GET {web.place(name, 'OPEN', offset=5)}")
    killable.wires[0].after_answered(5 * MIB, pair[0].kill)
    answer = await web.answer(f"GET {place}")
    assert answer.body == LARGE[5:]
    assert await web.open(name) == LARGE


@pytest.mark.share(4)
async def test_with_tls_what_is_under_way_goes_on_with_the_gateway_that_is_left(
    sqlite_cluster: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    authority, uri = Authority(tmp_path / "authority"), sqlite_cluster.uri
    made = authority.bookie("gateway", ["localhost", "127.0.0.1"])
    pair = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    place = f"/default/relay-{os.urandom(4).hex()}"
    with GatewayProcess(uri, *pair) as first, GatewayProcess(uri, *pair) as second:
        tls = RelayTls.of(str(authority.certificate))
        async with relayed(first.address, second.address, place=place, tls=tls) as running:
            web, name = running.web, running.name("file")
            written = await web.redirected(f"PUT {web.place(name, 'CREATE')}")
            running.wires[0].after_sent(5 * MIB, first.kill)
            answer = await web.answer(f"PUT {written}", LARGE)
            assert (answer.status, answer.headers["location"]) == (201, f"swebhdfs://localhost{name}")
            assert await running.direct.open(name) == LARGE
            first.start_again()
            read = await web.redirected(f"GET {web.place(name, 'OPEN', offset=5)}")
            running.wires[1].after_answered(5 * MIB, second.kill)
            assert (await web.answer(f"GET {read}")).body == LARGE[5:]
        # A gateway of another authority is no gateway, whatever it answers.
        strange = RelayTls(tls.own, RelayTls.of(str(Authority(tmp_path / "other").certificate)).gateways)
        async with Relay((first.address,), IMPATIENT, tls=strange) as relay:
            web = await Web.to(f"https://{relay.address}", trusting_relay())
            with pytest.raises(Remote, match=r"no gateway could do it within 0\.5 s: .*certificate"):
                await web.status(name)
            await web.close()


async def test_the_relay_of_gateways_with_tls_is_known_and_serves_nobody_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ca = str(Authority(tmp_path / "authority").certificate)
    identity = relay_identity()
    assert (stat.S_IMODE(identity.stat().st_mode), stat.S_IMODE(identity.parent.stat().st_mode)) == (0o600, 0o700)
    assert b"PRIVATE" not in certificate_in(identity)
    assert (relay_identity(), identity.read_bytes()) == (identity, relay_identity().read_bytes())
    async with Relay(("127.0.0.1:1",), IMPATIENT, tls=RelayTls.of(ca)) as relay:
        plain = await Raw.to(f"http://{relay.address}")
        await plain.send(b"GET /webhdfs/v1/ HTTP/1.1\r\n\r\n")
        assert await plain.ended()
        await plain.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await Raw.to(f"https://{relay.address}", ssl.create_default_context(cafile=ca))
    # One that ends soon is made anew, and so is what is none.
    for worn in (alone("relay", ("localhost",), days=1 / 1440), b"nothing"):
        identity.write_bytes(worn)
        assert relay_identity().read_bytes() != worn
        assert not life_of(identity.read_text()).due(time.time() + 86_400)


async def test_a_file_that_became_another_one_meanwhile_is_cut(near: Relayed) -> None:
    web, name = near.web, near.name("file")
    await web.create(name, LARGE)
    place = await web.redirected(f"GET {web.place(name, 'OPEN')}")
    near.wires[0].held.clear()
    reading = asyncio.ensure_future(web.answer(f"GET {place}"))
    await until(lambda: near.wires[0].back > 0)
    await near.direct.create(name, LARGE[::-1])
    near.wires[0].after_answered(5 * MIB)
    near.wires[0].held.set()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await reading


@pytest.mark.share(4)
async def test_requests_wait_until_a_gateway_is_back(
    killable: Relayed, pair: tuple[GatewayProcess, GatewayProcess]
) -> None:
    web, name = killable.web, killable.name("file")
    place = await web.redirected(f"PUT {web.place(name, 'CREATE')}")
    for one in pair:
        one.kill()
    creating = asyncio.ensure_future(web.answer(f"PUT {place}", LARGE))
    await asyncio.to_thread(pair[1].start)
    assert (await creating).status == 201
    assert await web.open(name) == LARGE


async def test_without_a_gateway_an_error_says_why() -> None:
    async with Relay(("127.0.0.1:1", "127.0.0.1:2"), IMPATIENT) as relay:
        web = await Web.to(f"http://{relay.address}")
        with pytest.raises(Remote, match=r"IOException: no gateway could do it within 0.5 s: 127.0.0.1:1: .*; 127.0.0"):
            await web.status("/default")
        await web.close()


async def test_a_gateway_that_is_silent_or_has_no_room_is_passed_over(three_bookies: Cluster, client: Client) -> None:
    async with three_bookies.client() as other, serving(client) as first, serving(other) as second:
        addresses = [one.url.removeprefix("http://") for one in (first, second)]
        async with relayed(*addresses, place="/default", patience=Patience(silence=0.5)) as running:
            first.files.transfers.share.limit = 0
            await running.web.create("/default/file", b"x")
            assert running.wires[1].there > 0
            first.files.transfers.share.limit = 1
            running.wires[1].held.clear()
            await running.web.create("/default/file", b"y")
            assert await running.web.open("/default/file") == b"y"


async def test_who_waits_hears_that_there_will_be_an_answer(three_bookies: Cluster, client: Client) -> None:
    async with (
        serving(client) as gateway,
        Wire(gateway.url.removeprefix("http://")) as wire,
        Relay((wire.address,), sign_of_life_s=0.05) as relay,
    ):
        wire.held.clear()
        raw = await Raw.to(f"http://{relay.address}")
        await raw.send(b"GET /webhdfs/v1/default?op=GETFILESTATUS HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(3):
            assert (await raw.answer(has_body=False)).status == 100
        wire.held.set()
        while (answer := await raw.answer(has_body=False)).status == 100:
            pass
        assert answer.status == 200
        await raw.close()


async def test_what_is_asked_by_one_that_is_gone_is_not_sent_again(near: Relayed) -> None:
    place = await near.web.redirected(f"PUT {near.web.place(near.name('file'), 'CREATE')}")
    near.wires[0].held.clear()
    raw = await Raw.to(f"http://{near.relay.address}")
    await raw.send(f"PUT {place} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx".encode())
    sent = near.wires[0].there
    await until(lambda: near.wires[0].there > sent)
    await raw.close()
    sent = near.wires[0].there
    near.wires[0].cut()
    await until(lambda: len(near.relay._open) == 1, "the relay went on")
    assert (near.wires[0].there, near.wires[1].there) == (sent, 0)


async def test_a_body_that_is_cut_is_sent_to_nobody(near: Relayed) -> None:
    place = await near.web.redirected(f"PUT {near.web.place(near.name('file'), 'CREATE')}")
    sent = near.wires[0].there
    raw = await Raw.to(f"http://{near.relay.address}")
    await raw.send(
        f"PUT {place} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n".encode()
    )
    await until(lambda: len(near.relay._open) == 2)
    await raw.close()
    await until(lambda: len(near.relay._open) == 1)
    assert near.wires[0].there == sent


async def test_a_file_that_cannot_be_kept_is_refused_with_the_reason(
    near: Relayed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(Remote, match=r"IOException: a file of \d+ bytes and more cannot be kept until it is sent"):
        await near.web.create(near.name("file"), LARGE)
    assert not await near.direct.exists(near.name("file"))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET /v2/openapi.json HTTP/1.1\r\n\r\n", b"only files are here"),
        (b"HEAD /webhdfs/v1/ HTTP/1.1\r\n\r\n", b"only files are here"),
        (b"nonsense\r\n\r\n", b"begins no message"),
        (b"PUT /webhdfs/v1/ HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"is no number"),
        (b"GET /webhdfs/v1/" + b"x" * 300_000 + b"\r\n\r\n", b"a head of more than"),
    ],
)
async def test_it_is_a_relay_for_files_alone(sent: bytes, why: bytes) -> None:
    async with Relay(("127.0.0.1:1",), IMPATIENT) as relay:
        raw = await Raw.to(f"http://{relay.address}")
        await raw.send(sent)
        answer = await raw.answer()
        assert (answer.status, why in answer.body) == (400, True), answer
        assert await raw.ended()
        await raw.close()


def test_bodies_share_their_room_in_memory() -> None:
    room = BodyMemory(total=10, each=6)
    with Body(room) as first, Body(room) as second, Body(room) as third:
        for body, data in ((first, b"1234"), (second, b"12345"), (third, b"12")):
            body.add(data)
        assert (room.left, third._file is not None) == (1, True)
        first.add(b"567")
        assert room.left == 5
        assert [b"".join(body.pieces()) for body in (first, second, third)] == [b"1234567", b"12345", b"12"]
        assert [b"".join(body.pieces()) for body in (first, second)] == [b"1234567", b"12345"]
    assert room.left == 10


def test_a_process_has_one_relay_for_each_set_of_gateways() -> None:
    first = relay_to(("127.0.0.1:1", "127.0.0.1:2"))
    assert relay_to(("127.0.0.1:1", "127.0.0.1:2")) == first
    assert relay_to(("127.0.0.1:1", "127.0.0.1:3")) != first
