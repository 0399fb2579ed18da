"""Metrics of a cluster as a whole: streams, cursors, databases, namespaces, lost copies. Bookies have their own."""
