"""Posting to a real HTTP server: headers and compression that OTLP's variables name, and what failures mean."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from buckram.errors import ConfigError
from buckram.runtime.telemetry.sending import NotPosted, Post

TIMEOUT_S = 5.0


class Server:
    def __init__(self) -> None:
        self.code = 200
        self.got: list[tuple[dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(outer.code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1/traces"


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.http.shutdown()
    thread.join()
    running.http.server_close()


def test_bytes_arrive_with_the_headers_that_variables_name(server: Server) -> None:
    variables = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc,x-tenant=shop"}
    Post(server.url, TIMEOUT_S, variables)(b"spans")
    variables["OTEL_EXPORTER_OTLP_TRACES_HEADERS"] = "x-tenant=traces"
    Post(server.url, TIMEOUT_S, variables)(b"more")
    (first, body), (second, _) = server.got
    assert (body, first["content-type"]) == (b"spans", "application/x-protobuf")
    assert (first["authorization"], first["x-tenant"]) == ("Bearer abc", "shop")
    assert (second["x-tenant"], "authorization" in second) == ("traces", False)


@pytest.mark.parametrize(("way", "bits"), [("gzip", 31), ("deflate", 15)])
def test_bodies_are_compressed_where_that_is_wanted(server: Server, way: str, bits: int) -> None:
    Post(server.url, TIMEOUT_S, {"OTEL_EXPORTER_OTLP_COMPRESSION": way})(b"spans" * 100)
    ((headers, body),) = server.got
    assert headers["content-encoding"] == way
    assert zlib.decompress(body, bits) == b"spans" * 100


@pytest.mark.parametrize(("code", "again"), [(400, False), (404, False), (429, True), (500, False), (503, True)])
def test_what_the_collector_answers_says_whether_to_try_again(server: Server, code: int, again: bool) -> None:
    server.code = code
    with pytest.raises(NotPosted, match=f"answers {code}") as caught:
        Post(server.url, TIMEOUT_S, {})(b"spans")
    assert caught.value.again is again


def test_a_collector_that_is_away_may_come_back() -> None:
    with pytest.raises(NotPosted, match="refused") as caught:
        Post("http://127.0.0.1:9/v1/traces", TIMEOUT_S, {})(b"spans")
    assert caught.value.again


def test_variables_that_cannot_be_carried_out_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be none, gzip or deflate"):
        Post("http://127.0.0.1:9", TIMEOUT_S, {"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"})
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_"):
        Post("https://127.0.0.1:9", TIMEOUT_S, {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "none.pem")})
