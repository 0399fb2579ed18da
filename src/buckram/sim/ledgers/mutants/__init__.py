"""Planted bugs: each known defect of such systems, put into production classes for the time of a life.

They say something about the harness: one that no invariant checker catches within its budget of seeds means that the
simulator is not good enough. Production files know nothing of them.
"""
