"""Checkpoints of streaming queries: their contents, whether they are whole, forks of them, and where they are.

Spark itself writes them, through `serve/webhdfs`.
"""
