"""Telemetry: the traces and metrics of one process on their way to a collector, from `start` until `close`.

A collector that does not answer costs only the lost data: threads send, the queues are bounded, and `close` waits no
longer than CLOSE_S.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from urllib.parse import urlsplit

from buckram.config import TelemetryConfig
from buckram.errors import ConfigError
from buckram.extras import needs
from buckram.runtime.process.stats import PrometheusStats

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.resources import Resource

    from buckram.runtime.telemetry.sending import Post, SpanSender, metrics_of, resource_of
    from buckram.runtime.telemetry.spans import OtelTraces
except ImportError:
    raise ConfigError(needs("[telemetry] endpoint", "otel")) from None

CLOSE_S = 3.0
_SEND_S = 5.0
_SPANS_EVERY_S = 5.0
_log = logging.getLogger("buckram.telemetry")
Refresh = Callable[[], None]
"""Brings gauges up to date; called in the thread that sends metrics."""


class Telemetry:
    """`traces` and `stats` are for the Runtime of the process. ConfigError for an endpoint that is no URL."""

    def __init__(
        self, config: TelemetryConfig, service: str, *, instance: str = "", stats: PrometheusStats | None = None
    ) -> None:
        """`service`: service.name if the configuration has none; `instance`: service.instance.id."""
        base = config.endpoint.rstrip("/")
        if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).hostname:
            raise ConfigError(f"[telemetry] endpoint = {base!r}: needs a URL such as http://127.0.0.1:4318")
        named = {"service.name": config.service or service, "service.version": version("buckram")}
        self._resource = Resource.create({**named, **({"service.instance.id": instance} if instance else {})})
        self._exporter = OTLPMetricExporter(f"{base}/v1/metrics", timeout=_SEND_S)
        self.stats = stats or PrometheusStats()
        post = Post(f"{base}/v1/traces", _SEND_S, os.environ)
        dropped = self.stats.counter("buckram_telemetry_dropped_spans_total", "spans that the collector did not get")
        self._spans = SpanSender(post, resource_of(self._resource.attributes), dropped, _SPANS_EVERY_S)
        self.traces = OtelTraces(self._spans.put, config.trace_share, config.traces_per_s, random.Random())
        self._began_ns, self._interval_s = time.time_ns(), config.metrics_interval_s
        self._refresh: Refresh | None = None
        self._stop = threading.Event()
        self._sender = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self, refresh: Refresh | None = None, *, metrics: bool = True) -> None:
        """Start to send traces and, unless `metrics` is false, metrics."""
        self._refresh = refresh
        self._spans.start()
        if metrics:
            self._sender.start()

    def send_soon(self) -> None:
        """Send the traces that are there now; the caller does not wait for it."""
        self._spans.send_soon()

    async def close(self) -> None:
        """Send the remaining data, for CLOSE_S at most, then nothing more. Idempotent."""
        if self._stop.is_set():
            return
        self._stop.set()
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            self._end()
            with suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=end, name="telemetry's end", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await ended.wait()
        except TimeoutError:
            _log.warning("the collector did not take the last traces and metrics within %g s", CLOSE_S)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._send()

    def _send(self) -> None:
        try:
            if self._refresh is not None and not self._stop.is_set():
                self._refresh()
            now = time.time_ns()
            self._exporter.export(metrics_of(self.stats.registry, self._resource, self._began_ns, now))
        except Exception as error:  # nothing that is only shown may end what is shown
            _log.warning("metrics were not sent: %s", error)

    def _end(self) -> None:
        self._spans.close()
        if self._sender.ident is not None:
            self._sender.join()
            self._send()
        self._exporter.shutdown()
