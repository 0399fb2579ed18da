"""Gathers the facts from which `core/health` makes the list of findings: of the metadata store, bookies and streams.

Every request is bounded and has a deadline; what could not be read is among the facts. Not here: what a fact means
(`core/health`), how findings are shown (`serve/json_views/status.py`, `serve/cluster_exporter.py`).
"""
