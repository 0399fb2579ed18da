"""Cost of OpenTelemetry: adds where one append in a hundred is traced, beside adds without tracing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench.harness import cluster
from bench.machines import here
from bench.security import compared


def tracing() -> dict[str, Any]:
    """Compare the CPU per add of clients and bookies that send traces and metrics with those that do not; the
    collector's is not counted."""
    with _collector() as url:
        sending = {"BUCKRAM_TELEMETRY_ENDPOINT": url, "BUCKRAM_TELEMETRY_TRACE_SHARE": "0.01"}
        sending |= {"BUCKRAM_TELEMETRY_TRACES_PER_S": "100000"}  # the whole share, not as many as may be
        with cluster() as plain, cluster(environment=sending, machines_before=3) as traced:
            return compared("plain", (plain, {}), "traced", (traced, sending))


@contextmanager
def _collector() -> Iterator[str]:
    """Yield the URL of a collector that accepts and drops everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer((here(), 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{here()}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
