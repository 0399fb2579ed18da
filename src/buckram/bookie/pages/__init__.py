"""The HTTP thread, the status pages, gauges, Apache's metrics and the list of settings that a bookie shows live
here; the administration API is in `serve/admin`.
"""
