"""What one process has without network and disk: tasks, clock, retries, statistics, event loop, caches of open
handles; sockets are runtime/net.
"""
