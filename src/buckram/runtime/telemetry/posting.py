"""Posting bytes to a collector: OTLP over HTTP, with headers, compression and TLS from its own environment variables.

OTEL_EXPORTER_OTLP_TRACES_HEADERS, _COMPRESSION, _CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY, or the same without
TRACES. Not here: when, and what if it fails (`runtime/telemetry/sending.py`).
"""

from __future__ import annotations

import gzip
import http.client
import ssl
import zlib
from collections.abc import Callable, Mapping
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, Request, build_opener

from opentelemetry.util.re import parse_env_headers

from buckram.errors import ConfigError

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


__all__ = ["NotPosted", "Post"]
