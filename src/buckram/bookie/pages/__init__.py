"""Pages of a bookie over HTTP: status, gauges, Apache's metrics and the list of settings, in a thread of their own.

Not here: the administration API (`serve/admin`).
"""
