"""OpenTelemetry: traces and metrics of bookies, gateways and clients, sent to a collector by OTLP over HTTP.

`telemetry.py:Telemetry` is made where `[telemetry] endpoint` is set, and only then anything here is imported. Needs the
extra `otel`. Not here: what is traced (`client/write/tracing.py`, `bookie/service/entries/traced_adds.py`,
`serve/gateway/server.py`).
"""
