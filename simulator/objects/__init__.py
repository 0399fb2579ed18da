"""Lives of objects: putters, uploads, renames and sweepers under faults, judged by rules with a model of their own.

`plan.py` draws a life, `life.py` runs it, `mutants.py` has the planted bugs.
"""
