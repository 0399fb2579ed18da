"""Files of sealed segments outside the cluster: they are written, listed in an Iceberg table, compared with streams.

Not here: reading such files (`streams/read/history_reader.py`, `streams/shared/history_parts.py`), and when a stream is
offloaded (`streams/maintain/offload.py`).
"""
