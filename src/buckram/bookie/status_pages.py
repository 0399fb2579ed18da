"""The pages of `--metrics` and `--http` that every bookie has: /metrics, /health, /ready, /heartbeat and /version."""

from __future__ import annotations

import platform

from buckram.bookie.beside import OtherLoop
from buckram.bookie.process import Bookie
from buckram.bookie.report import release
from buckram.core.entries.hot import COMPILED
from buckram.net.http import Answer, Request, json_answer, text_answer
from buckram.net.stats import CONTENT_TYPE, PrometheusStats

STATES = ("starting", "writable", "readonly", "unregistered", "failed")
SERVED = ("/metrics", "/health", "/ready", "/heartbeat", "/version")


class StatusPages:
    """Answers GET. /health fails only when the store has failed, /ready also while the bookie is not registered."""

    def __init__(self, bookie: OtherLoop[Bookie], stats: PrometheusStats) -> None:
        self._bookie, self._stats = bookie, stats
        self._facts = _facts()
        stats.gauge("buckram_build_info", "Always 1; the labels say what runs.", **self._facts).set(1)
        self._states = {
            state: stats.gauge("buckram_bookie_state", "1 for the state that the bookie is in.", state=state)
            for state in STATES
        }

    async def __call__(self, request: Request) -> Answer:
        """404 for other pages, 405 for other methods."""
        path = "/metrics" if request.path == "/" else request.path
        if path not in SERVED:
            return text_answer(f"only these are served: {', '.join(SERVED)}\n", 404)
        if request.method != "GET":
            return text_answer("only GET is served\n", 405)
        if path == "/metrics":
            return await self.metrics(request)
        if path == "/heartbeat":
            return text_answer("OK\n")
        if path == "/version":
            return json_answer(self._facts)
        state = await self._bookie.ask(lambda bookie: bookie.state)
        good = state != "failed" if path == "/health" else state in ("writable", "readonly")
        return text_answer(f"{state}\n", 200 if good else 503)

    async def metrics(self, request: Request) -> Answer:
        """The text that Prometheus reads. The bookie's loop only computes gauges; the text is made in this thread."""
        now = await self._bookie.ask(_refreshed)
        for state, gauge in self._states.items():
            gauge.set(state == now)
        return Answer(self._stats.render(), content_type=CONTENT_TYPE)


def _refreshed(bookie: Bookie) -> str:
    bookie.server.refresh_gauges()
    return bookie.state


def _facts() -> dict[str, str]:
    return {"version": release(), "python": platform.python_version(), "compiled": "yes" if COMPILED else "no"}
