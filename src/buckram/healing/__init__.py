"""A cluster that repairs itself: the auditor, which marks ledgers that lack copies, and replicators, which copy them.

Both may run in any number of processes, also beside Apache's on one ZooKeeper. Not here: what is decided from what is
seen (`core/healing`), the marks (`metadata/underreplication`), the repair that one asks for (`client/maintain`).
"""
