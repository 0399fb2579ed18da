"""Sending of ended spans to the collector: a bounded list, a thread that sends its contents, and the posts of OTLP.

OTLP goes over HTTP, with headers, compression and TLS from its own environment variables:
OTEL_EXPORTER_OTLP_TRACES_HEADERS, _COMPRESSION, _CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY, or the same without
TRACES.

Not here: the bytes (`runtime/telemetry/otlp.py`).
"""

from __future__ import annotations

import gzip
import http.client
import logging
import ssl
import threading
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, Request, build_opener

from opentelemetry.util.re import parse_env_headers

from buckram.errors import ConfigError
from buckram.runtime.telemetry.otlp import Ended, request_of
from buckram.seams import Counter

MOST_WAITING = 16_384
"""Appends with their steps, and other spans, about 1 KB each; more are dropped, and counted."""

_AT_ONCE = 1024
"""Maximum spans in one request."""

_log = logging.getLogger("buckram.telemetry")


class Poster(Protocol):
    def __call__(self, body: bytes) -> None:
        """Raises NotPosted."""
        ...


class SpanSender:
    """`put` takes spans from any thread; from `start` to `close` they are sent each `every_s`, or when half of the room
    is taken. A collector that may take them later gets them again then, in their order."""

    def __init__(self, post: Poster, resource: bytes, dropped: Counter, every_s: float) -> None:
        self._post, self._resource, self._dropped, self._every_s = post, resource, dropped, every_s
        self._waiting: deque[Ended] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._fails = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)

    def put(self, ended: Ended) -> None:
        count = len(self._waiting)
        if count < MOST_WAITING:
            self._waiting.append(ended)
            if count == MOST_WAITING // 2:
                self._wake.set()
        else:
            self._dropped.inc(ended.spans)

    def start(self) -> None:
        self._thread.start()

    def send_soon(self) -> None:
        """Wake the sending thread; does not wait for it."""
        self._wake.set()

    def close(self) -> None:
        """Send the remaining spans once and wait for that; later spans are not sent."""
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        closed = False
        while not closed:
            self._wake.wait(self._every_s)
            self._wake.clear()
            closed = self._closed  # looked at before: what is put until then is sent
            self._send()

    def _send(self) -> None:
        while self._waiting:
            ended = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
            try:
                self._post(request_of(self._resource, ended))
            except Exception as error:  # nothing that is only shown may end what is shown
                again = isinstance(error, NotPosted) and error.again
                if again and len(self._waiting) + len(ended) <= MOST_WAITING:
                    self._waiting.extendleft(reversed(ended))
                else:
                    self._dropped.inc(sum(one.spans for one in ended))
                if not self._fails:  # one line for each time that it begins to fail
                    self._fails = True
                    _log.warning("traces were not sent: %s", error)
                if again:
                    return
            else:
                self._fails = False


# -- posts to a collector -------------------------------------------------------------------------------------

_TRY_AGAIN = (429, 502, 503, 504)
"""Answers of a collector that may take the same bytes later."""

_COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


class NotPosted(Exception):
    """`again`: the collector may take the same bytes later."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


class Post:
    """HTTP connection to the collector. Raises ConfigError for variables of the environment that cannot be applied."""

    def __init__(self, url: str, timeout_s: float, environment: Mapping[str, str]) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._headers = {
            "Content-Type": "application/x-protobuf",
            "User-Agent": "buckram",
            **parse_env_headers(_said(environment, "HEADERS"), liberal=True),
        }
        way = _said(environment, "COMPRESSION").strip().lower() or "none"
        if way != "none" and way not in _COMPRESSIONS:
            raise ConfigError(f"OTEL_EXPORTER_OTLP_COMPRESSION = {way!r}: must be none, {' or '.join(_COMPRESSIONS)}")
        self._compress = _COMPRESSIONS.get(way)
        if self._compress is not None:
            self._headers["Content-Encoding"] = way
        self._opener = build_opener(*([HTTPSHandler(context=_tls(environment))] if url.startswith("https:") else []))

    def __call__(self, body: bytes) -> None:
        """Raise NotPosted unless the collector took it."""
        data = body if self._compress is None else self._compress(body)
        try:
            with self._opener.open(Request(self._url, data, self._headers), timeout=self._timeout_s):
                pass
        except HTTPError as error:
            with error:
                raise NotPosted(f"{self._url} answers {error.code}", again=error.code in _TRY_AGAIN) from None
        except (OSError, http.client.HTTPException) as error:
            raise NotPosted(f"{self._url}: {error}", again=True) from None


def _said(environment: Mapping[str, str], name: str) -> str:
    return environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or environment.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _tls(environment: Mapping[str, str]) -> ssl.SSLContext:
    authorities, own = _said(environment, "CERTIFICATE"), _said(environment, "CLIENT_CERTIFICATE")
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        if own:
            context.load_cert_chain(own, _said(environment, "CLIENT_KEY") or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificates that OTEL_EXPORTER_OTLP_* name cannot be used: {error}") from None
    return context
