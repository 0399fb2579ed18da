"""A cluster that repairs itself: the auditor, which marks ledgers that lack copies, and replicators, which copy them.

Both may run in any number of processes, also beside Apache's on one ZooKeeper. Not here: the decisions from what was
observed (`core/healing`), the marks (`metadata/records/underreplication`), a repair on request (`client/maintain`).
"""
