"""A collector of OpenTelemetry: a real HTTP server that decodes what is sent to it by OTLP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Step:
    """A span as it was received."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    error: str
    notes: dict[str, Any]


@dataclass
class Collector:
    """What came so far. `metrics`: the last data of each name, by service and name."""

    url: str = ""
    steps: list[Step] = field(default_factory=list)
    metrics: dict[tuple[str, str], Any] = field(default_factory=dict)

    def named(self, name: str) -> list[Step]:
        return [one for one in self.steps if one.name == name]

    def received(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = _notes(resource.resource.attributes)["service.name"]
                for span in [one for scope in resource.scope_spans for one in scope.spans]:
                    about = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                    assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
                    error = span.status.message if span.status.code == 2 else ""
                    self.steps.append(Step(service, span.name, *about, error, _notes(span.attributes)))
        elif path == "/v1/metrics":
            for of_service in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                service = _notes(of_service.resource.attributes)["service.name"]
                for metric in [one for scope in of_service.scope_metrics for one in scope.metrics]:
                    self.metrics[service, metric.name] = metric


def _notes(pairs: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in pairs}


@contextmanager
def collecting() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/x-protobuf"
            found.received(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
