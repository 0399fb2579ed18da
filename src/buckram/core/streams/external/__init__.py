"""Data that leave a stream for locations outside the cluster, or come from there: history, exports, imports.

Not here: moving the bytes (`streams/maintain`).
"""
