"""The pages of a bookie's HTTP port: /metrics, /health, /ready and /version."""

from __future__ import annotations

import json
import platform

from buckram.bookie.http_pages import Answer, Pages
from buckram.bookie.process import Bookie
from buckram.bookie.report import release
from buckram.core.entries.hot import COMPILED
from buckram.net.stats import PrometheusStats

STATES = ("starting", "writable", "readonly", "unregistered", "failed")
_PLAIN, _JSON = "text/plain; charset=utf-8", "application/json"


def status_pages(bookie: Bookie, stats: PrometheusStats) -> Pages:
    """Return the pages by path.

    /health fails only when the store has failed. /ready fails also while the bookie starts or is not registered.
    """
    facts = _facts()
    stats.gauge("buckram_build_info", "Always 1; the labels say what runs.", **facts).set(1)
    gauges = {
        state: stats.gauge("buckram_bookie_state", "1 for the state that the bookie is in.", state=state)
        for state in STATES
    }

    def metrics() -> Answer:
        bookie.server.refresh_gauges()
        now = bookie.state
        for state, gauge in gauges.items():
            gauge.set(state == now)
        return Answer(stats.render())

    def health() -> Answer:
        return Answer(f"{bookie.state}\n".encode(), bookie.state != "failed", _PLAIN)

    def ready() -> Answer:
        return Answer(f"{bookie.state}\n".encode(), bookie.state in ("writable", "readonly"), _PLAIN)

    def program_version() -> Answer:
        return Answer(json.dumps(facts).encode() + b"\n", content_type=_JSON)

    return {
        b"/": metrics,
        b"/metrics": metrics,
        b"/health": health,
        b"/ready": ready,
        b"/version": program_version,
    }


def _facts() -> dict[str, str]:
    return {"version": release(), "python": platform.python_version(), "compiled": "yes" if COMPILED else "no"}
