"""The gateway: streams, ledgers and the administration of a cluster over HTTP, for any language and for browsers.

`server.py:Gateway` serves one table of operations (`operations.py`), from which its OpenAPI document is made. Needs the
extra `serve`. A bookie has no part of it.
"""
