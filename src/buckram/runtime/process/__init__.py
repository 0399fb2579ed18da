"""Parts of one process beside network and disk: tasks, clock, retries, statistics, event loop, caches of handles.

Not here: sockets (`runtime/net`), files (`runtime/disk`).
"""
