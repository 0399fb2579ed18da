"""Looks at a cluster again and again, and serves what was seen last. A scrape costs the cluster nothing."""

from __future__ import annotations

import asyncio
import logging
import time

from buckram.client.client import Client
from buckram.errors import BuckramError
from buckram.exporter.gauges import show
from buckram.exporter.looking import look
from buckram.net.http import Answer, Request, text_answer
from buckram.net.stats import CONTENT_TYPE, PrometheusStats

log = logging.getLogger("buckram.exporter")
PATHS = ("/metrics", "/health", "/ready")


class Exporter:
    """`run` looks until it is cancelled; `answer` serves PATHS. While a look fails the one before it is shown."""

    def __init__(self, client: Client, every_s: float, most_streams: int) -> None:
        self._client, self._every_s, self._most = client, every_s, most_streams
        self._text = b""
        self._own = PrometheusStats()
        self._failed = self._own.counter("buckram_exporter_failed_looks_total", "looks that did not end")
        self._took = self._own.gauge("buckram_exporter_look_seconds", "how long the newest look took")
        self._at = self._own.gauge("buckram_exporter_look_timestamp_seconds", "when the newest look ended")

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.look()
            except BuckramError as error:
                self._failed.inc()
                log.warning("the cluster cannot be looked at: %s", error)
            self._took.set(loop.time() - began)
            await asyncio.sleep(max(0.0, self._every_s - (loop.time() - began)))

    async def look(self) -> None:
        """Look once. Raises BuckramError."""
        stats = PrometheusStats()
        show(await look(self._client, self._most), stats)
        self._text = stats.render()
        self._at.set(time.time())

    async def answer(self, request: Request) -> Answer:
        path = "/metrics" if request.path == "/" else request.path
        if path not in PATHS:
            return text_answer(f"only these are served: {', '.join(PATHS)}\n", 404)
        if request.method != "GET":
            return text_answer("only GET is served\n", 405)
        if path == "/metrics":
            return Answer(self._own.render() + self._text, content_type=CONTENT_TYPE)
        if path == "/ready" and not self._text:
            return text_answer("nothing was seen yet\n", 503)
        return text_answer("OK\n")
