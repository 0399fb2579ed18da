"""Looks at a cluster periodically and serves the newest look, so that a scrape costs the cluster nothing.

Not here: what a look reads and which gauges it sets (`serve/exporter/looking.py`, `serve/exporter/gauges.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from buckram.cluster import Client
from buckram.errors import BuckramError
from buckram.health.gathering import Gatherer
from buckram.runtime.net.http_server import Answer, Request, text_answer
from buckram.runtime.process.stats import CONTENT_TYPE, PrometheusStats
from buckram.serve.exporter.gauges import show, show_health
from buckram.serve.exporter.looking import look

log = logging.getLogger("buckram.exporter")
PATHS = ("/metrics", "/health", "/ready")


Show = Callable[[PrometheusStats], Awaitable[None]]
"""Looks at the cluster and sets gauges. Raises BuckramError."""


def cluster(client: Client, most_streams: int) -> Show:
    """Return a Show of the cluster as a whole, with at most `most_streams` streams."""

    async def shown(stats: PrometheusStats) -> None:
        show(await look(client, most_streams), stats)

    return shown


def health(gatherer: Gatherer) -> Show:
    """Return a Show of the findings about a cluster; it works also while the metadata store is away or refused."""

    async def shown(stats: PrometheusStats) -> None:
        show_health(await gatherer.look(), stats)

    return shown


class Exporter:
    """The exporter: `run` looks until it is cancelled, `answer` serves PATHS. After a failed look the last one stays.

    `first`: runs before `show` in each look, and is served even if `show` fails.
    """

    def __init__(self, show: Show, every_s: float, first: Show | None = None) -> None:
        self._show, self._every_s, self._first = show, every_s, first
        self._text = self._first_text = b""
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
        if self._first is not None:
            first = PrometheusStats()
            await self._first(first)
            self._first_text = first.render()
        stats = PrometheusStats()
        await self._show(stats)
        self._text = stats.render()
        self._at.set(time.time())

    async def answer(self, request: Request) -> Answer:
        path = "/metrics" if request.path == "/" else request.path
        if path not in PATHS:
            return text_answer(f"only these are served: {', '.join(PATHS)}\n", 404)
        if request.method != "GET":
            return text_answer("only GET is served\n", 405)
        if path == "/metrics":
            return Answer(self._own.render() + self._first_text + self._text, content_type=CONTENT_TYPE)
        if path == "/ready" and not self._text:
            return text_answer("nothing was seen yet\n", 503)
        return text_answer("OK\n")
