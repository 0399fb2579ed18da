"""The pages of `--metrics` and `--http` that every bookie has: /metrics, /health, /ready, /heartbeat and /version."""

from __future__ import annotations

import platform
import time

from buckram.bookie.pages.apache_metrics import ApacheMetrics
from buckram.bookie.pages.gauges import Figures, Gauges, figures_of
from buckram.bookie.pages.http_thread import OtherLoop
from buckram.bookie.process import Bookie
from buckram.bookie.report import release
from buckram.core.entries.hot import COMPILED
from buckram.core.security.principal import ANONYMOUS, Principal
from buckram.core.security.tokens import TokenRefused
from buckram.runtime.net.http_server import Answer, Request, json_answer, text_answer
from buckram.runtime.process.stats import CONTENT_TYPE, PrometheusStats

NAMES = ("buckram", "apache", "both")
SERVED = ("/metrics", "/health", "/ready", "/heartbeat", "/version")
PROBES = ("/health", "/ready", "/heartbeat")
"""Pages that need no token, also where clients log in."""
MONITOR = "monitor"
"""The role of a token that may read metrics, and nothing else by itself."""


class StatusPages:
    """Answers GET. /health fails only when the store has failed, /ready also while the bookie is not registered."""

    def __init__(
        self,
        bookie: OtherLoop[Bookie],
        stats: PrometheusStats,
        names: str = "buckram",
        directory: str = "",
        *,
        tokens: bool = False,
    ) -> None:
        """Serve metrics under `names`, one of NAMES, to readers who do not choose. `tokens`: pages beyond PROBES need a
        token."""
        self._bookie, self._stats, self._tokens = bookie, stats, tokens
        self._facts = _facts()
        stats.gauge("buckram_build_info", "Always 1; the labels say what runs.", **self._facts).set(1)
        self._names, self._gauges = names, Gauges(stats)
        self._apache = ApacheMetrics(stats.registry, directory)

    async def __call__(self, request: Request) -> Answer:
        """Return a page; 404 for other pages, 405 for other methods."""
        path = "/metrics" if request.path == "/" else request.path
        if path not in SERVED:
            return text_answer(f"only these are served: {', '.join(SERVED)}\n", 404)
        if request.method != "GET":
            return text_answer("only GET is served\n", 405)
        if self._tokens and path not in PROBES:
            who, refusal = await self._refused(request)
            if refusal is not None:
                why = refusal.content.decode().strip()
                await self._bookie.ask(lambda bookie: bookie.page_refused(who, path, why))
                return refusal
        if path == "/metrics":
            return await self.metrics(request)
        if path == "/heartbeat":
            return text_answer("OK\n")
        if path == "/version":
            return json_answer(self._facts)
        state = await self._bookie.ask(lambda bookie: bookie.state)
        good = state != "failed" if path == "/health" else state in ("writable", "readonly")
        return text_answer(f"{state}\n", 200 if good else 503)

    async def _refused(self, request: Request) -> tuple[Principal, Answer | None]:
        """Return who asks, and the error reply if that principal may not read metrics, else None."""
        token = bearer_of(request)
        how = f"an administrator's, or one of `buckram token create --role {MONITOR}`"
        if not token:
            why = f"this bookie asks for tokens: send Authorization: Bearer TOKEN, {how}\n"
            return ANONYMOUS, Answer(why.encode(), 401, headers={"WWW-Authenticate": "Bearer"})
        try:
            principal = await self._bookie.ask(lambda bookie: bookie.principal_of(token.encode()))
        except TokenRefused as error:
            return ANONYMOUS, text_answer(f"the token is refused: {error}\n", 401)
        if principal.admin or MONITOR in principal.roles:
            return principal, None
        return principal, text_answer(f"{principal} may not read metrics: the token has to be {how}\n", 403)

    async def metrics(self, request: Request) -> Answer:
        """Return the text that Prometheus reads. The bookie's loop only looks at figures; the text is made in this
        thread."""
        names = request.query.get("names", self._names)
        if names not in NAMES:
            return text_answer(f"names = {names[:40]!r}: must be one of {', '.join(NAMES)}\n", 400)
        now, size = await self._bookie.ask(_measured)
        self._gauges.show(now)
        ours = self._stats.render() if names != "apache" else b""
        theirs = self._apache.render(now, size, time.monotonic()) if names != "buckram" else b""
        return Answer(ours + theirs, content_type=CONTENT_TYPE)


def bearer_of(request: Request) -> str:
    """Return the token of a request; empty for one without."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _measured(bookie: Bookie) -> tuple[Figures, int]:
    """Return the figures, and the size of the device; 0 if it cannot be read now."""
    bookie.server.refresh_gauges()
    try:
        size = bookie.disk_space().total_bytes
    except OSError:
        size = 0
    return figures_of(bookie), size


def _facts() -> dict[str, str]:
    return {"version": release(), "python": platform.python_version(), "compiled": "yes" if COMPILED else "no"}
